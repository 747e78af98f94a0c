// The well-known word expressions by hand. Each function follows its expression's alternatives in
// their order.
#include <algorithm>

#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

struct Character {
  uint8_t classes;
  uint8_t length;
  bool letter() const { return (classes & kLetter) != 0; }
  bool number() const { return (classes & kNumber) != 0; }
  bool space() const { return (classes & kSpace) != 0; }
  bool other() const { return (classes & (kLetter | kNumber | kSpace)) == 0; }  // [^\s\p{L}\p{N}]
};

class Text {
 public:
  explicit Text(std::string_view text) : text_(text), classes_(CharacterClasses()) {}

  size_t size() const { return text_.size(); }
  char Byte(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  Character At(size_t i) const {
    const auto byte = static_cast<unsigned char>(text_[i]);
    if (byte < 0x80) return {classes_[byte], 1};
    const CodePoint c = DecodeUtf8(text_, i);
    return {classes_[c.value], static_cast<uint8_t>(c.length)};
  }
  // The end of the run of characters from `i` on of which any of `classes` holds, at most `limit`
  // of them.
  size_t Run(size_t i, uint8_t classes, size_t limit = SIZE_MAX) const {
    for (; i < size() && limit > 0; --limit) {
      const Character c = At(i);
      if ((c.classes & classes) == 0) break;
      i += c.length;
    }
    return i;
  }
  size_t OtherRun(size_t i) const {
    while (i < size()) {
      const Character c = At(i);
      if (!c.other()) break;
      i += c.length;
    }
    return i;
  }
  // \s+(?!\S)|\s+ at a space: the run, without its last character when text follows and something
  // is left.
  size_t SpaceRun(size_t i) const {
    const size_t end = Run(i, kSpace);
    if (end == size()) return end;
    const size_t last = PreviousCharacter(text_, end);
    return last > i ? last : end;
  }

 private:
  std::string_view text_;
  const uint8_t* classes_;
};

size_t Contraction(const Text& text, size_t i, bool any_case) {
  const auto lower = [&](size_t at) {
    const char c = text.Byte(at);
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  const char a = lower(i + 1), b = lower(i + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  if (any_case && a == '\xC5' && b == '\xBF') return 3;  // the long s is an s in another case
  return 0;
}

size_t MatchGpt2(std::string_view view, size_t position) {
  const Text text(view);
  if (view[position] == '\'') {
    if (const size_t length = Contraction(text, position, false)) return length;
  }
  size_t begin = position;  // after the optional space
  Character c = text.At(position);
  if (view[position] == ' ' && position + 1 < view.size()) {
    const Character next = text.At(position + 1);
    if (!next.space()) {
      c = next;
      ++begin;
    }
  }
  size_t end = 0;
  if (c.letter()) {
    end = text.Run(begin, kLetter);
  } else if (c.number()) {
    end = text.Run(begin, kNumber);
  } else if (c.other()) {
    end = text.OtherRun(begin);
  } else {
    end = text.SpaceRun(position);
  }
  return end - position;
}

// The end of \s*[\r\n]+ at `begin`, or `begin` when the run of spaces there has no line end.
size_t LineEnds(std::string_view view, size_t begin, size_t end) {
  const size_t found = view.substr(begin, end - begin).find_last_of("\r\n");
  return found == std::string_view::npos ? begin : begin + found + 1;
}

template <size_t kDigits>
size_t MatchLlama3(std::string_view view, size_t position) {
  const Text text(view);
  if (view[position] == '\'') {
    if (const size_t length = Contraction(text, position, true)) return length;
  }
  const Character c = text.At(position);
  if (c.letter()) return text.Run(position, kLetter) - position;
  if (c.number()) return text.Run(position, kNumber, kDigits) - position;
  const size_t after = position + c.length;
  const bool line_end = view[position] == '\r' || view[position] == '\n';
  if (!line_end && after < view.size()) {
    const Character next = text.At(after);
    if (next.letter()) return text.Run(after, kLetter) - position;
    if (view[position] == ' ' && next.other()) {
      size_t end = text.OtherRun(after);
      while (text.Byte(end) == '\r' || text.Byte(end) == '\n') ++end;
      return end - position;
    }
  }
  if (c.other()) {
    size_t end = text.OtherRun(position);
    while (text.Byte(end) == '\r' || text.Byte(end) == '\n') ++end;
    return end - position;
  }
  const size_t lines = LineEnds(view, position, text.Run(position, kSpace));
  if (lines > position) return lines - position;
  return text.SpaceRun(position) - position;
}

}  // namespace

WordMatcher FindWordMatcher(std::string_view expression) {
  if (expression == kGpt2Words) return &MatchGpt2;
  if (expression == kLlama3Words) return &MatchLlama3<3>;
  if (expression == kQwen2Words) return &MatchLlama3<1>;
  return nullptr;
}

}  // namespace loopspec

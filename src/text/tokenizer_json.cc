#include "text/tokenizer_json.h"

#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/trimmed.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr int kDeepest = 256;  // nesting of values that are skipped over

// Walks the file once. Only what it needs is checked here: everything outside the two tables goes
// through the JSON library afterwards.
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view what, TokenizerJson& out)
      : text_(text), what_(what), out_(out) {}

  // The file without its tables.
  std::string Run() {
    Object([&](std::string_view key) {
      if (key == "model" && Next() == '{') {
        Object([&](std::string_view member) { ModelMember(member); });
      } else {
        Skip(0);
      }
    });
    Space();
    if (at_ != text_.size()) Bad("the end of the file");
    rest_.append(text_.substr(kept_));
    return std::move(rest_);
  }

 private:
  [[noreturn]] void Bad(std::string_view expected) const {
    Fail("{}: expected {} at byte {} of {}", what_, expected, at_, text_.size());
  }

  void Space() {
    while (at_ < text_.size() && IsWhite(text_[at_])) ++at_;
  }
  char Next() {
    Space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void Expect(char c) {
    if (Next() != c) Bad(std::string_view(&c, 1));
    ++at_;
  }

  // Calls `member(key)` at every value of an object; it must move past the value.
  template <typename F>
  void Object(F member) {
    Expect('{');
    if (Next() == '}') {
      ++at_;
      return;
    }
    while (true) {
      const std::string_view key = String();
      Expect(':');
      member(key);
      if (Next() != ',') break;
      ++at_;
    }
    Expect('}');
  }
  template <typename F>
  void Array(F element) {
    Expect('[');
    if (Next() == ']') {
      ++at_;
      return;
    }
    while (true) {
      element();
      if (Next() != ',') break;
      ++at_;
    }
    Expect(']');
  }

  void ModelMember(std::string_view key) {
    if (key == "vocab" && Next() == '{') {
      Cut("{}", [&] { Vocab(); });
    } else if (key == "merges" && Next() == '[') {
      Cut("[]", [&] { Merges(); });
    } else {
      Skip(0);
    }
  }

  // Leaves what `read` moves over out of the rest, with `instead` in its place.
  template <typename F>
  void Cut(std::string_view instead, F read) {
    rest_.append(text_.substr(kept_, at_ - kept_));
    rest_.append(instead);
    read();
    kept_ = at_;
  }

  void Vocab() {
    out_.has_vocab = true;
    out_.vocab.clear();
    Object([&](std::string_view token) { out_.vocab.push_back({token, Integer()}); });
  }

  void Merges() {
    out_.has_merges = true;
    out_.merges.clear();
    Array([&] {
      if (Next() == '[') {
        ++at_;
        Space();
        const std::string_view left = String();
        Expect(',');
        Space();
        const std::string_view right = String();
        Expect(']');
        out_.merges.push_back({left, right});
        return;
      }
      const std::string_view line = String();
      if (line.starts_with("#version")) return;
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        Fail("{}: merge {} is \"{}\", expected two tokens with one space between", what_,
             out_.merges.size(), line);
      }
      out_.merges.push_back({line.substr(0, space), line.substr(space + 1)});
    });
  }

  int64_t Integer() {
    Space();
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - begin < 12) {
      value = value * 10 + (text_[at_++] - '0');
    }
    if (at_ == begin) Bad("a token id");
    const char after = Next();
    if (after != ',' && after != '}') Bad("the end of a token id");
    return value;
  }

  std::string_view String() {
    if (Next() != '"') Bad("a string");
    const size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
    if (at_ < text_.size() && text_[at_] == '"') return text_.substr(begin, at_++ - begin);
    return EscapedString(begin);
  }

  std::string_view EscapedString(size_t begin) {
    std::string value(text_.substr(begin, at_ - begin));
    while (true) {
      if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20)
        Bad("the end of a string");
      const char c = text_[at_++];
      if (c == '"') break;
      if (c == '\\') {
        Escape(value);
      } else {
        value.push_back(c);
      }
    }
    return Keep(std::move(value));
  }

  void Escape(std::string& value) {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    constexpr std::string_view names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (const size_t found = names.find(c); found != std::string_view::npos) {
      value.push_back(meanings[found]);
      return;
    }
    if (c != 'u') Bad("an escape");
    char32_t code = Hex4();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      const char32_t low = Hex4();
      if (low < 0xDC00 || low >= 0xE000) Bad("the second half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code < 0xE000) Bad("a surrogate pair");
    AppendUtf8(code, value);
  }

  char32_t Hex4() {
    char32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = at_ < text_.size() ? text_[at_++] : '\0';
      if (c >= '0' && c <= '9') {
        code = code << 4 | static_cast<char32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        code = code << 4 | static_cast<char32_t>((c | 0x20) - 'a' + 10);
      } else {
        Bad("four hexadecimal digits");
      }
    }
    return code;
  }

  // Strings with escapes live in blocks that never move, so that views of them stay good.
  std::string_view Keep(std::string value) {
    constexpr size_t kBlock = 1 << 16;
    if (out_.arena.empty() ||
        out_.arena.back().capacity() - out_.arena.back().size() < value.size()) {
      std::string block;
      block.reserve(std::max(value.size(), out_.arena.empty() ? size_t{256} : kBlock));
      out_.arena.push_back(std::move(block));
    }
    std::string& block = out_.arena.back();
    block.append(value);
    return std::string_view(block).substr(block.size() - value.size());
  }

  // Past one value of any kind, read loosely.
  void Skip(int depth) {
    if (depth > kDeepest) Bad("less nesting");
    const char c = Next();
    if (c == '"') {
      SkipString();
    } else if (c == '{') {
      Object([&](std::string_view) { Skip(depth + 1); });
    } else if (c == '[') {
      Array([&] { Skip(depth + 1); });
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && std::strchr(",]} \n\r\t", text_[at_]) == nullptr) ++at_;
      if (at_ == begin) Bad("a value");
    }
  }

  void SkipString() {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) Bad("the end of a string");
    ++at_;
  }

  std::string_view text_, what_;
  TokenizerJson& out_;
  size_t at_ = 0;
  size_t kept_ = 0;  // up to where the text is in rest_ or left out of it
  std::string rest_;
};

}  // namespace

TokenizerJson ReadTokenizerJson(std::string_view text, std::string_view what) {
  if (text.size() > uint32_t{1} << 30) {
    Fail("{}: has {} bytes, expected at most 1 GiB", what, text.size());
  }
  if (!IsValidUtf8(text)) Fail("{}: is not valid UTF-8, expected JSON", what);
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  TokenizerJson file;
  file.vocab.reserve(text.size() / 64);
  file.merges.reserve(text.size() / 48);
  const std::string rest = Scanner(text, what, file).Run();
  file.rest = ParseJson(rest, what);
  return file;
}

const Json& RequireMember(const Json& object, std::string_view key, std::string_view what) {
  if (!object.is_object()) Fail("{}: is no object", what);
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) Fail("{}: {} is missing", what, key);
  return *found;
}

const Json& RequireArray(const Json& object, std::string_view key, std::string_view what) {
  const Json& value = RequireMember(object, key, what);
  if (!value.is_array()) Fail("{}: {} is no list", what, key);
  return value;
}

bool RequireBool(const Json& object, std::string_view key, std::string_view what) {
  RequireMember(object, key, what);
  return *FindBool(object, key, what);
}

std::string RequireString(const Json& object, std::string_view key, std::string_view what) {
  RequireMember(object, key, what);
  return *FindString(object, key, what);
}

std::string TypeOf(const Json& object, std::string_view what, std::string_view part) {
  return RequireString(object, "type", fmt::format("{}: {}", what, part));
}

}  // namespace loopspec

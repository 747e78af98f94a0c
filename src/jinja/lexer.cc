#include "jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/utf8.h"
#include "jinja/repr.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

// \r\n and \r become \n, and one newline at the very end goes.
std::string NormalizeSource(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// A literal's escapes, as Python's unicode-escape codec reads them.
class EscapeDecoder {
 public:
  EscapeDecoder(std::string_view body, int line) : body_(body), line_(line) {}

  std::string Decode() {
    while (position_ < body_.size()) {
      const char c = body_[position_++];
      if (c != '\\') {
        out_ += c;
      } else {
        DecodeEscape();
      }
    }
    return std::move(out_);
  }

 private:
  void DecodeEscape() {
    if (position_ >= body_.size()) Fail("chat template line {}: \\ at end of string", line_);
    const char c = body_[position_];
    if (static_cast<unsigned char>(c) >= 0x80) return KeepNonAscii();
    ++position_;
    static constexpr std::string_view kNames = "\\'\"abfnrtv";
    static constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t i = kNames.find(c); i != kNames.npos) {
      out_ += kValues[i];
    } else if (c == 'x') {
      AppendHex(2, c);
    } else if (c == 'u') {
      AppendHex(4, c);
    } else if (c == 'U') {
      AppendHex(8, c);
    } else if (c >= '0' && c <= '7') {
      AppendOctal(c);
    } else if (c == 'N') {
      Fail("chat template line {}: \\N{{...}} escapes are not supported", line_);
    } else if (c != '\n') {  // a backslash at the end of a line joins it with the next
      out_ += '\\';
      out_ += c;
    }
  }

  // jinja2 writes the character as an escape of its own first, whose backslash this one then
  // quotes.
  void KeepNonAscii() {
    const uint32_t c = static_cast<uint32_t>(NextCodePoint(body_, &position_));
    out_ += c < 0x100     ? fmt::format("\\x{:02x}", c)
            : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                          : fmt::format("\\U{:08x}", c);
  }

  void AppendHex(size_t digits, char kind) {
    const std::string_view text = body_.substr(position_, digits);
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (text.size() < digits || error != std::errc() || end != text.data() + digits) {
      Fail("chat template line {}: truncated \\{} escape in a string", line_, kind);
    }
    if (!IsCharacter(value))
      Fail("chat template line {}: \\{}{} in a string is not a character", line_, kind, text);
    position_ += digits;
    AppendUtf8(value, out_);
  }

  void AppendOctal(char first) {
    uint32_t value = static_cast<uint32_t>(first - '0');
    for (int i = 0; i < 2 && position_ < body_.size(); ++i) {
      const char c = body_[position_];
      if (c < '0' || c > '7') break;
      value = value * 8 + static_cast<uint32_t>(c - '0');
      ++position_;
    }
    AppendUtf8(value, out_);
  }

  std::string_view body_;
  int line_;
  size_t position_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : normalized_(NormalizeSource(source)) {
    source_ = normalized_;
  }

  std::vector<Token> Run() {
    while (position_ < source_.size()) LexRoot();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool StartsWith(std::string_view text) const { return StartsWith(text, position_); }
  bool StartsWith(std::string_view text, size_t at) const {
    return source_.substr(std::min(at, source_.size()), text.size()) == text;
  }
  char At(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }

  void Add(TokenKind kind, std::string text) {
    tokens_.push_back(Token{kind, line_, std::move(text), 0, 0});
  }

  // Moves to `end`, counting lines; what was passed decides whether the text that follows starts a
  // line.
  void AdvanceTo(size_t end) {
    const std::string_view passed = source_.substr(position_, end - position_);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    line_starting_ = !passed.empty() && passed.back() == '\n';
    position_ = end;
  }

  size_t SkipSpace(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!IsSpace(NextCodePoint(source_, &next))) break;
      at = next;
    }
    return at;
  }

  size_t FindTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != source_.npos; at = source_.find('{', at + 1)) {
      if (const char c = At(at + 1); c == '%' || c == '{' || c == '#') return at;
    }
    return source_.npos;
  }

  // The text before a tag, less what the tag's sign or lstrip_blocks takes from its end.
  void AddTextBeforeTag(std::string_view text, char sign, bool is_print) {
    if (sign == '-') {
      text = StripSpace(text, false, true);
    } else if (sign != '+' && !is_print) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == text.npos ? 0 : newline + 1;
      if ((line_start > 0 || line_starting_) &&
          StripSpace(text.substr(line_start), true, false).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) Add(TokenKind::kText, std::string(text));
  }

  void LexRoot() {
    const size_t tag = FindTag(position_);
    if (tag == source_.npos) {
      Add(TokenKind::kText, std::string(source_.substr(position_)));
      AdvanceTo(source_.size());
      return;
    }
    const char kind = At(tag + 1);
    const char sign = At(tag + 2) == '-' || At(tag + 2) == '+' ? At(tag + 2) : '\0';
    const size_t inside = tag + 2 + (sign != '\0' ? 1 : 0);
    AddTextBeforeTag(source_.substr(position_, tag - position_), sign, kind == '{');
    if (const size_t raw = kind == '%' ? MatchRawBegin(inside) : 0; raw != 0) {
      AdvanceTo(raw);
      LexRaw();
      return;
    }
    AdvanceTo(inside);
    if (kind == '#') {
      LexComment();
    } else {
      LexTag(kind == '{');
    }
  }

  // The end of `raw %}` at `at`, or 0 when something else stands there.
  size_t MatchRawBegin(size_t at) const {
    at = SkipSpace(at);
    if (!StartsWith("raw", at)) return 0;
    at = SkipSpace(at + 3);
    if (StartsWith("%}", at)) return at + 2;
    return StartsWith("-%}", at) ? SkipSpace(at + 3) : 0;
  }

  void LexRaw() {
    for (size_t at = source_.find("{%", position_); at != source_.npos;
         at = source_.find("{%", at + 1)) {
      const char sign = At(at + 2) == '-' || At(at + 2) == '+' ? At(at + 2) : '\0';
      const size_t word = SkipSpace(at + 2 + (sign != '\0' ? 1 : 0));
      if (!StartsWith("endraw", word)) continue;
      const size_t end = MatchEnd(SkipSpace(word + 6), "%}", true);
      if (end == 0) continue;
      AddTextBeforeTag(source_.substr(position_, at - position_), sign, false);
      AdvanceTo(end);
      return;
    }
    if (position_ == source_.size()) return;  // jinja2 lets a tag end with the template
    Fail("chat template line {}: missing end of raw directive", line_);
  }

  void LexComment() {
    for (size_t at = position_; at < source_.size(); ++at) {
      if (const size_t end = MatchEnd(at, "#}", true); end != 0) {
        AdvanceTo(end);
        return;
      }
    }
    if (position_ == source_.size()) return;
    Fail("chat template line {}: missing end of comment tag", line_);
  }

  // The position after a closing delimiter with its sign and the white space that goes with it; 0
  // when none is at `at`. trim_blocks: a newline right after a block or comment goes too.
  size_t MatchEnd(size_t at, std::string_view delimiter, bool is_block) const {
    if (StartsWith(delimiter, at)) {
      at += delimiter.size();
      return is_block && At(at) == '\n' && at < source_.size() ? at + 1 : at;
    }
    if (!StartsWith(delimiter, at + 1)) return 0;
    if (At(at) == '-') return SkipSpace(at + 1 + delimiter.size());
    return is_block && At(at) == '+' ? at + 1 + delimiter.size() : 0;
  }

  void LexTag(bool is_print) {
    Add(is_print ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
    open_brackets_.clear();
    while (position_ < source_.size()) {
      if (open_brackets_.empty()) {
        if (const size_t end = MatchEnd(position_, is_print ? "}}" : "%}", !is_print); end != 0) {
          Add(is_print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "");
          AdvanceTo(end);
          return;
        }
      }
      if (const size_t next = SkipSpace(position_); next != position_) {
        AdvanceTo(next);
      } else {
        LexToken();
      }
    }
  }

  void LexToken() {
    const char c = At(position_);
    size_t next = position_;
    const char32_t code_point = NextCodePoint(source_, &next);
    if (c >= '0' && c <= '9') {
      LexNumber();
    } else if (IsIdentifierStart(code_point)) {
      while (next < source_.size()) {
        size_t after = next;
        if (!IsIdentifierPart(NextCodePoint(source_, &after))) break;
        next = after;
      }
      Add(TokenKind::kName, std::string(source_.substr(position_, next - position_)));
      AdvanceTo(next);
    } else if (c == '"' || c == '\'') {
      LexString(c);
    } else {
      LexOperator();
    }
  }

  void LexString(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) Fail("chat template line {}: a string is not closed", line_);
    const std::string_view body = source_.substr(position_ + 1, end - position_ - 1);
    Add(TokenKind::kString, EscapeDecoder(body, line_).Decode());
    AdvanceTo(end + 1);
  }

  // Past digits of the base, single underscores between them.
  size_t SkipDigits(size_t at, int base) const {
    const auto is_digit = [&](char c) {
      const int value = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      return value < base;
    };
    while (is_digit(At(at)) || (At(at) == '_' && is_digit(At(at + 1)))) ++at;
    return at;
  }

  // The end of a float literal at the position; 0 when what stands there is an integer.
  size_t MatchFloat() const {
    if (position_ > 0 && source_[position_ - 1] == '.') return 0;  // foo.0.1 are two indices
    size_t end = SkipDigits(position_, 10);
    bool is_float = false;
    if (At(end) == '.' && At(end + 1) >= '0' && At(end + 1) <= '9') {
      end = SkipDigits(end + 1, 10);
      is_float = true;
    }
    if (At(end) == 'e' || At(end) == 'E') {
      const size_t digits = end + 1 + (At(end + 1) == '+' || At(end + 1) == '-' ? 1 : 0);
      if (At(digits) >= '0' && At(digits) <= '9') {
        end = SkipDigits(digits, 10);
        is_float = true;
      }
    }
    return is_float ? end : 0;
  }

  void LexNumber() {
    std::string digits;
    const auto take = [&](size_t from, size_t to) {
      for (size_t i = from; i < to; ++i) {
        if (source_[i] != '_') digits += source_[i];
      }
    };
    if (const size_t end = MatchFloat(); end != 0) {
      take(position_, end);
      Add(TokenKind::kFloat, "");
      tokens_.back().real = std::strtod(digits.c_str(), nullptr);
      AdvanceTo(end);
      return;
    }
    int base = 10;
    size_t start = position_;
    if (At(position_) == '0') {
      const char kind = static_cast<char>(At(position_ + 1) | 0x20);
      const int prefixed = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
      if (prefixed != 0 && SkipDigits(position_ + 2, prefixed) > position_ + 2) {
        base = prefixed;
        start = position_ + 2;
      }
    }
    // A decimal that begins with zero is zeros only; what follows is the next token.
    const bool zeros = base == 10 && At(start) == '0';
    const size_t end = zeros ? SkipDigits(start, 1) : SkipDigits(start, base);
    take(start, end);
    Add(TokenKind::kInteger, "");
    const auto [rest, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().integer, base);
    if (error != std::errc() || rest != digits.data() + digits.size()) {
      Fail("chat template line {}: the number {} does not fit 64 bits", line_, digits);
    }
    AdvanceTo(end);
  }

  void LexOperator() {
    static constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
    std::string text;
    for (const std::string_view op : kDouble) {
      if (StartsWith(op)) text = op;
    }
    if (text.empty() && kSingle.find(At(position_)) != kSingle.npos) text = At(position_);
    if (text.empty()) {
      size_t next = position_;
      NextCodePoint(source_, &next);
      Fail("chat template line {}: unexpected character {}", line_,
           ReprText(source_.substr(position_, next - position_)));
    }
    TrackBrackets(text);
    Add(TokenKind::kOperator, text);
    AdvanceTo(position_ + text.size());
  }

  // Inside brackets the closing delimiters are ordinary characters.
  void TrackBrackets(const std::string& text) {
    static constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const size_t open = kOpen.find(text); open != kOpen.npos) {
      open_brackets_.push_back(kClose[open]);
    } else if (kClose.find(text) != kClose.npos) {
      if (open_brackets_.empty() || open_brackets_.back() != text[0]) {
        Fail("chat template line {}: unexpected '{}'", line_, text);
      }
      open_brackets_.pop_back();
    }
  }

  std::string normalized_;
  std::string_view source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<char> open_brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  if (!IsValidUtf8(source)) Fail("chat template: the source is not valid UTF-8");
  return Lexer(source).Run();
}

}  // namespace loopspec::jinja

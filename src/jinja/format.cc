#include "jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/escape_html.h"
#include "base/utf8.h"
#include "jinja/arguments.h"
#include "jinja/interpreter.h"
#include "jinja/operators.h"
#include "jinja/repr.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

constexpr int64_t kMaxPrecision = 1000;

// [[fill]align][sign][#][0][width][grouping][.precision][type]; % formatting fills the same fields.
struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '\0';   // as '-': only for negative numbers
  bool alternate = false;
  bool zero = false;  // a 0 before the width chose fill and align
  int64_t width = 0;
  char grouping = '\0';
  int64_t precision = -1;
  char type = '\0';
};

std::string Pad(const std::string& text, const FormatSpec& spec, char default_align,
                Budget& budget) {
  const int64_t length = CountCodePoints(text);
  if (spec.width <= length) return text;
  const size_t missing = static_cast<size_t>(spec.width - length);
  budget.ChargeText(text.size() + missing * spec.fill.size());
  const auto fill = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align == '\0' ? default_align : spec.align) {
    case '<':
      return text + fill(missing);
    case '^':
      return fill(missing / 2) + text + fill(missing - missing / 2);
    case '=': {
      size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
      if (spec.alternate && text.size() > sign + 1 && text[sign] == '0' && text[sign + 1] > '9') {
        sign += 2;  // 0x
      }
      return text.substr(0, sign) + fill(missing) + text.substr(sign);
    }
    default:
      return fill(missing) + text;
  }
}

std::string Group(const std::string& digits, char separator, size_t size) {
  if (separator == '\0') return digits;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string SignOf(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' || sign == '\0' ? "" : std::string(1, sign);
}

std::string FormatInteger(int64_t value, const FormatSpec& spec, Budget& budget) {
  const uint64_t magnitude =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits, prefix;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", magnitude);
      prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude);
      prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude);
      prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude);
      prefix = "0b";
      break;
    default:
      digits = fmt::format("{}", magnitude);
  }
  digits = Group(digits, spec.grouping, prefix.empty() ? 3 : 4);
  const std::string text = SignOf(value < 0, spec.sign) + (spec.alternate ? prefix : "") + digits;
  return Pad(text, spec, '>', budget);
}

// Without a type Python prints like repr, or with a precision like g, but always as a float.
std::string DefaultFloat(double magnitude, int precision) {
  if (precision < 0) return ReprFloat(magnitude);
  std::string text = fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
  if (text.find_first_of(".en") == std::string::npos) {
    text = static_cast<int64_t>(text.size()) >= std::max(precision, 1)
               ? fmt::format("{:.{}e}", magnitude, std::max(precision, 1) - 1)
               : text + ".0";
  }
  return text;
}

std::string FormatFloat(double value, const FormatSpec& spec, Budget& budget) {
  const double magnitude = std::fabs(value);
  const int precision = static_cast<int>(spec.precision);
  const int digits = precision < 0 ? 6 : precision;
  std::string text;
  switch (spec.type) {
    case 'f':
      text = FixedFloat(magnitude, digits);
      break;
    case 'F':
      text = ToUpper(FixedFloat(magnitude, digits));
      break;
    case '%':
      text = FixedFloat(magnitude * 100, digits) + "%";
      break;
    case 'e':
      text = fmt::format("{:.{}e}", magnitude, digits);
      break;
    case 'E':
      text = fmt::format("{:.{}E}", magnitude, digits);
      break;
    case 'g':
    case 'n':
      text = fmt::format("{:.{}g}", magnitude, std::max(digits, 1));
      break;
    case 'G':
      text = fmt::format("{:.{}G}", magnitude, std::max(digits, 1));
      break;
    default:
      text = DefaultFloat(magnitude, precision);
  }
  const size_t whole = std::min(text.find_first_not_of("0123456789"), text.size());
  text = Group(text.substr(0, whole), spec.grouping, 3) + text.substr(whole);
  return Pad(SignOf(std::signbit(value) && !std::isnan(value), spec.sign) + text, spec, '>',
             budget);
}

std::string Truncated(const std::string& text, int64_t precision) {
  if (precision < 0 || CountCodePoints(text) <= precision) return text;
  return Encode(Decode(text).substr(0, static_cast<size_t>(precision)));
}

// One % conversion after the other.
class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& values, Budget& budget)
      : format_(format.text()), markup_(format.string()->markup), values_(values), budget_(budget) {
    const Sequence* sequence = values.sequence();
    is_tuple_ = sequence != nullptr && sequence->kind == SequenceKind::kTuple;
    is_mapping_ = values.dict() != nullptr;
  }

  std::string Run() {
    while (position_ < format_.size()) {
      const char c = format_[position_++];
      if (c == '%') {
        Convert();
      } else {
        out_ += c;
      }
    }
    const size_t given = is_tuple_ ? values_.sequence()->items.size() : 1;
    const bool may_ignore =
        is_mapping_ || values_.IsUndefined() || (!is_tuple_ && values_.sequence() != nullptr);
    if (used_ < given && !may_ignore) {
      Fail("chat template: not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  char Take() {
    if (position_ >= format_.size()) Fail("chat template: incomplete format in '%'");
    return format_[position_++];
  }

  const Value& NextValue() {
    if (keyed_ != nullptr) return *keyed_;
    const size_t given = is_tuple_ ? values_.sequence()->items.size() : 1;
    if (used_ >= given) Fail("chat template: not enough arguments for format string");
    const size_t index = used_++;
    return is_tuple_ ? values_.sequence()->items[index] : values_;
  }

  void TakeKey() {
    size_t depth = 1;
    std::string key;
    while (true) {
      const char c = Take();
      if (c == '(') ++depth;
      if (c == ')' && --depth == 0) break;
      key += c;
    }
    if (!is_mapping_) Fail("chat template: format requires a mapping");
    keyed_ = values_.dict()->Find(std::string_view(key));
    if (keyed_ == nullptr) Fail("chat template: no value for the format key '{}'", key);
  }

  int64_t TakeNumber() {
    if (position_ < format_.size() && format_[position_] == '*') {
      ++position_;
      return RequireInt(NextValue(), "* in a format");
    }
    int64_t number = 0;
    while (position_ < format_.size() && format_[position_] >= '0' && format_[position_] <= '9') {
      number = number * 10 + (format_[position_++] - '0');
      if (number > INT32_MAX) Fail("chat template: a format's width or precision is too big");
    }
    return number;
  }

  void Convert() {
    FormatSpec spec;
    keyed_ = nullptr;
    char c = Take();
    if (c == '%') {
      out_ += '%';
      return;
    }
    if (c == '(') {
      TakeKey();
      c = Take();
    }
    bool zero = false;
    for (; c == '-' || c == '+' || c == ' ' || c == '#' || c == '0'; c = Take()) {
      if (c == '-') spec.align = '<';
      if (c == '+' || (c == ' ' && spec.sign != '+')) spec.sign = c;
      if (c == '#') spec.alternate = true;
      if (c == '0') zero = true;
    }
    --position_;
    spec.width = TakeNumber();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    c = Take();
    if (c == '.') {
      spec.precision = std::max<int64_t>(TakeNumber(), 0);
      c = Take();
    }
    while (c == 'h' || c == 'l' || c == 'L') c = Take();
    spec.type = c;
    if (c == '%') {
      out_ += '%';
      return;
    }
    out_ += ConvertValue(NextValue(), spec, zero);
    budget_.CheckText(out_.size());
  }

  std::string ConvertValue(const Value& value, FormatSpec spec, bool zero) {
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      std::string text = spec.type == 's' ? ToText(value, budget_) : Repr(value, budget_);
      if (markup_ && !(value.IsString() && value.string()->markup)) text = EscapeHtml(text);
      return Pad(Truncated(text, spec.precision), spec, '>', budget_);
    }
    if (spec.type == 'c') return Pad(Character(value), spec, '>', budget_);
    RequireDefined(value);
    static constexpr std::string_view kIntegers = "diuxXo", kFloats = "fFeEgG";
    if (zero && spec.align == '\0') {
      spec.fill = std::string(1, '0');
      spec.align = '=';
    }
    if (kIntegers.find(spec.type) != kIntegers.npos) return Integer(value, spec);
    if (kFloats.find(spec.type) != kFloats.npos) {
      if (!value.number()) Fail("chat template: must be real number, not {}", value.TypeName());
      if (spec.precision > kMaxPrecision) Fail("chat template: precision too big");
      return FormatFloat(*value.number(), spec, budget_);
    }
    Fail("chat template: unsupported format character '{}'", spec.type);
  }

  std::string Integer(const Value& value, FormatSpec spec) {
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    std::optional<int64_t> number = value.integer();
    if (!number && decimal && value.IsFloat() && std::fabs(*value.number()) < 9e18) {
      number = static_cast<int64_t>(*value.number());
    }
    if (!number) {
      Fail("chat template: %{} format: a number is required, not {}", spec.type, value.TypeName());
    }
    if (spec.precision > kMaxPrecision) Fail("chat template: precision too big");
    if (spec.precision < 0) return FormatInteger(*number, spec, budget_);
    // A precision is the least number of digits; widths and zeros go around that.
    FormatSpec inner = spec;
    inner.fill = std::string(1, '0');
    inner.align = '=';
    inner.width = spec.precision + (*number < 0 || spec.sign != '\0' ? 1 : 0) +
                  (spec.alternate && !decimal ? 2 : 0);
    return Pad(FormatInteger(*number, inner, budget_), spec, '>', budget_);
  }

  std::string Character(const Value& value) {
    if (value.IsString() && value.string()->length == 1) return value.text();
    const std::optional<int64_t> code = value.integer();
    if (!code || !IsCharacter(*code))
      Fail("chat template: %c requires an int in range or a single character");
    std::string out;
    AppendUtf8(static_cast<char32_t>(*code), out);
    return out;
  }

  std::string_view format_;
  bool markup_;
  const Value& values_;
  Budget& budget_;
  bool is_tuple_, is_mapping_;
  size_t position_ = 0;
  size_t used_ = 0;
  const Value* keyed_ = nullptr;
  std::string out_;
};

FormatSpec ParseSpec(std::string_view text) {
  FormatSpec spec;
  size_t i = 0;
  const auto at = [&](size_t k) { return k < text.size() ? text[k] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t after_fill = 0;
  if (!text.empty()) NextCodePoint(text, &after_fill);
  if (!text.empty() && is_align(at(after_fill))) {
    spec.fill = text.substr(0, after_fill);
    spec.align = at(after_fill);
    i = after_fill + 1;
  } else if (is_align(at(0))) {
    spec.align = at(0);
    i = 1;
  }
  if (at(i) == '+' || at(i) == '-' || at(i) == ' ') spec.sign = at(i++);
  if (at(i) == '#') {
    spec.alternate = true;
    ++i;
  }
  if (at(i) == '0') {
    if (spec.align == '\0') {
      spec.fill = std::string(1, '0');
      spec.align = '=';
      spec.zero = true;
    }
    ++i;
  }
  const auto number = [&] {
    int64_t value = 0;
    while (at(i) >= '0' && at(i) <= '9') {
      value = value * 10 + (at(i++) - '0');
      if (value > INT32_MAX) Fail("chat template: too many decimal digits in format string");
    }
    return value;
  };
  spec.width = number();
  if (at(i) == ',' || at(i) == '_') spec.grouping = at(i++);
  if (at(i) == '.') {
    ++i;
    if (at(i) < '0' || at(i) > '9') Fail("chat template: format specifier missing precision");
    spec.precision = number();
  }
  if (i < text.size()) spec.type = text[i++];
  if (i < text.size()) Fail("chat template: invalid format specifier '{}'", text);
  return spec;
}

// format(value, spec)
std::string FormatValue(const Value& value, std::string_view spec_text, Budget& budget) {
  if (spec_text.empty()) return ToText(value, budget);
  FormatSpec spec = ParseSpec(spec_text);
  if (value.IsString()) {
    if (spec.zero) spec.align = '<';
    if ((spec.type != '\0' && spec.type != 's') || spec.align == '=' || spec.grouping != '\0' ||
        spec.sign != '\0' || spec.alternate) {
      Fail("chat template: format '{}' does not fit a string", spec_text);
    }
    return Pad(Truncated(value.text(), spec.precision), spec, '<', budget);
  }
  if (!value.IsNumber()) {
    Fail("chat template: unsupported format string passed to {}.__format__", value.TypeName());
  }
  static constexpr std::string_view kIntegers = "dxXobcn", kFloats = "fFeEgGn%";
  if (value.integer() && (spec.type == '\0' || kIntegers.find(spec.type) != kIntegers.npos)) {
    if (spec.precision >= 0 || spec.type == 'c') {
      Fail("chat template: format '{}' does not fit an integer", spec_text);
    }
    return FormatInteger(*value.integer(), spec, budget);
  }
  if (spec.precision > kMaxPrecision ||
      (spec.type != '\0' && kFloats.find(spec.type) == kFloats.npos)) {
    Fail("chat template: format '{}' does not fit a {}", spec_text, value.TypeName());
  }
  return FormatFloat(*value.number(), spec, budget);
}

// {field!conversion:spec}, with fields nested one level deep in the spec.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Arguments& arguments)
      : interpreter_(interpreter), arguments_(arguments) {}

  std::string Run(std::string_view text, int levels) {
    if (levels < 0) Fail("chat template: max string recursion exceeded in a format");
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
        out += c;
        ++i;
      } else if (c == '}') {
        Fail("chat template: single '}}' encountered in format string");
      } else if (c == '{') {
        const size_t end = FieldEnd(text, i + 1);
        out += Field(text.substr(i + 1, end - i - 1), levels);
        i = end;
      } else {
        out += c;
      }
      interpreter_.budget().CheckText(out.size());
    }
    return out;
  }

 private:
  static size_t FieldEnd(std::string_view text, size_t at) {
    int depth = 1;
    for (; at < text.size(); ++at) {
      if (text[at] == '{') ++depth;
      if (text[at] == '}' && --depth == 0) return at;
    }
    Fail("chat template: expected '}}' before end of format string");
  }

  std::string Field(std::string_view field, int levels) {
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    const Value value = Lookup(field.substr(0, name_end));
    std::string_view rest = field.substr(name_end);
    char conversion = '\0';
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) {
        Fail("chat template: expected ':' after conversion specifier");
      }
      conversion = rest[1];
      rest.remove_prefix(2);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    const std::string spec =
        rest.find_first_of("{}") == rest.npos ? std::string(rest) : Run(rest, levels - 1);
    Budget& budget = interpreter_.budget();
    switch (conversion) {
      case '\0':
        return FormatValue(value, spec, budget);
      case 's':
        return FormatValue(Value::Of(ToText(value, budget)), spec, budget);
      case 'r':
      case 'a':
        return FormatValue(Value::Of(Repr(value, budget)), spec, budget);
      default:
        Fail("chat template: unknown conversion specifier '{}'", conversion);
    }
  }

  static std::optional<int64_t> AsIndex(std::string_view text) {
    if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) {
      return std::nullopt;
    }
    int64_t index = 0;
    for (const char c : text) index = index * 10 + (c - '0');
    return index;
  }

  Value First(std::string_view name) {
    std::optional<int64_t> index = AsIndex(name);
    if (name.empty()) {
      if (automatic_ < 0) Fail("chat template: cannot mix numbered and automatic format fields");
      index = automatic_++;
    } else if (index) {
      if (automatic_ > 0) Fail("chat template: cannot mix automatic and numbered format fields");
      automatic_ = -1;
    }
    if (index) {
      if (*index >= static_cast<int64_t>(arguments_.positional.size())) {
        Fail("chat template: a format has no argument {}", *index);
      }
      return arguments_.positional[static_cast<size_t>(*index)];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    Fail("chat template: a format has no argument '{}'", name);
  }

  // name.attribute[item]...
  Value Lookup(std::string_view path) {
    size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = First(path.substr(0, end));
    while (end < path.size()) {
      const size_t start = end + 1;
      if (path[end] == '.') {
        end = std::min(path.find_first_of(".[", start), path.size());
        value = interpreter_.GetAttribute(value, path.substr(start, end - start));
      } else {
        end = path.find(']', start);
        if (end == path.npos) Fail("chat template: missing ']' in format string");
        const std::string_view key = path.substr(start, end - start);
        const std::optional<int64_t> index = AsIndex(key);
        value = interpreter_.GetItem(value, index ? Value::Of(*index) : Value::Of(key));
        ++end;
        if (end < path.size() && path[end] != '.' && path[end] != '[') {
          Fail("chat template: only '.' or '[' may follow ']' in format field specifier");
        }
      }
    }
    return value;
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  int64_t automatic_ = 0;  // the next unnamed field; -1 once a numbered one was seen
};

}  // namespace

std::string FixedFloat(double value, int digits) {
  return fmt::format("{:.{}f}", value, digits);
}

Value FormatPercent(const Value& left, const Value& right, Budget& budget) {
  return Value::Of(PercentFormatter(left, right, budget).Run(), left.string()->markup);
}

std::string FormatBraces(Interpreter& interpreter, std::string_view text,
                         const Arguments& arguments) {
  return BraceFormatter(interpreter, arguments).Run(text, 2);
}

}  // namespace loopspec::jinja

// Filters that work on text, numbers and single values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/escape_html.h"
#include "jinja/arguments.h"
#include "jinja/filters.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

bool IsMarkup(const Value& value) {
  return value.IsString() && value.string()->markup;
}

// The text of anything; what was markup stays so.
std::string SoftText(Interpreter& interpreter, const Value& value) {
  return ToText(value, interpreter.budget());
}

template <std::string (*kMap)(std::string_view)>
Value MapText(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("the filter", arguments, {});
  return Value::Of(kMap(SoftText(interpreter, value)), IsMarkup(value));
}

// Unlike str.title, the filter starts words after white space and opening brackets only.
std::string TitleWords(std::string_view text) {
  std::string out, word;
  bool in_separator = false;
  const auto flush = [&] {
    if (word.empty()) return;
    size_t first = 0;
    NextCodePoint(word, &first);
    out += ToUpper(std::string_view(word).substr(0, first)) +
           ToLower(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    const bool separator = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (separator != in_separator) flush();
    in_separator = separator;
    AppendUtf8(c, word);
  }
  flush();
  return out;
}

Value Trim(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  const std::string text = SoftText(interpreter, value);
  const std::string_view stripped =
      bound.GivenNotNone(0) ? StripChars(text, RequireText(bound[0], "trim"), true, true)
                            : StripSpace(text, true, true);
  return Value::Of(std::string(stripped), IsMarkup(value));
}

Value Replace(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Budget& budget = interpreter.budget();
  const int64_t count = bound.GivenNotNone(2) ? bound.Int(2, -1) : -1;
  return Value::Of(ReplaceText(ToText(value, budget), ToText(bound[0], budget),
                               ToText(bound[1], budget), count, budget));
}

Value String_(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("string", arguments, {});
  return value.IsString() ? value : Value::Of(SoftText(interpreter, value));
}

Value Safe(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("safe", arguments, {});
  return Value::Of(SoftText(interpreter, value), true);
}

Value Escape(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("escape", arguments, {});
  if (IsMarkup(value)) return value;
  return Value::Of(EscapeHtml(SoftText(interpreter, value)), true);
}

Value Format(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    Fail("chat template: format cannot take positional and keyword arguments at the same time");
  }
  const Value text = String_(interpreter, value, {});
  if (arguments.named.empty()) {
    return FormatPercent(text, Value::Tuple(arguments.positional), interpreter.budget());
  }
  Dict dict;
  for (const auto& [name, item] : arguments.named) dict.Set(name, item);
  return FormatPercent(text, Value::Of(std::move(dict)), interpreter.budget());
}

Value Indent(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  Budget& budget = interpreter.budget();
  std::string indent;
  if (bound.Given(0) && bound[0].IsString()) {
    indent = bound[0].text();
  } else {
    const int64_t width = std::max<int64_t>(bound.Int(0, 4), 0);
    budget.ChargeText(static_cast<size_t>(width));
    indent.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = bound.Truth(1, false), blank = bound.Truth(2, false);
  const std::string text = RequireText(value, "indent") + "\n";
  std::string out = first ? indent : "";
  const std::vector<std::string_view> lines = SplitLines(text, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += indent;
    out += lines[i];
    budget.CheckText(out.size());
    budget.ChargeText(indent.size());
  }
  return Value::Of(std::move(out), IsMarkup(value));
}

// int() of a string: white space around, a sign, single underscores between digits.
std::optional<int64_t> ParseInt(std::string_view text, int base) {
  text = StripSpace(text, true, true);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const auto prefix = [&](char letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter;
  };
  const int prefixed = prefix('x') ? 16 : prefix('o') ? 8 : prefix('b') ? 2 : 0;
  if (prefixed != 0 && (base == prefixed || base == 0)) {
    base = prefixed;
    text.remove_prefix(text[2] == '_' ? 3 : 2);
  } else if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != text.npos) {
      return std::nullopt;
    }
    base = 10;
  }
  std::string digits = negative ? "-" : "";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') {
      return std::nullopt;
    }
  }
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (error == std::errc::result_out_of_range) {
    Fail("chat template: int: {} does not fit 64 bits", digits);
  }
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// float() of a string.
std::optional<double> ParseFloat(std::string_view text) {
  text = StripSpace(text, true, true);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t k) {
      return k < text.size() && text[k] >= '0' && text[k] <= '9';
    };
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return std::nullopt;
    }
  }
  std::string name = ToLower(digits);
  if (!name.empty() && (name[0] == '+' || name[0] == '-')) name.erase(0, 1);
  const bool special = name == "inf" || name == "infinity" || name == "nan";
  if (!special && (name.empty() || name.find_first_not_of("0123456789.e+-") != name.npos)) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size()) return std::nullopt;
  return number;
}

int64_t WholeOf(double number) {
  if (!(std::fabs(number) < 9.2e18)) {
    Fail("chat template: int: {} does not fit 64 bits", ReprFloat(number));
  }
  return static_cast<int64_t>(number);
}

Value Int(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  RequireDefined(value);
  const Value fallback = bound.Or(0, Value::Of(int64_t{0}));
  const int64_t base = bound.Int(1, 10);
  if (value.integer()) return Value::Of(*value.integer());
  if (value.IsFloat()) {
    if (!std::isfinite(*value.number())) {
      // int(nan) is a ValueError, which the default answers; int(inf) is an OverflowError, which it
      // does not.
      if (std::isnan(*value.number())) return fallback;
      Fail("chat template: int: cannot convert float infinity to integer");
    }
    return Value::Of(WholeOf(*value.number()));
  }
  if (!value.IsString()) return fallback;
  if (base != 0 && (base < 2 || base > 36)) return fallback;
  if (const std::optional<int64_t> number = ParseInt(value.text(), static_cast<int>(base))) {
    return Value::Of(*number);
  }
  const std::optional<double> number = ParseFloat(value.text());
  if (!number || !std::isfinite(*number)) return fallback;
  return Value::Of(WholeOf(*number));
}

Value Float(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  RequireDefined(value);
  if (value.number()) return Value::Of(*value.number());
  const std::optional<double> number = value.IsString() ? ParseFloat(value.text()) : std::nullopt;
  return number ? Value::Of(*number) : bound.Or(0, Value::Of(0.0));
}

Value Abs(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("abs", arguments, {});
  if (value.IsFloat()) return Value::Of(std::fabs(*value.number()));
  const int64_t number = RequireInt(value, "abs");
  return number < 0 ? Negate(Value::Of(number)) : Value::Of(number);
}

// round(): to the nearest, ties to even, decided on the exact decimal value as Python does.
Value RoundCommon(const Value& value, int64_t precision, Budget& budget) {
  if (value.integer()) {
    const int64_t number = *value.integer();
    if (precision >= 0) return Value::Of(number);
    if (precision < -18) return Value::Of(int64_t{0});
    int64_t unit = 1;
    for (int64_t i = 0; i < -precision; ++i) unit *= 10;
    const int64_t rest = ((number % unit) + unit) % unit;
    const Value base = ApplyBinary("-", value, Value::Of(rest), budget);
    const bool odd = (*base.integer() / unit) % 2 != 0;
    const bool up = rest > unit - rest || (rest == unit - rest && odd);
    return up ? ApplyBinary("+", base, Value::Of(unit), budget) : base;
  }
  const double number = *value.number();
  if (!std::isfinite(number) || precision > 330) return value;
  if (precision < -310) return Value::Of(std::copysign(0.0, number));
  if (precision >= 0) {
    return Value::Of(std::strtod(FixedFloat(number, static_cast<int>(precision)).c_str(), nullptr));
  }
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return Value::Of(std::nearbyint(number / unit) * unit);
}

Value Round(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  RequireDefined(value);
  const int64_t precision = bound.Int(0, 0);
  const std::string method = bound.Text(1, "common");
  if (!value.IsNumber())
    Fail("chat template: round expected a number, found '{}'", value.TypeName());
  if (method == "common") return RoundCommon(value, precision, interpreter.budget());
  if (method != "ceil" && method != "floor") {
    Fail("chat template: round expected the method common, ceil or floor, found {}", method);
  }
  Budget& budget = interpreter.budget();
  const Value unit = ApplyBinary("**", Value::Of(int64_t{10}), Value::Of(precision), budget);
  const double scaled = *ApplyBinary("*", value, unit, budget).number();
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return ApplyBinary("/", Value::Of(WholeOf(whole)), unit, budget);
}

Value Default(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool replace = value.IsUndefined() || (bound.Truth(1, false) && !value.Truthy());
  return replace ? bound.Or(0, Value::Of("")) : value;
}

Value Attr(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("attr", arguments, {"name"}, 1);
  const std::string& name = RequireText(bound[0], "attr");
  if (value.dict() != nullptr && !FindMethod(value, name)) {
    return Value::MakeUndefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return interpreter.GetAttribute(value, name);
}

Value ToJsonFilter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  Budget& budget = interpreter.budget();
  JsonStyle style;
  style.ensure_ascii = bound.Truth(0, false);
  style.sort_keys = bound.Truth(3, false);
  if (bound.GivenNotNone(1)) {
    style.item_separator = std::string(1, ',');
    if (bound[1].IsString()) {
      style.indent = bound[1].text();
    } else {
      const int64_t width = std::max<int64_t>(bound.Int(1, 0), 0);
      budget.ChargeText(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
  }
  if (bound.GivenNotNone(2)) {
    const std::vector<Value> separators = Collect(bound[2], budget);
    if (separators.size() != 2) Fail("chat template: tojson expected two separators");
    style.item_separator = RequireText(separators[0], "tojson");
    style.key_separator = RequireText(separators[1], "tojson");
  }
  return Value::Of(ToJson(value, style, budget));
}

constexpr Filter kTextFilters[] = {
    {"abs", Abs},
    {"attr", Attr},
    {"capitalize", MapText<Capitalize>},
    {"d", Default},
    {"default", Default},
    {"e", Escape},
    {"escape", Escape},
    {"float", Float},
    {"format", Format},
    {"indent", Indent},
    {"int", Int},
    {"lower", MapText<ToLower>},
    {"replace", Replace},
    {"round", Round},
    {"safe", Safe},
    {"string", String_},
    {"title", MapText<TitleWords>},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"upper", MapText<ToUpper>},
};

}  // namespace

std::span<const Filter> TextFilters() {
  return kTextFilters;
}

}  // namespace loopspec::jinja

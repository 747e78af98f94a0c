#include "jinja/repr.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/unicode.h"

namespace loopspec::jinja {
namespace {

void AppendRepr(std::string* out, const Value& value, Budget& budget);

void AppendItems(std::string* out, const std::vector<Value>& items, Budget& budget) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) *out += ", ";
    AppendRepr(out, items[i], budget);
  }
}

void AppendSequence(std::string* out, const Sequence& sequence, Budget& budget) {
  switch (sequence.kind) {
    case SequenceKind::kRange:
      *out += fmt::format("range({}, {}", sequence.start, sequence.stop);
      if (sequence.step != 1) *out += fmt::format(", {}", sequence.step);
      *out += ')';
      return;
    case SequenceKind::kTuple:
      *out += '(';
      AppendItems(out, sequence.items, budget);
      *out += sequence.items.size() == 1 ? ",)" : ")";
      return;
    case SequenceKind::kList:
      *out += '[';
      AppendItems(out, sequence.items, budget);
      *out += ']';
      return;
    default:
      *out += sequence.kind == SequenceKind::kDictKeys     ? "dict_keys(["
              : sequence.kind == SequenceKind::kDictValues ? "dict_values(["
                                                           : "dict_items([";
      AppendItems(out, sequence.items, budget);
      *out += "])";
  }
}

void AppendRepr(std::string* out, const Value& value, Budget& budget) {
  budget.Charge(1);
  budget.CheckText(out->size());
  const Budget::Level level(budget);
  if (const String* s = value.string()) {
    const std::string quoted = ReprText(s->text);
    budget.ChargeText(quoted.size());
    *out += s->markup ? "Markup(" + quoted + ")" : quoted;
  } else if (value.sequence() != nullptr) {
    AppendSequence(out, *value.sequence(), budget);
  } else if (const Dict* dict = value.dict()) {
    *out += '{';
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) *out += ", ";
      AppendRepr(out, dict->items[i].first, budget);
      *out += ": ";
      AppendRepr(out, dict->items[i].second, budget);
    }
    *out += '}';
  } else if (value.IsUndefined()) {
    *out += "Undefined";
  } else {
    *out += ToText(value, budget);
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void Write(const Value& value, int level) {
    budget_.Charge(1);
    const Budget::Level guard(budget_);
    budget_.CheckText(out_.size());
    if (value.IsString()) {
      WriteText(value.text());
    } else if (value.IsNone() || value.IsNumber()) {
      out_ += Scalar(value);
    } else if (value.dict() != nullptr) {
      WriteDict(*value.dict(), level);
    } else if (value.sequence() != nullptr && value.sequence()->kind <= SequenceKind::kTuple) {
      WriteList(value.sequence()->items, level);
    } else {
      Fail("chat template: Object of type {} is not JSON serializable", value.TypeName());
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  std::string Scalar(const Value& value) const {
    if (value.IsNone()) return "null";
    if (value.IsBool()) return value.boolean() ? "true" : "false";
    if (value.IsInt()) return fmt::format("{}", *value.integer());
    const double number = *value.number();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return ReprFloat(number);
  }

  void WriteText(std::string_view text) {
    budget_.ChargeText(text.size());
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      const size_t start = i;
      const char32_t c = NextCodePoint(text, &i);
      if (c < 0x80) {
        WriteAscii(static_cast<char>(c));
      } else if (!style_.ensure_ascii) {
        out_.append(text.substr(start, i - start));
      } else if (c < 0x10000) {
        out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
      } else {
        const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
      }
    }
    out_ += '"';
  }

  void WriteAscii(char c) {
    switch (c) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\f':
        out_ += "\\f";
        return;
      case '\b':
        out_ += "\\b";
        return;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out_ += c;
        }
    }
  }

  void NewLine(int level) {
    if (!style_.indent) return;
    budget_.ChargeText(style_.indent->size() * static_cast<size_t>(level));
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
  }

  void WriteList(const std::vector<Value>& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      Write(items[i], level + 1);
    }
    NewLine(level);
    out_ += ']';
  }

  std::string KeyText(const Value& key) const {
    if (key.IsString()) return key.text();
    if (key.IsNone() || key.IsNumber()) return Scalar(key);
    Fail("chat template: keys must be str, int, float, bool or None, not {}", key.TypeName());
  }

  void WriteDict(const Dict& dict, int level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [&](const auto* a, const auto* b) {
        return Less(a->first, b->first, budget_);
      });
    }
    out_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      WriteText(KeyText(items[i]->first));
      out_ += style_.key_separator;
      Write(items[i]->second, level + 1);
    }
    NewLine(level);
    out_ += '}';
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

std::string ReprFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string ReprText(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = NextCodePoint(text, &i);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out.append(text.substr(start, i - start));
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out += quote;
  return out;
}

std::string ToText(const Value& value, Budget& budget) {
  if (value.IsUndefined()) return "";
  if (value.IsString()) return value.text();
  if (value.IsNone()) return "None";
  if (value.IsBool()) return value.boolean() ? "True" : "False";
  if (value.IsInt()) return fmt::format("{}", *value.integer());
  if (value.IsFloat()) return ReprFloat(*value.number());
  if (const Object* object = value.object()) {
    const Budget::Level level(budget);
    return object->Repr(budget);
  }
  std::string out;
  AppendRepr(&out, value, budget);
  return out;
}

std::string Repr(const Value& value, Budget& budget) {
  std::string out;
  AppendRepr(&out, value, budget);
  return out;
}

std::string ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.Write(value, 0);
  return writer.Take();
}

}  // namespace loopspec::jinja

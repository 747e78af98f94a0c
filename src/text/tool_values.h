// Arguments that are written as they are and not as JSON: what a schema makes of a value's text.
//
// A text is read as the first of these that the schema allows and that it is: null, an integer, a
// number, a boolean, an object, an array; else it is a string, with every byte of it. So "5" is a
// number where the schema allows numbers and strings, and a string where it allows strings alone.
// Strings that must have a pattern or a format are written in quotes, as JSON has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace loopspec {

// In the order in which they are tried; values are bits of a set.
enum ValueType : unsigned {
  kNullValue = 1,
  kIntegerValue = 2,
  kNumberValue = 4,
  kBooleanValue = 8,
  kObjectValue = 16,
  kArrayValue = 32,
  kQuotedValue = 64,  // a string as JSON
  kStringValue = 128,
  kAnyValue = 191,  // all but kQuotedValue
};

struct PlainValue {
  unsigned types = 0;             // that its text may be read as
  std::vector<OrderedJson> json;  // schemas of what is written as JSON
  // Strings: these, and any others where `text` is set.
  std::vector<std::string> texts;
  struct Text {
    uint32_t min = 0;
    std::optional<uint32_t> max;  // characters
  };
  std::optional<Text> text;
  std::vector<std::string> ignored;  // keywords that nothing here enforces
};

// `root`: what references of the schema are relative to.
PlainValue PlainValueOf(const OrderedJson& schema, const OrderedJson& root);

// The JSON of a value that was written as `text`.
std::string ReadPlainValue(std::string_view text, unsigned types);

// The schema that a reference "#/..." names, or the schema itself. None: there is no such place.
const OrderedJson* Referred(const OrderedJson& schema, const OrderedJson& root);

}  // namespace loopspec

// Values as text: Python's str() and repr(), and json.dumps.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "jinja/value.h"

namespace loopspec::jinja {

std::string ToText(const Value& value, Budget& budget);  // str()
std::string Repr(const Value& value, Budget& budget);    // repr()
std::string ReprText(std::string_view text);
std::string ReprFloat(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level's white space
  std::string item_separator = ", ";  // with an indent the default is ","
  std::string key_separator = ": ";
};
// As Python's json.dumps writes it.
std::string ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace loopspec::jinja

#include "tools/parse_message.h"

#include <fmt/format.h>

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace loopspec::tools {
namespace {

bool IsNumber(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

bool IsWhole(const std::string& text) {
  return IsNumber(text) && text.find_first_of(".eEnN") == std::string::npos;
}

// "a, b or c" of "a,b,c".
std::string Listed(std::string_view members) {
  std::string out;
  while (true) {
    const size_t comma = members.find(',');
    out += members.substr(0, comma);
    if (comma == std::string_view::npos) return out;
    members.remove_prefix(comma + 1);
    out += members.find(',') == std::string_view::npos ? " or " : ", ";
  }
}

// Takes a text apart at the given pieces, in order: fields[i] stands before pieces[i], the last
// field behind them all. Nothing when a piece is not there.
std::optional<std::vector<std::string>> Fields(std::string_view text,
                                               std::initializer_list<std::string_view> pieces) {
  std::vector<std::string> fields;
  for (const std::string_view piece : pieces) {
    const size_t at = text.find(piece);
    if (at == std::string_view::npos) return std::nullopt;
    fields.emplace_back(text.substr(0, at));
    text.remove_prefix(at + piece.size());
  }
  fields.emplace_back(text);
  return fields;
}

std::string OutOfRange(const std::string& option, const std::string& value, const std::string& low,
                       const std::string& high) {
  if (value.empty()) return fmt::format("{} is empty, expected {} to {}", option, low, high);
  if (!IsNumber(value)) return fmt::format("{} {}: not a number", option, value);
  if (!IsWhole(value)) return fmt::format("{} {}: not a whole number", option, value);
  return fmt::format("{} {}: expected {} to {}", option, value, low, high);
}

}  // namespace

std::string ParseMessage(const std::string& said,
                         const std::function<bool(const std::string& option)>& takes_fractions) {
  if (const auto f = Fields(said, {"Could not convert: ", " = "}))
    return fmt::format("{} {}: not a {}", (*f)[1], (*f)[2],
                       takes_fractions((*f)[1]) ? "number" : "whole number");
  if (const auto f = Fields(said, {": Value ", " not in range ", " to "}))
    return OutOfRange((*f)[0], (*f)[1], (*f)[2], (*f)[3]);
  if (const auto f = Fields(said, {": ", " not in {", "}"})) {
    return fmt::format("{}{}: expected {}", (*f)[0],
                       (*f)[1].empty() ? std::string(" is empty") : " " + (*f)[1], Listed((*f)[2]));
  }
  if (const auto f = Fields(said, {": is empty"}))
    return fmt::format("{} is empty, expected a value", (*f)[0]);
  if (const auto f = Fields(said, {": 1 required ", " missing"}))
    return fmt::format("{} needs a value", (*f)[0]);
  if (const auto f = Fields(said, {": At Most 1 required but received "}))
    return fmt::format("{} is given {} times, expected once", (*f)[0], (*f)[1]);
  for (const char* phrase : {"The following argument was not expected: ",
                             "The following arguments were not expected: "}) {
    if (const auto f = Fields(said, {phrase}))
      return ((*f)[1].starts_with("-") ? "unknown option " : "unexpected argument ") + (*f)[1];
  }
  return said;
}

}  // namespace loopspec::tools

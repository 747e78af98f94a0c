#include "tools/option_value.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

namespace loopspec::tools {
namespace {

[[noreturn]] void Refuse(const OptionRule& rule, const std::string& text, const std::string& why) {
  throw BadValue(rule.name, fmt::format("{} {}: {}", rule.name, text, why));
}

// "a, b or c".
std::string Listed(const std::vector<std::string>& choices) {
  std::string out;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += i + 1 == choices.size() ? " or " : ", ";
    out += choices[i];
  }
  return out;
}

std::string Expected(const OptionRule& rule) {
  if (!rule.choices.empty()) return Listed(rule.choices);
  return rule.has_range ? fmt::format("{} to {}", rule.low, rule.high) : "a value";
}

void RefuseEmpty(const OptionRule& rule, const std::string& text) {
  if (text.empty())
    throw BadValue(rule.name, fmt::format("{} is empty, expected {}", rule.name, Expected(rule)));
}

template <typename T>
std::errc Parse(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return at == end ? error : std::errc::invalid_argument;
}

// Negative numbers as signed ones, the others as unsigned ones: so all of both have room.
template <typename T>
void ReadWhole(const OptionRule& rule, const std::string& text, T& value) {
  RefuseEmpty(rule, text);
  int64_t negative = 0;
  uint64_t positive = 0;
  const bool minus = text[0] == '-';
  const std::errc error = minus ? Parse(text, negative) : Parse(text, positive);
  if (error == std::errc::invalid_argument) Refuse(rule, text, "not a whole number");
  const bool below =
      minus ? negative < rule.low : rule.low > 0 && positive < static_cast<uint64_t>(rule.low);
  if (error != std::errc() || below || (!minus && positive > rule.high))
    Refuse(rule, text, fmt::format("expected {} to {}", rule.low, rule.high));
  value = minus ? static_cast<T>(negative) : static_cast<T>(positive);
}

template <typename T>
void ReadNumber(const OptionRule& rule, const std::string& text, T& value) {
  RefuseEmpty(rule, text);
  const std::errc error = Parse(text, value);
  if (error == std::errc::result_out_of_range) Refuse(rule, text, "too large or too small");
  if (error != std::errc()) Refuse(rule, text, "not a number");
}

}  // namespace

void ReadValue(const OptionRule& rule, const std::string& text, std::string& value) {
  if (!rule.may_be_empty) RefuseEmpty(rule, text);
  const auto& choices = rule.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end())
    Refuse(rule, text, "expected " + Listed(choices));
  value = text;
}

void ReadValue(const OptionRule& rule, const std::string& text, int& value) {
  ReadWhole(rule, text, value);
}
void ReadValue(const OptionRule& rule, const std::string& text, int64_t& value) {
  ReadWhole(rule, text, value);
}
void ReadValue(const OptionRule& rule, const std::string& text, uint64_t& value) {
  ReadWhole(rule, text, value);
}
void ReadValue(const OptionRule& rule, const std::string& text, float& value) {
  ReadNumber(rule, text, value);
}
void ReadValue(const OptionRule& rule, const std::string& text, double& value) {
  ReadNumber(rule, text, value);
}

void ReadValue(const OptionRule& rule, const std::string& text, bool& value) {
  const auto is = [&](const char* word) {
    return std::equal(text.begin(), text.end(), word, word + std::string_view(word).size(),
                      [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; });
  };
  if (is("true") || is("on") || is("yes") || is("1")) {
    value = true;
  } else if (is("false") || is("off") || is("no") || is("0")) {
    value = false;
  } else {
    Refuse(rule, text, "expected true or false");
  }
}

}  // namespace loopspec::tools

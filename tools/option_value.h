// Values of options: from texts to numbers, switches and texts among a few.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace loopspec::tools {

// What an option takes, besides the type of its variable.
struct OptionRule {
  std::string name;                  // as messages call it: --max-tokens
  bool may_be_empty = false;         // "" is a value
  std::vector<std::string> choices;  // the texts that it takes; none: any
  int64_t low = INT64_MIN;           // whole numbers: the least and the greatest
  uint64_t high = UINT64_MAX;
  bool has_range = false;  // low and high are its own, not its type's
};

// A value that an option does not take: "--max-tokens 0: expected 1 to 100". Who catches it may
// know where the value came from.
class BadValue : public Error {
 public:
  BadValue(std::string option, const std::string& message)
      : Error(message), option_(std::move(option)) {}
  const std::string& option() const { return option_; }

 private:
  std::string option_;  // OptionRule::name
};

// Each throws BadValue where `text` is not such a value or not one that the rule allows.
void ReadValue(const OptionRule& rule, const std::string& text, std::string& value);
void ReadValue(const OptionRule& rule, const std::string& text, int& value);
void ReadValue(const OptionRule& rule, const std::string& text, int64_t& value);
void ReadValue(const OptionRule& rule, const std::string& text, uint64_t& value);
void ReadValue(const OptionRule& rule, const std::string& text, float& value);
void ReadValue(const OptionRule& rule, const std::string& text, double& value);
// true, on, yes and 1; false, off, no and 0.
void ReadValue(const OptionRule& rule, const std::string& text, bool& value);

}  // namespace loopspec::tools

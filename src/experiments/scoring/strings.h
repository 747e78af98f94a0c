// Small operations on text that scoring and prompts share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loopspec::measure {

// Without the white space of Unicode at both ends, as Python's str.strip.
std::string_view Strip(std::string_view text);
// One pass from left to right, as Python's str.replace: what a replacement forms is left alone.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);
// The parts between separators, at least one.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator);
std::string AsciiLower(std::string_view text);
bool IsAsciiDigits(std::string_view text);  // not empty, digits only

}  // namespace loopspec::measure

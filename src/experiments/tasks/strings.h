// Small operations on text for benchmark files.
#pragma once

#include <string_view>
#include <vector>

namespace loopspec::experiments {

// Without ASCII white space at both ends.
std::string_view Strip(std::string_view text);
// The parts between separators, at least one.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator);

}  // namespace loopspec::experiments

// What somebody who mistyped a word may have meant.
#pragma once

#include <string>
#include <vector>

namespace loopspec::tools {

// The nearest of the known words: one or two letters apart, more in long words, or one that begins
// like it. Nothing where none is near.
std::string Nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace loopspec::tools

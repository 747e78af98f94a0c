// Token ids as users write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loopspec::tools {

// "1,2,3", "1 2 3", "[1, 2, 3]" or {"tokens": [1, 2, 3]}, as `tokenize` prints them. Throws Error
// that shows what was found instead of a number.
std::vector<int32_t> ParseTokenList(const std::string& text);

}  // namespace loopspec::tools

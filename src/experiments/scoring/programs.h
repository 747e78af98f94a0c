// From what a model wrote to a program that can be tested.
#pragma once

#include <string>
#include <string_view>

namespace loopspec::measure {

// The first code block of an answer, or what stands before a closing fence when the prompt opened
// the block, or the whole answer when there is no fence.
std::string ExtractCode(std::string_view answer);

}  // namespace loopspec::measure

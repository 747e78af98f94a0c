// Takes the calls of tools out of an answer, in each form of them.
//
// White space around calls is dropped. What may be the beginning of a mark is held back
// until it is known. A call that the answer's end cuts has what there is of its arguments; one that
// is cut before these begin is not told. A mark that no call follows is text.
#pragma once

#include <span>

#include "text/answer_parts.h"
#include "text/tool_format.h"

namespace loopspec {

MakeCallReader MakeToolReader(ToolFormat format, std::span<const Tool> tools);

}  // namespace loopspec

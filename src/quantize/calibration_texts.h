// The texts that int4 weights are fitted to where the user gives none, and those that the result is
// judged by. Written for this purpose: no test, benchmark or training text contains them.
#pragma once

#include <string>
#include <vector>

namespace loopspec {

// Stories, arithmetic word problems with answers, general prose and dialogue: a passage each, the
// kinds mixed, so that the first N passages are a fair sample of all.
std::vector<std::string> CalibrationPassages();

// Letters, notices, recipes, minutes, verse, program text: none is of a kind that
// CalibrationPassages() holds.
std::vector<std::string> JudgingPassages();

}  // namespace loopspec

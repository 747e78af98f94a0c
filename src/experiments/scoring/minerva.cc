#include "experiments/scoring/math_answer.h"
#include "experiments/scoring/math_expression.h"
#include "experiments/scoring/strings.h"

namespace loopspec::measure {

bool MinervaEquivalent(std::string_view answer, std::string_view reference) {
  const auto a = ParseLatex(Strip(answer), Dialect::kSympy);
  const auto b = ParseLatex(Strip(reference), Dialect::kSympy);
  return a && b && HaveEqualValues(*a, *b);
}

}  // namespace loopspec::measure

// Final answers of mathematics problems: found in a text, and compared by value. The decisions
// follow the Python library math-verify; tests/experiments/compare_math_verify.py lists where they
// differ.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loopspec::measure {

// The answer that a worked solution gives, as LaTeX or plain text, by the first of these that is
// found, and the last one of its kind: "final answer is X. I hope", "final answer is X" or \boxed,
// "answer: X", "answer X", any formula or number.
std::optional<std::string> ExtractMathAnswer(std::string_view text);

// Whether `answer` has the value of `gold`; not symmetric ("x = 5" is right for 5 and for x = 5).
// Numbers, fractions, percentages, roots and other constants, tuples, sets, intervals and unions,
// matrices, equations and inequalities, expressions with variables, words.
bool MathEquivalent(std::string_view gold, std::string_view answer);

// minerva_math's comparison of two normalised answers: the same value as expressions. Unlike
// MathEquivalent it knows no sets, intervals, tuples or matrices, and reads words as products of
// letters, as sympy's parse_latex does.
bool MinervaEquivalent(std::string_view answer, std::string_view reference);

}  // namespace loopspec::measure

// A mathematical answer as a tree, its reading from LaTeX, and its value.
#pragma once

#include <complex>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/scoring/rational.h"

namespace loopspec::measure {

struct Expression {
  enum class Kind {
    kNumber,     // value, `decimal` when it was written with a point
    kSymbol,     // name; e, i, \pi and \infty are constants with these names
    kText,       // name: words
    kSum,        // arguments
    kProduct,    // arguments
    kPower,      // base, exponent
    kFunction,   // name and arguments: "sin", "log" (value, base), "abs", "factorial", "binom",
                 // "floor", "ceil", "base" (digits, base)
    kPlusMinus,  // a, b: both a + b and a - b; `name` "-" for minus-plus
    kPercent,    // argument
    kList,       // a, b, c without brackets
    kTuple,      // (a, b)
    kSet,        // {a, b}
    kInterval,   // ends; at least one bracket is square, or one end is infinite
    kUnion,      // of sets or intervals
    kMatrix,     // rows x columns arguments, row by row
    kRelation,   // arguments with name[i] between i and i + 1: '=', '<', '>', 'l' (<=), 'g' (>=),
                 // '!', 'e' (element of)
  };
  Kind kind = Kind::kNumber;
  std::string name;
  std::optional<Rational> value;  // kNumber: exact when it fits
  long double number = 0;         // kNumber
  bool decimal = false;
  bool left_open = false, right_open = false;
  size_t columns = 0;
  std::vector<Expression> arguments;
};

// Without what does not change the value: dollar signs, spacing, \left and \right, degrees, units
// at the end; one spelling for what has several.
std::string NormalizeLatex(std::string_view latex);

// What a reader knows.
enum class Dialect {
  kAnswers,  // everything above
  // What sympy's parse_latex knows, which lm-evaluation-harness uses: no collections, every letter
  // a variable, unknown commands variables too, and the rest ignored after what it understands.
  kSympy,
};

// `latex` normalised. Nothing when it is not understood (kAnswers: as a whole).
std::optional<Expression> ParseLatex(std::string_view latex, Dialect dialect = Dialect::kAnswers);

using Complex = std::complex<long double>;
using Assignment = std::map<std::string, Rational>;

// Names of variables; constants are none.
void CollectSymbols(const Expression& expression, std::set<std::string>& names);

// Nothing when the value is irrational, complex, undefined or does not fit.
std::optional<Rational> EvaluateExactly(const Expression& expression, const Assignment& symbols);
// Nothing for what has no number as its value.
std::optional<Complex> Evaluate(const Expression& expression, const Assignment& symbols);

// Equal at several points for the variables, exactly where both values are fractions.
bool HaveEqualValues(const Expression& a, const Expression& b);

}  // namespace loopspec::measure

// Python's two ways of formatting text: the % operator and str.format.
#pragma once

#include <string>

#include "jinja/value.h"

namespace loopspec::jinja {

class Interpreter;

// left % right, `left` a string.
Value FormatPercent(const Value& left, const Value& right, Budget& budget);
// text.format(arguments).
std::string FormatBraces(Interpreter& interpreter, std::string_view text,
                         const Arguments& arguments);
// `digits` after the point, as %f rounds: to the nearest, ties to even.
std::string FixedFloat(double value, int digits);

}  // namespace loopspec::jinja

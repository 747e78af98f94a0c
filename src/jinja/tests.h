// jinja2's tests: what may follow `is`.
#pragma once

#include <string_view>

#include "jinja/value.h"

namespace loopspec::jinja {

class Interpreter;

using TestFunction = bool (*)(Interpreter&, const Value&, const Arguments&);

// Null when there is no such test.
TestFunction FindTest(std::string_view name);
bool IsKnownTest(std::string_view name);

}  // namespace loopspec::jinja

// The methods of strings, lists and dictionaries that templates may call.
#pragma once

#include <optional>
#include <string_view>

#include "jinja/value.h"

namespace loopspec::jinja {

class Interpreter;

using MethodFunction = Value (*)(Interpreter&, const Value& self, const Arguments&);

// Null when strings have no such method.
MethodFunction FindStringMethod(std::string_view name);

// A method bound to its value; nothing when the value's type has no such method. The methods that
// change a list or dictionary give an undefined value, whose call fails: templates must not change
// what they are given.
std::optional<Value> FindMethod(const Value& self, std::string_view name);

// A callable made of a function; `self` is handed to it with each call.
Value MakeFunction(std::string_view name, MethodFunction function, Value self = Value());

}  // namespace loopspec::jinja

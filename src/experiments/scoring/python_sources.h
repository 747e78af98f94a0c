// The Python files of python/, as they were when this program was built.
#pragma once

#include <string>
#include <string_view>

namespace loopspec::measure {

// Throws Error when there is no file of that name.
std::string PythonSource(std::string_view name);

}  // namespace loopspec::measure

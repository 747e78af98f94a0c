// What goes wrong, as Python's exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

#include "base/error.h"

namespace loopspec::python {

// The engine was closed, or this is not its process.
class ClosedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
class ForkedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A message of the engine with the names that arguments have in Python.
std::string InPython(const Error& error);

// Adds QueueFull to the module, and says which exception is which: what a caller can mend is a
// ValueError, a missing file a FileNotFoundError, everything else a RuntimeError.
void RegisterErrors(nanobind::module_& module);

}  // namespace loopspec::python

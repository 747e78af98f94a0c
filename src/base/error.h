// Errors a user can cause and mend: a bad file, config, prompt or request.
// One sentence that names the thing, what was found and what was expected; the tools print it and
// exit with 2.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace loopspec {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file or folder that was named is not there.
class FileMissing : public Error {
 public:
  using Error::Error;
};

// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace loopspec

// Thrown when a request is sound but too many others wait already: try again later.
#pragma once

#include <stdexcept>

namespace loopspec {

class QueueFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace loopspec

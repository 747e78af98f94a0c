// How much of a text may be made into tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace loopspec {

struct EncodeLimits {
  // A text of more tokens ends in TooManyTokens. One whose length in bytes shows that it must have
  // more is refused before any token is made.
  int64_t max_tokens = INT64_MAX;
  // Asked now and then, every few milliseconds at the most: true ends it with EncodeCancelled.
  std::function<bool()> cancelled = {};
};

class TooManyTokens : public std::runtime_error {
 public:
  TooManyTokens(const std::string& message, int64_t at_least)
      : std::runtime_error(message), at_least_(at_least) {}
  int64_t at_least() const { return at_least_; }  // tokens that the text has, or more

 private:
  int64_t at_least_;
};

class EncodeCancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace loopspec

// How much of a text may be made into tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace loopspec {

struct EncodeLimits {
  // More are not made: TooManyTokens. Where the vocabulary allows no text of so many bytes to have
  // fewer, none is.
  int64_t max_tokens = INT64_MAX;
  // Asked now and then, every few milliseconds at the most: true ends it with EncodeCancelled.
  std::function<bool()> cancelled = {};
};

class TooManyTokens : public std::runtime_error {
 public:
  TooManyTokens(const std::string& message, int64_t at_least)
      : std::runtime_error(message), at_least_(at_least) {}
  int64_t at_least() const { return at_least_; }  // so many the text has

 private:
  int64_t at_least_;
};

class EncodeCancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace loopspec

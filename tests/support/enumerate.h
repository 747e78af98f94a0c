// Walks through every outcome of a random computation: run it again and again, each time down
// another path of choices, until Next() says that all have been seen. The weights of the paths sum
// to one. A walk may begin behind a given path: then its choices are made again each time, and only
// what follows is varied and weighed.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace loopspec {

class Enumerator {
 public:
  struct Step {
    size_t taken, count;
  };
  using Path = std::vector<Step>;

  explicit Enumerator(Path start = {}) : script_(std::move(start)), start_(script_.size()) {}

  // One of the outcomes of positive probability; the path's weight is multiplied with it.
  int Choose(std::span<const double> probabilities) {
    positive_.clear();
    for (size_t i = 0; i < probabilities.size(); ++i) {
      if (probabilities[i] > 0.0) positive_.push_back(static_cast<int>(i));
    }
    LOOPSPEC_CHECK(!positive_.empty());
    if (at_ == script_.size()) script_.push_back({0, positive_.size()});
    LOOPSPEC_CHECK(script_[at_].count ==
                   positive_.size());  // the computation must be a function of its choices
    const int outcome = positive_[script_[at_].taken];
    if (at_++ >= start_) weight_ *= probabilities[static_cast<size_t>(outcome)];
    return outcome;
  }

  double weight() const { return weight_; }
  // The choices made since the last Next().
  Path path() const {
    return {script_.begin(), script_.begin() + static_cast<std::ptrdiff_t>(at_)};
  }

  // Turns to the next path, in depth-first order; false when there is none left.
  bool Next() {
    script_.resize(at_);
    at_ = 0;
    weight_ = 1.0;
    while (script_.size() > start_ && ++script_.back().taken == script_.back().count)
      script_.pop_back();
    return script_.size() > start_;
  }

 private:
  Path script_;
  size_t start_;
  size_t at_ = 0;
  double weight_ = 1.0;
  std::vector<int> positive_;
};

}  // namespace loopspec

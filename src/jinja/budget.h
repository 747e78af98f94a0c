// What one rendering may spend. Templates come with models from strangers: a hostile one has to end
// in an Error, soon, whatever it loops over, recurses into or multiplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace loopspec::jinja {

struct Limits {
  int64_t steps =
      5'000'000;  // evaluated nodes, loop rounds, and work in units of ~64 bytes or 16 items
  size_t text_bytes = 64u << 20;  // the longest single string, the output included
  size_t range_items = 100'000;   // what jinja2's sandbox allows range() to span
  int depth = 800;  // nested evaluation: expressions, statements, macros, recursive loops
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_left_(limits.steps) {}

  void Charge(int64_t steps) {
    steps_left_ -= steps;
    if (steps_left_ < 0) Fail("chat template: gave up after {} steps", limits_.steps);
  }
  // Of a string that grows.
  void CheckText(size_t bytes) const {
    if (bytes > limits_.text_bytes) {
      Fail("chat template: a text of {} bytes is over the limit of {}", bytes, limits_.text_bytes);
    }
  }
  // Call before making a string of that size, so that the memory is never asked for.
  void ChargeText(size_t bytes) {
    CheckText(bytes);
    Charge(static_cast<int64_t>(bytes / 64));
  }
  // Call before making a sequence of that many items.
  void ChargeItems(size_t items) {
    if (items > limits_.text_bytes / 16)
      Fail("chat template: a sequence of {} items is too long", items);
    Charge(static_cast<int64_t>(items / 16));
  }

  const Limits& limits() const { return limits_; }

  // Holds one level of nesting for as long as it lives.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.depth_ > budget_.limits_.depth) {
        --budget_.depth_;
        Fail("chat template: nested deeper than {} levels", budget_.limits_.depth);
      }
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  Limits limits_;
  int64_t steps_left_;
  int depth_ = 0;
};

}  // namespace loopspec::jinja

// What the sampling code works with: the public parameters, and counts of a prefix's tokens.
#pragma once

#include <cstdint>

#include "loopspec/sampling.h"

namespace loopspec {

// How often a token stands in a prefix.
struct TokenCount {
  int32_t token = 0;
  int32_t generated = 0;  // times among the decoded tokens
};

}  // namespace loopspec

// Decoding specs as they are named on the command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "loopspec/request.h"

namespace loopspec::tools {

// ar | lookup | loopspec[:DEPTHS], each followed by any of
//   @ROWS   rows of a step at most        /gN       groups of N generations
//   /early  begin children on guesses     /noearly  do not
//   /paper  the paper's schedule: every live branch in every step, nothing withheld
//   /gated /residual /non-residual        what later proposals are drawn from
//   /cascade /coupled                     how sampled text is drawn
// such as loopspec:2,8@16/g3. What is not said is chosen by cost, or as the other options say.
struct DecodeSpec {
  std::string name;
  std::vector<int> depths;
  int max_rows = 0;
  int group = 0;
  bool guesses = false;
  bool every_branch = false;
  std::optional<LaterProposal> later = {};
  std::optional<Sampler> sampler = {};

  // `request` names its sampling.
  void Apply(Request& request) const;
};

// Throws Error. `option` names where the text came from.
// `defaults`: the depths of "loopspec" alone.
DecodeSpec ParseDecodeSpec(const std::string& text, int recurrence, const std::string& option,
                           const std::vector<int>& defaults);

}  // namespace loopspec::tools

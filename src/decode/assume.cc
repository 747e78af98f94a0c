#include "decode/assume.h"

namespace loopspec {
namespace {

constexpr uint32_t kAssumePurpose = 1u << 29;

// Which proposal is accepted at this position; the number of rates when none is.
int Outcome(const AssumedAcceptance& assume, const DrawKey& key) {
  double u = Uniform(key, kAssumePurpose);
  int outcome = 0;
  for (const double rate : assume.rates) {
    if (u < rate) break;
    u -= rate;
    ++outcome;
  }
  return outcome;
}

}  // namespace

void AssumeOutcome(const AssumedAcceptance& assume, const DrawKey& key, int proposal,
                   std::span<const Proposal> recorded, int vocab, Decision& decision) {
  const int outcome = Outcome(assume, key);
  if (proposal < 0) {
    decision.accepted = -1;
    for (size_t i = 0; i < recorded.size(); ++i) {
      if (recorded[i].index != outcome) continue;
      decision.accepted = static_cast<int32_t>(i);
      decision.token = recorded[i].token;
    }
  } else if (proposal > 0) {
    decision.gate_open = proposal == outcome;
    if (!decision.gate_open) {
      decision.token = -1;
    } else if (decision.token < 0) {
      decision.token = (recorded[0].token + 1) % vocab;  // any token will do
    }
  }
}

}  // namespace loopspec

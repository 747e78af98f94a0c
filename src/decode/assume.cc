#include "decode/assume.h"

#include <algorithm>

namespace loopspec {
namespace {

constexpr uint32_t kOutcomePurpose = 1u << 29;
constexpr uint32_t kGatePurpose = kOutcomePurpose + 1;  // + the proposal
constexpr uint32_t kGuessPurpose = kOutcomePurpose + 64;

// Which proposal is accepted at this position; the number of rates when none is.
int Outcome(const AssumedAcceptance& assume, const DrawKey& key) {
  double u = Uniform(key, kOutcomePurpose);
  int outcome = 0;
  for (const double rate : assume.rates) {
    if (u < rate) break;
    u -= rate;
    ++outcome;
  }
  return outcome;
}

bool GateOpens(const AssumedAcceptance& assume, const DrawKey& key, int proposal, int outcome) {
  if (outcome == proposal) return true;
  if (assume.gate <= 0) return false;
  double before = 0, after = 1;
  for (size_t i = 0; i < assume.rates.size(); ++i) {
    if (static_cast<int>(i) < proposal) before += assume.rates[i];
    if (static_cast<int>(i) <= proposal) after -= assume.rates[i];
  }
  const double own = assume.rates[static_cast<size_t>(proposal)];
  const double chance =
      outcome > proposal
          ? 0.5
          : (before > 0 ? std::max(0.0, assume.gate - own - 0.5 * after) / before : 0);
  return Uniform(key, kGatePurpose + static_cast<uint32_t>(proposal)) < chance;
}

// The token that proposal number `which` drafts at a position; one more is the fallback's.
int32_t TokenOf(const DrawKey& key, int which, int vocab) {
  return static_cast<int32_t>((key.position + static_cast<uint32_t>(which)) %
                              static_cast<uint32_t>(vocab));
}

}  // namespace

void AssumeOutcome(const AssumedAcceptance& assume, const DrawKey& key, int proposal,
                   std::span<const Proposal> recorded, int vocab, Decision& decision) {
  const int outcome = Outcome(assume, key);
  if (proposal >= 0) {
    decision.gate_open = proposal == 0 || GateOpens(assume, key, proposal, outcome);
    decision.token = decision.gate_open ? TokenOf(key, proposal, vocab) : -1;
    return;
  }
  decision.accepted = -1;
  decision.token = TokenOf(key, static_cast<int>(assume.rates.size()), vocab);
  for (size_t i = 0; i < recorded.size(); ++i) {
    if (recorded[i].index != outcome) continue;
    decision.accepted = static_cast<int32_t>(i);
    decision.token = recorded[i].token;
  }
}

Guess AssumeGuess(const AssumedAcceptance& assume, const DrawKey& key, int vocab) {
  if (Uniform(key, kGuessPurpose) >= assume.guess_offered) return {};
  // What the first proposal will draft, or a token that nobody drafts.
  const bool right = Uniform(key, kGuessPurpose + 1) < assume.guess_right;
  const int which = right ? 0 : static_cast<int>(assume.rates.size()) + 1;
  return {TokenOf(key, which, vocab), GuessRates::kLongestMatch};
}

}  // namespace loopspec

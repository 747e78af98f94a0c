// The heart of losslessness: residual, gated proposals and cascade verification, as pure functions.
//
// Distributions are arrays over the vocabulary that sum to one. `Team` walks them (team.h); `Draw`
// makes the random choices: Accept(j, a) is true with probability a, Choose(purpose, n, weight,
// total) returns i with probability weight(i) / total. Written once for host and device; the tests
// enumerate every choice to prove the result exact.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"
#include "sampling/params.h"

namespace loopspec {

inline constexpr int kMaxProposals = 8;

// A residual of less mass than this counts as none. Differences of float probabilities may be as
// small as 1e-45, and one over such a mass is infinite; what is lost is far below their rounding.
inline constexpr double kLeastMass = 1e-30;

// A draft on record: the token and the distribution it was drawn from.
template <typename Real>
struct Recorded {
  int32_t token;
  const Real* q;
};

// Random choices of one decision, from the counter-based generator.
template <typename Team>
struct PhiloxDraw {
  DrawKey key;
  Team team;

  LOOPSPEC_HD bool Accept(int proposal, double probability) {
    return Uniform(key, AcceptPurpose(proposal)) < probability;
  }
  template <typename F>
  LOOPSPEC_HD int Choose(uint32_t purpose, int n, F weight, double total) {
    return team.Choose(n, weight, total, Uniform(key, purpose));
  }
};

// rho <- rho (-) q: the positive part of the difference, normalised (the paper's residual
// operator). False, with rho as it was, when there is no positive part.
template <typename Team, typename Real>
LOOPSPEC_HD bool Residual(Team& team, int vocab, Real* rho, const Real* q) {
  const auto positive = [=] LOOPSPEC_HD(int v) { return rho[v] > q[v] ? rho[v] - q[v] : Real{0}; };
  const double mass = team.Sum(vocab, positive);
  if (!(mass > kLeastMass)) return false;
  const Real scale = static_cast<Real>(1.0 / mass);
  team.ForEach(vocab, [=] LOOPSPEC_HD(int v) { rho[v] = positive(v) * scale; });
  return true;
}

// Takes the recorded drafts out of rho and normalises what is left. False when nothing is left.
template <typename Team, typename Real>
LOOPSPEC_HD bool Mask(Team& team, int vocab, Real* rho, const Recorded<Real>* recorded, int count) {
  const auto kept = [=] LOOPSPEC_HD(int v) {
    for (int i = 0; i < count; ++i) {
      if (recorded[i].token == v) return Real{0};
    }
    return rho[v];
  };
  const double mass = team.Sum(vocab, kept);
  if (!(mass > kLeastMass)) return false;
  const Real scale = static_cast<Real>(1.0 / mass);
  team.ForEach(vocab, [=] LOOPSPEC_HD(int v) { rho[v] = kept(v) * scale; });
  return true;
}

struct ProposalOutcome {
  int32_t token = -1;      // -1: no proposal at this depth
  bool gate_open = false;  // always true without a gate and for the first proposal
};

// Proposal number `index` (from 0) of a branch, given those recorded before. On entry rho is the
// readout p_dj; when a token is returned, rho is the distribution q_j it was drawn from.
template <typename Team, typename Draw, typename Real>
LOOPSPEC_HD ProposalOutcome Propose(Team& team, Draw& draw, int vocab, Real* rho,
                                    const Recorded<Real>* recorded, int count, int index,
                                    LaterProposal variant) {
  ProposalOutcome outcome;
  if (variant != LaterProposal::kNonResidual) {
    for (int i = 0; i < count; ++i) {
      const int32_t x = recorded[i].token;
      if (variant == LaterProposal::kGatedResidual && !(rho[x] < recorded[i].q[x])) return outcome;
      if (!Residual(team, vocab, rho, recorded[i].q)) return outcome;
    }
  }
  outcome.gate_open = true;
  // Behind the gate every earlier draft has lost its mass already.
  if (variant != LaterProposal::kGatedResidual && count > 0 &&
      !Mask(team, vocab, rho, recorded, count)) {
    return outcome;
  }
  outcome.token = draw.Choose(
      DraftPurpose(index), vocab, [=] LOOPSPEC_HD(int v) { return rho[v]; }, 1.0);
  return outcome;
}

struct Verdict {
  int32_t token = -1;
  int32_t accepted = -1;  // which recorded draft, -1: none, the token is the fallback
};

// Cascade verification: accept the first draft against p_R, the next against what is left, and so
// on; sample the rest when all are rejected. On entry rho is p_R; it is used up.
template <typename Team, typename Draw, typename Real>
LOOPSPEC_HD Verdict Verify(Team& team, Draw& draw, int vocab, Real* rho,
                           const Recorded<Real>* recorded, int count) {
  for (int j = 0; j < count; ++j) {
    const int32_t x = recorded[j].token;
    const double ratio = static_cast<double>(rho[x]) / static_cast<double>(recorded[j].q[x]);
    if (draw.Accept(j, ratio < 1.0 ? ratio : 1.0)) return {x, j};
    // No residual mass after a rejection can only be rounding: rho and q_j are equal. Then rho
    // stays.
    Residual(team, vocab, rho, recorded[j].q);
  }
  const int32_t token = draw.Choose(
      static_cast<uint32_t>(DrawPurpose::kSample), vocab, [=] LOOPSPEC_HD(int v) { return rho[v]; },
      1.0);
  return {token, -1};
}

}  // namespace loopspec

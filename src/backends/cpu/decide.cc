#include "backends/cpu/decide.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sampling/cascade.h"
#include "sampling/team.h"

namespace loopspec::cpu {
namespace {

// Greedy and coupled decisions: each readout has one choice, and drafts are compared with it. This
// is what Propose and Verify (sampling/cascade.h) make of distributions on one token: without
// residual and gate a proposal counts as let through even if its token was drafted before.
void DecideByChoice(const ReadoutPlan& plan, int choice, Decision& decision) {
  const RecordedDraft* end = plan.recorded + plan.recorded_count;
  const RecordedDraft* same = std::find_if(
      plan.recorded, end, [&](const RecordedDraft& draft) { return draft.token == choice; });
  if (plan.purpose == ReadoutPurpose::kVerify) {
    decision.token = choice;
    decision.accepted = same == end ? -1 : static_cast<int32_t>(same - plan.recorded);
  } else {
    if (same == end) decision.token = choice;
    decision.gate_open = same == end || plan.sampling->later == LaterProposal::kNonResidual;
  }
}

void DecideByCascade(const ReadoutPlan& plan, int cell, std::span<float> p,
                     const DistributionStore& store, Decision& decision) {
  Recorded<float> recorded[kMaxProposals];
  for (int i = 0; i < plan.recorded_count; ++i) {
    recorded[i] = {plan.recorded[i].token, store.At(cell, plan.recorded[i].proposal)};
  }
  SerialTeam team;
  PhiloxDraw<SerialTeam> draw{plan.draw, team};
  const int vocab = static_cast<int>(p.size());
  if (plan.purpose == ReadoutPurpose::kVerify) {
    const Verdict verdict = Verify(team, draw, vocab, p.data(), recorded, plan.recorded_count);
    decision.token = verdict.token;
    decision.accepted = verdict.accepted;
  } else {
    const ProposalOutcome outcome =
        Propose(team, draw, vocab, p.data(), recorded, plan.recorded_count, plan.proposal,
                plan.sampling->later);
    decision.token = outcome.token;
    decision.gate_open = outcome.gate_open;
  }
}

void AddLogprobs(std::span<const float> logits, int count, DecideScratch& scratch,
                 Decision& decision) {
  const double total = LogSumExp(logits);
  const auto logprob = [&](int32_t v) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(v)]) - total);
  };
  decision.logprob = logprob(decision.token);
  decision.top.clear();
  count = std::min<int>(count, static_cast<int>(logits.size()));
  if (count <= 0) return;
  scratch.ranking.resize(logits.size());
  std::iota(scratch.ranking.begin(), scratch.ranking.end(), 0);
  std::partial_sort(scratch.ranking.begin(), scratch.ranking.begin() + count, scratch.ranking.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (const int32_t v : std::span(scratch.ranking).first(static_cast<size_t>(count))) {
    if (std::isinf(logits[static_cast<size_t>(v)])) break;  // the mask allows fewer
    decision.top.push_back({v, logprob(v)});
  }
}

}  // namespace

Decision Decide(const ReadoutPlan& plan, int cell, std::span<const float> logits,
                const DistributionStore& store, DecideScratch& scratch) {
  const SamplingParams& params = *plan.sampling;
  Decision decision;
  decision.finite = AllFinite(logits);
  if (!decision.finite) return decision;
  if (plan.mask != nullptr) {
    scratch.masked.resize(logits.size());
    MaskLogits(logits, plan.mask->Words(), scratch.masked);
    logits = scratch.masked;
  }
  const bool adjusted = plan.counts_length > 0 || !params.bias.empty();
  if (params.greedy() && !adjusted) {
    DecideByChoice(plan, ArgMax(logits), decision);
  } else {
    // A draft's distribution stays where verification will look for it.
    const bool keep = params.needs_distributions() && plan.purpose == ReadoutPurpose::kPropose;
    scratch.values.resize(logits.size());
    const std::span<float> values(keep ? store.At(cell, plan.proposal) : scratch.values.data(),
                                  logits.size());
    std::copy(logits.begin(), logits.end(), values.begin());
    AdjustLogits(params, {plan.counts, static_cast<size_t>(plan.counts_length)}, values);
    if (params.greedy()) {
      DecideByChoice(plan, ArgMax(values), decision);
    } else {
      FilteredSoftmax(params, values, scratch.filter);
      if (params.sampler == Sampler::kCoupled) {
        DecideByChoice(plan, CoupledChoice(plan.draw, values), decision);
      } else {
        DecideByCascade(plan, cell, values, store, decision);
      }
    }
  }
  if (plan.purpose == ReadoutPurpose::kVerify && plan.logprobs >= 0)
    AddLogprobs(logits, plan.logprobs, scratch, decision);
  return decision;
}

}  // namespace loopspec::cpu

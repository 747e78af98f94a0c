// A backend over a FakeModel. It keeps tokens where a real one keeps keys and values: a row's
// prefix is read back from the pages and cells that the plan names, so a wrong chain, a lost commit
// or a reused cell changes the output. Decisions come from the real sampling code, with the random
// choices as the test wants them.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/decide.h"
#include "base/check.h"
#include "decode/depths.h"
#include "decode/loopspec.h"
#include "sampling/cascade.h"
#include "sampling/filters.h"
#include "sampling/team.h"
#include "tests/support/fake_model.h"

namespace loopspec {

// The masked law of a table: what is allowed, normalised; all of it alike where it has no mass,
// since a model gives every token some.
inline void MaskTable(std::span<const uint32_t> mask, FakeTable& table) {
  double total = 0;
  int allowed = 0;
  for (int v = 0; v < kFakeVocab; ++v) {
    if (!Allows(mask.data(), v)) table[static_cast<size_t>(v)] = 0;
    total += table[static_cast<size_t>(v)];
    allowed += Allows(mask.data(), v) ? 1 : 0;
  }
  for (int v = 0; v < kFakeVocab; ++v) {
    double& p = table[static_cast<size_t>(v)];
    p = total > 0 ? p / total : Allows(mask.data(), v) ? 1.0 / allowed : 0.0;
  }
}

class FakeBackend : public Backend {
 public:
  // Decides one readout: p is the readout's distribution, recorded the drafts before it; q_j has to
  // be left in p.
  using Decider = std::function<Decision(const ReadoutPlan& plan, std::span<const int32_t> prefix,
                                         double* p, const Recorded<double>* recorded)>;

  FakeBackend(FakeModel& model, const std::vector<int>& depths, int cells, int positions = 64)
      : model_(model), pages_(PagesFor(positions)) {
    options_.readout_depths = ReadoutDepths(depths, model.spec().recurrence);
    options_.cells = cells;
    page_tokens_.assign(static_cast<size_t>(pages_ * kPageSize), -1);
    cells_.resize(static_cast<size_t>(cells));
  }

  void set_decider(Decider decider) { decider_ = std::move(decider); }

  const ModelSpec& spec() const override { return model_.spec(); }
  const BackendOptions& options() const override { return options_; }
  BackendLimits limits() const override { return {.max_logprobs = kFakeVocab}; }
  std::string device() const override { return "fake"; }
  int pages() const override { return pages_; }
  int64_t page_bytes() const override { return kPageSize * sizeof(int32_t); }
  int64_t device_bytes() const override { return 0; }
  int64_t weight_bytes() const override { return 0; }

  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override {
    for (const PrefillPlan& part : parts) {
      for (size_t i = 0; i < part.tokens.size(); ++i)
        PageToken(part.sequence, part.start + static_cast<int32_t>(i)) = part.tokens[i];
    }
    return 0;
  }
  bool PrefillDone(Ticket) override { return true; }
  void WaitPrefill(Ticket) override {}
  bool prefill_equals_decode() const override { return true; }
  void Score(const PrefillPlan& plan, const LogitsSink&) override { Prefill(plan); }

  Ticket Submit(const StepPlan& plan) override {
    LOOPSPEC_CHECK(static_cast<int>(plan.rows.size()) <= options_.cells);
    for (const CommitPlan& commit : plan.commits) {
      const Cell& cell = cells_[static_cast<size_t>(commit.cell)];
      LOOPSPEC_CHECK(cell.position == commit.position && cell.depth == model_.spec().recurrence);
      PageToken(plan.sequences[static_cast<size_t>(commit.sequence)], commit.position) = cell.token;
    }
    for (const RowPlan& row : plan.rows) {
      Cell& cell = cells_[static_cast<size_t>(row.cell)];
      if (row.depth == 0) cell = {row.token, row.position, 0, {}};
      // Whoever advances must be who it was.
      LOOPSPEC_CHECK(cell.token == row.token && cell.position == row.position &&
                     cell.depth == row.depth);
      cell.depth += plan.recurrences;
      LOOPSPEC_CHECK(cell.depth <= model_.spec().recurrence);
    }
    result_.decisions.clear();
    for (const ReadoutPlan& readout : plan.readouts)
      result_.decisions.push_back(Decide(plan, readout));
    return 0;
  }
  const StepResult& Wait(Ticket) override { return result_; }
  void SavePages(std::span<const int32_t> pages, std::byte* to) override {
    for (size_t i = 0; i < pages.size(); ++i)
      std::memcpy(to + i * kPageSize * sizeof(int32_t), Page(pages[i]),
                  kPageSize * sizeof(int32_t));
  }
  void LoadPages(std::span<const int32_t> pages, const std::byte* from) override {
    for (size_t i = 0; i < pages.size(); ++i)
      std::memcpy(Page(pages[i]), from + i * kPageSize * sizeof(int32_t),
                  kPageSize * sizeof(int32_t));
  }
  void CopyPage(int32_t from, int32_t to) override { std::copy_n(Page(from), kPageSize, Page(to)); }
  void ReadLogits(int, std::span<float>) override { LOOPSPEC_CHECK(false); }

 private:
  struct Cell {
    int32_t token = -1, position = -1, depth = -1;
    std::array<FakeTable, kMaxProposals> proposals;
  };

  int32_t* Page(int32_t page) {
    return page_tokens_.data() + static_cast<size_t>(page) * kPageSize;
  }
  int32_t& PageToken(const SequencePlan& sequence, int32_t position) {
    return page_tokens_[static_cast<size_t>(sequence.pages[position / kPageSize] * kPageSize +
                                            position % kPageSize)];
  }

  Decision Decide(const StepPlan& plan, const ReadoutPlan& readout) {
    const RowPlan& row = plan.rows[static_cast<size_t>(readout.row)];
    Cell& cell = cells_[static_cast<size_t>(row.cell)];
    LOOPSPEC_CHECK(cell.depth == options_.readout_depths[static_cast<size_t>(readout.readout)]);
    LOOPSPEC_CHECK(readout.draw.position == static_cast<uint32_t>(row.position) + 1);
    prefix_.clear();
    for (int32_t at = 0; at < row.position - row.chain_length; ++at) {
      prefix_.push_back(PageToken(plan.sequences[static_cast<size_t>(row.sequence)], at));
    }
    for (int32_t i = 0; i < row.chain_length; ++i) {
      const Cell& ancestor =
          cells_[static_cast<size_t>(plan.chains[static_cast<size_t>(row.chain_begin + i)])];
      // An ancestor must not be behind: its keys and values of this depth are older than this step
      // or written in it.
      LOOPSPEC_CHECK(ancestor.position == row.position - row.chain_length + i &&
                     ancestor.depth >= cell.depth);
      prefix_.push_back(ancestor.token);
    }
    prefix_.push_back(row.token);
    Recorded<double> recorded[kMaxProposals];
    for (int i = 0; i < readout.recorded_count; ++i) {
      recorded[i] = {readout.recorded[i].token,
                     cell.proposals[static_cast<size_t>(readout.recorded[i].proposal)].data()};
    }
    FakeTable p = model_.At(cell.depth, prefix_);
    if (readout.mask != nullptr) MaskTable(readout.mask->Words(), p);
    Decision decision = decider_(readout, prefix_, p.data(), recorded);
    if (readout.purpose == ReadoutPurpose::kPropose)
      cell.proposals[static_cast<size_t>(readout.proposal)] = p;
    return decision;
  }

  FakeModel& model_;
  BackendOptions options_;
  int pages_;
  std::vector<int32_t> page_tokens_;
  std::vector<Cell> cells_;
  std::vector<int32_t> prefix_;
  Decider decider_;
  StepResult result_;
};

// The real Propose and Verify with random choices by `draw`.
template <typename Draw>
Decision DecideByCascade(const ReadoutPlan& plan, double* p, const Recorded<double>* recorded,
                         Draw& draw) {
  SerialTeam team;
  Decision decision;
  if (plan.purpose == ReadoutPurpose::kVerify) {
    const Verdict verdict = Verify(team, draw, kFakeVocab, p, recorded, plan.recorded_count);
    decision.token = verdict.token;
    decision.accepted = verdict.accepted;
  } else {
    const ProposalOutcome outcome =
        Propose(team, draw, kFakeVocab, p, recorded, plan.recorded_count, plan.proposal,
                plan.sampling->later);
    decision.token = outcome.token;
    decision.gate_open = outcome.gate_open;
  }
  return decision;
}

// The CPU backend's whole decision, from logits on, in float: greedy, coupled, filters and
// penalties.
inline FakeBackend::Decider DecideLikeTheCpu() {
  auto scratch = std::make_shared<cpu::DecideScratch>();
  auto store = std::make_shared<std::vector<float>>(kMaxProposals * kFakeVocab);
  return [scratch, store](const ReadoutPlan& plan, std::span<const int32_t>, double* p,
                          const Recorded<double>* recorded) {
    FakeTable table;
    std::copy_n(p, kFakeVocab, table.begin());
    const auto logits = FakeModel::Logits(table);
    const cpu::DistributionStore distributions{store->data(), kMaxProposals, kFakeVocab};
    for (int i = 0; i < plan.recorded_count; ++i) {
      std::copy_n(recorded[i].q, kFakeVocab, distributions.At(0, plan.recorded[i].proposal));
    }
    Decision decision = cpu::Decide(plan, 0, logits, distributions, *scratch);
    if (plan.purpose == ReadoutPurpose::kPropose)
      std::copy_n(distributions.At(0, plan.proposal), kFakeVocab, p);
    return decision;
  };
}

// One request from beginning to end; `alive` may end it early. Steps of one recurrence when
// `single` is set.
inline void Drive(FakeBackend& backend, LoopSpec& decoder, StepPlan& plan, bool single = false,
                  const bool* alive = nullptr) {
  backend.Prefill(decoder.Prefill());
  while (!decoder.finished() && (alive == nullptr || *alive)) {
    plan.Clear();
    plan.recurrences = single ? 1 : decoder.RecurrencesToReadout();
    decoder.Plan(plan.recurrences, plan);
    decoder.Absorb(backend.Wait(backend.Submit(plan)).decisions);
  }
}

}  // namespace loopspec

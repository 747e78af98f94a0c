// A row's logits depend on that row alone, bit for bit: alone or among others at any depth, its
// prefix in pages or in cells, prefilled in any pieces or decoded token by token. Scoring the whole
// text is the yardstick.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

#include "tests/support/driver.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

struct RowsCase {
  const char* model;
  int recurrence;  // 0: the config's
  std::vector<int> depths;
  ComputeMode compute;
  int threads = 1;
  const char* plan = nullptr;  // of keys; then texts are so long that it matters
};

using Logits = std::vector<float>;
using LogitsTable = std::map<std::pair<int32_t, int32_t>, Logits>;  // by position and readout

bool SameBits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A token on its way through the recurrences.
struct LiveRow {
  int sequence;
  int32_t cell, token, position;
  int32_t depth = 0;
  std::vector<int32_t> chain = {};  // cells of its uncommitted ancestors, oldest first
};

class RowIndependence : public testing::TestWithParam<RowsCase> {
 protected:
  static constexpr int kCells = 80;

  void SetUp() override {
    model_ = std::make_unique<Model>(LoadTestModel(GetParam().model, GetParam().recurrence));
    BackendOptions options;
    options.readout_depths = GetParam().depths;
    options.readout_depths.push_back(model_->spec.recurrence);
    options.compute = GetParam().compute;
    options.cells = kCells;
    options.kv_positions = 64 * 140;
    options.threads = GetParam().threads;
    if (GetParam().plan != nullptr) {
      options.kv_type = KvType::kLoops;
      options.key_plan = SpannedKeyPlan::Parse(GetParam().plan, recurrence());
      options.kv_positions = 64 * 600;
      begin_ = 2 * options.key_plan->span;
    }
    backend_ = MakeTestBackend(*model_, options);
    ledger_ = std::make_unique<KvLedger>(backend_->pages(), kCells, backend_->window_pages());
  }

  int recurrence() const { return model_->spec.recurrence; }

  int NewSequence(int64_t positions) {
    sequences_.push_back(std::make_unique<SequencePages>(*ledger_, positions));
    return static_cast<int>(sequences_.size()) - 1;
  }
  SequencePlan Plan(int sequence) const {
    return PlanOf(*sequences_[static_cast<size_t>(sequence)]);
  }

  // Scores tokens from `start` on and collects the logits.
  void Score(int sequence, std::span<const int32_t> tokens, size_t start, LogitsTable& table) {
    backend_->Score({Plan(sequence), static_cast<int32_t>(start), tokens.subspan(start)},
                    [&](int32_t position, int32_t readout, std::span<const float> logits) {
                      table[{position, readout}] = Logits(logits.begin(), logits.end());
                    });
  }

  // One step of all rows; the logits of whoever reaches a readout depth go to `table` when it is of
  // sequence `watched`.
  void Step(std::vector<LiveRow*> rows, std::vector<CommitPlan> commits, int recurrences,
            int watched, LogitsTable& table) {
    StepPlan plan;
    for (size_t s = 0; s < sequences_.size(); ++s)
      plan.sequences.push_back(Plan(static_cast<int>(s)));
    plan.commits = std::move(commits);
    plan.recurrences = recurrences;
    const auto& depths = backend_->options().readout_depths;
    for (LiveRow* row : rows) {
      plan.rows.push_back({row->sequence, row->cell, row->token, row->position, row->depth,
                           static_cast<int32_t>(plan.chains.size()),
                           static_cast<int32_t>(row->chain.size())});
      plan.chains.insert(plan.chains.end(), row->chain.begin(), row->chain.end());
      row->depth += recurrences;
      const auto it = std::find(depths.begin(), depths.end(), row->depth);
      if (it == depths.end()) continue;
      ReadoutPlan readout{};
      readout.row = static_cast<int32_t>(plan.rows.size()) - 1;
      readout.readout = static_cast<int32_t>(it - depths.begin());
      const bool last = row->depth == recurrence();
      readout.purpose = last ? ReadoutPurpose::kVerify : ReadoutPurpose::kPropose;
      readout.proposal = last ? -1 : readout.readout;
      readout.sampling = &greedy_;
      readout.draw.position = static_cast<uint32_t>(row->position) + 1;
      readout.logprobs = -1;
      plan.readouts.push_back(readout);
    }
    backend_->Wait(backend_->Submit(plan));
    Logits logits(static_cast<size_t>(model_->spec.vocab));
    for (size_t i = 0; i < plan.readouts.size(); ++i) {
      const RowPlan& row = plan.rows[static_cast<size_t>(plan.readouts[i].row)];
      if (row.sequence != watched) continue;
      backend_->ReadLogits(static_cast<int>(i), logits);
      table[{row.position, plan.readouts[i].readout}] = logits;
    }
  }

  // Every entry of `found` is in `expected` with the same bits.
  void ExpectSame(const LogitsTable& found, const LogitsTable& expected, const std::string& what) {
    ASSERT_FALSE(found.empty());
    for (const auto& [key, logits] : found) {
      ASSERT_TRUE(expected.contains(key));
      ASSERT_TRUE(SameBits(logits, expected.at(key)))
          << what << fmt::format(": position {} readout {}", key.first, key.second);
    }
  }

  // Tokens for [begin_, begin_ + count) and, before them, as many as let a plan of keys matter.
  std::vector<int32_t> Text(size_t count, uint32_t seed) const {
    return RandomTokens(model_->spec, begin_ + count, seed);
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<KvLedger> ledger_;
  std::vector<std::unique_ptr<SequencePages>> sequences_;
  size_t begin_ = 0;
  SamplingParams greedy_;
};

TEST_P(RowIndependence, PrefillInAnyPieces) {
  const std::vector<int32_t> text = Text(140, 1);
  LogitsTable whole;
  Score(NewSequence(std::ssize(text)), text, 0, whole);
  for (const size_t offset : {1, 2, 63, 64, 65, 127, 139}) {
    const size_t cut = begin_ + offset;
    const int sequence = NewSequence(std::ssize(text));
    backend_->Prefill({Plan(sequence), 0, std::span(text).first(cut)});
    LogitsTable rest;
    Score(sequence, text, cut, rest);
    ExpectSame(rest, whole, fmt::format("cut at {}", cut));
    sequences_.pop_back();
  }
}

// Several sequences in one submission, one of them in two parts, are what each is by itself.
TEST_P(RowIndependence, PrefillOfSeveralSequences) {
  const std::vector<int32_t> text = Text(100, 3);
  const std::vector<int32_t> other = Text(70, 4);
  LogitsTable whole, other_whole;
  Score(NewSequence(std::ssize(text)), text, 0, whole);
  Score(NewSequence(std::ssize(other)), other, 0, other_whole);
  const int first = NewSequence(std::ssize(text)), second = NewSequence(std::ssize(other));
  const std::vector<PrefillPlan> parts = {
      {Plan(first), 0, std::span(text).first(30)},
      {Plan(second), 0, std::span(other).first(begin_ + 66)},
      {Plan(first), 30, std::span(text).subspan(30, begin_ + 65)}};
  const Ticket ticket = backend_->SubmitPrefill(parts);
  backend_->WaitPrefill(ticket);
  EXPECT_TRUE(backend_->prefill_equals_decode());
  LogitsTable rest, other_rest;
  Score(first, text, begin_ + 95, rest);
  Score(second, other, begin_ + 66, other_rest);
  ExpectSame(rest, whole, "the first of two sequences");
  ExpectSame(other_rest, other_whole, "the second of two sequences");
}

TEST_P(RowIndependence, DecodedTokenByToken) {
  const std::vector<int32_t> text = Text(70, 2);
  const auto end = static_cast<int32_t>(text.size());
  LogitsTable whole;
  Score(NewSequence(end), text, 0, whole);
  const int sequence = NewSequence(end);
  backend_->Prefill({Plan(sequence), 0, std::span(text).first(begin_ + 60)});
  LogitsTable found;
  std::vector<CommitPlan> commits;
  for (int32_t position = end - 10; position < end; ++position) {
    LiveRow row{sequence, position % 3, text[static_cast<size_t>(position)], position};
    // In steps of one recurrence, or right to the next readout.
    while (row.depth < recurrence()) {
      int steps = 1;
      if (position % 2 == 0) {
        for (const int depth : backend_->options().readout_depths) {
          if (depth > row.depth) {
            steps = depth - row.depth;
            break;
          }
        }
      }
      Step({&row}, std::exchange(commits, {}), steps, sequence, found);
    }
    commits.push_back({row.cell, sequence, position});
  }
  ExpectSame(found, whole, "decoded");
  EXPECT_EQ(found.size(), 10 * backend_->options().readout_depths.size());
}

// Pages hold the same bytes whether a prompt or committed cells filled them.
TEST_P(RowIndependence, PagesOfStepsAreThoseOfAPrompt) {
  const std::vector<int32_t> text = Text(2 * kPageSize, 6);
  const auto end = static_cast<int32_t>(text.size());
  const int whole = NewSequence(end), sequence = NewSequence(end);
  backend_->Prefill({Plan(whole), 0, text});
  const int32_t begin = end - 2 * kPageSize + 31;
  backend_->Prefill({Plan(sequence), 0, std::span(text).first(static_cast<size_t>(begin))});
  LogitsTable ignored;
  for (int32_t position = begin; position < end; ++position) {
    LiveRow row{sequence, 5, text[static_cast<size_t>(position)], position};
    while (row.depth < recurrence()) Step({&row}, {}, 1, sequence, ignored);
    Step({}, {{row.cell, sequence, position}}, 1, sequence, ignored);
  }
  const auto bytes = static_cast<size_t>(backend_->page_bytes());
  for (size_t page = 0; page < text.size() / kPageSize; ++page) {
    std::vector<std::byte> a(bytes), b(bytes);
    backend_->SavePages(sequences_[static_cast<size_t>(whole)]->pages().subspan(page, 1), a.data());
    backend_->SavePages(sequences_[static_cast<size_t>(sequence)]->pages().subspan(page, 1),
                        b.data());
    EXPECT_TRUE(a == b) << "page " << page;
  }
}

// A pipeline as LoopSpec runs it: each token starts one recurrence after the one before, on a chain
// of live ancestors.
TEST_P(RowIndependence, ChainsOfLiveAncestors) {
  const std::vector<int32_t> text = Text(72, 3);
  const auto end = static_cast<int32_t>(text.size());
  LogitsTable whole;
  Score(NewSequence(end), text, 0, whole);
  const int sequence = NewSequence(end);
  backend_->Prefill({Plan(sequence), 0, std::span(text).first(begin_ + 61)});
  LogitsTable found;
  std::vector<LiveRow> rows;
  rows.reserve(11);
  for (int32_t position = end - 11; position < end; ++position) {
    LiveRow row{sequence, position - end + 40, text[static_cast<size_t>(position)], position};
    for (const LiveRow& before : rows) row.chain.push_back(before.cell);
    rows.push_back(row);
    std::vector<LiveRow*> live;
    for (LiveRow& one : rows) {
      if (one.depth < recurrence()) live.push_back(&one);
    }
    Step(live, {}, 1, sequence, found);
  }
  while (rows.back().depth < recurrence()) {
    std::vector<LiveRow*> live;
    for (LiveRow& one : rows) {
      if (one.depth < recurrence()) live.insert(live.begin(), &one);  // in another order
    }
    Step(live, {}, 1, sequence, found);
  }
  ExpectSame(found, whole, "pipelined");
  EXPECT_EQ(found.size(), 11 * backend_->options().readout_depths.size());
}

TEST_P(RowIndependence, AmongOthersAtMixedDepths) {
  const std::vector<int32_t> text = Text(46, 4);
  const auto last = static_cast<int32_t>(text.size()) - 1;
  LogitsTable whole;
  Score(NewSequence(last + 1), text, 0, whole);
  const int watched = NewSequence(last + 1);
  backend_->Prefill({Plan(watched), 0, std::span(text).first(begin_ + 45)});
  std::vector<LiveRow> everybody;
  for (int i = 0; i < 60; ++i) {
    const size_t length = static_cast<size_t>(i * 13 % 70) + (i % 8 == 0 ? begin_ : 0);
    const int sequence = NewSequence(static_cast<int64_t>(length) + 1);
    const std::vector<int32_t> prompt =
        RandomTokens(model_->spec, length + 1, static_cast<uint32_t>(100 + i));
    if (length > 0 && i % 4 == 0)
      backend_->Prefill({Plan(sequence), 0, std::span(prompt).first(length)});
    everybody.push_back({sequence, i, prompt.back(), static_cast<int32_t>(length)});
  }
  for (const int others : {0, 3, 17, 60}) {
    std::vector<LiveRow> crowd(everybody.begin(), everybody.begin() + others);
    LogitsTable found;
    LiveRow row{watched, kCells - 1, text.back(), last};
    // The crowd gets going first, at depths of its own; whoever is through starts again.
    for (int step = 0; step < 3 + recurrence(); ++step) {
      std::vector<LiveRow*> rows;
      for (size_t i = 0; i < crowd.size(); ++i) {
        if (static_cast<int>(i) % recurrence() > step) continue;
        if (crowd[i].depth == recurrence()) crowd[i].depth = 0;
        rows.push_back(&crowd[i]);
      }
      if (step >= 3)
        rows.insert(rows.begin() + static_cast<int64_t>(rows.size()) * (step % 3) / 2, &row);
      if (!rows.empty()) Step(rows, {}, 1, watched, found);
    }
    EXPECT_EQ(found.size(), backend_->options().readout_depths.size());
    ExpectSame(found, whole, fmt::format("among {} others", others));
  }
}

// Nor does the number of threads that share the work.
TEST_P(RowIndependence, AnyNumberOfThreads) {
  const std::vector<int32_t> text = Text(20, 5);
  LogitsTable expected;
  Score(NewSequence(std::ssize(text)), text, 0, expected);
  for (const int threads : {2, 3, 7}) {
    BackendOptions options = backend_->options();
    options.threads = threads;
    const auto other = MakeTestBackend(*model_, options);
    LogitsTable found;
    ScoreTokens(*other, text,
                [&](int32_t position, int32_t readout, std::span<const float> logits) {
                  found[{position, readout}] = Logits(logits.begin(), logits.end());
                });
    ExpectSame(found, expected, fmt::format("{} threads", threads));
  }
}

std::vector<RowsCase> Cases() {
  std::vector<RowsCase> cases;
  for (const ComputeMode compute : {ComputeMode::kF32, ComputeMode::kBF16}) {
    cases.push_back({"ouro-tiny-f32", 0, {1, 2}, compute, 1});
    cases.push_back({"ouro-tiny-gqa-bf16-sharded", 0, {1, 3}, compute, 1});
    cases.push_back({"raven-llama-tiny-f32", 0, {1, 3}, compute, 1});
    cases.push_back({"raven-olmo-tiny-bf16", 0, {2, 3}, compute, 3});
    cases.push_back({"nanbeige-tiny-f32", 0, {1}, compute, 1});
    cases.push_back({"nanbeige-tiny-skipnorm-bf16", 0, {1, 2}, compute, 2});
    cases.push_back({"huginn-tiny-f32", 0, {2, 4}, compute, 1});
    cases.push_back({"ifm fixed", 0, {1, 3}, compute, 2});
    cases.push_back({"ifm raw-injection", 0, {1, 2}, compute, 1});
    cases.push_back({"ifm orthoinj", 0, {2, 3}, compute, 2});
    cases.push_back({"ifm moe-huginn", 0, {2, 4}, compute, 2});
    cases.push_back({"ifm split-hl-x2", 3, {1, 2}, compute, 2});
    cases.push_back({"ouro-demo", 0, {1, 2}, compute, 2});
    cases.push_back({"raven-demo", 6, {1, 3}, compute, 2});
  }
  constexpr ComputeMode kF32 = ComputeMode::kF32, kBF16 = ComputeMode::kBF16;
  cases.push_back({"ouro-tiny-f32", 0, {1, 2}, kF32, 1, "int8,last"});
  cases.push_back({"ouro-tiny-gqa-bf16-sharded", 0, {1, 3}, kBF16, 2, "last"});
  cases.push_back({"raven-llama-tiny-f32", 0, {1, 3}, kF32, 1, "int8,last@128"});
  cases.push_back({"nanbeige-tiny-f32", 0, {1}, kBF16, 1, "last@64"});
  cases.push_back({"huginn-tiny-f32", 0, {2, 4}, kBF16, 3, "int8*2,last"});
  cases.push_back({"ifm split-hl-x2", 3, {1, 2}, kF32, 2, "int8,last"});
  cases.push_back({"ouro-demo", 0, {1, 2}, kBF16, 2, "int8*2,last"});
  cases.push_back({"raven-demo", 6, {1, 3}, kBF16, 2, "int8,last,int8,last"});
  cases.push_back({"ouro-tiny-f32", 0, {1, 2}, kF32, 1, "r6,r4,r3"});
  cases.push_back({"raven-llama-tiny-f32", 0, {1, 3}, kF32, 3, "r5,last,r2@128"});
  cases.push_back({"ouro-demo", 0, {1, 2}, kBF16, 2, "int8,r5,r4"});
  cases.push_back({"raven-demo", 6, {1, 3}, kBF16, 2, "int8,r7,last,r3,r8"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, RowIndependence, testing::ValuesIn(Cases()), [](const auto& param) {
  std::string name = param.param.model;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == ' '; }, '_');
  return name + (param.param.compute == ComputeMode::kBF16 ? "_bf16" : "_f32") +
         (param.param.plan == nullptr                     ? ""
          : std::strchr(param.param.plan, 'r') != nullptr ? "_by_residuals"
                                                          : "_by_plan");
});

}  // namespace
}  // namespace loopspec

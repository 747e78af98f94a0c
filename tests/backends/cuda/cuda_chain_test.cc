// Rows of one chain at the same depth in one step: each attends to keys that the step itself
// writes, in P, B and C. They give, bit for bit, what the same rows give one after another.
#include "cuda_rows.h"

namespace loopspec {
namespace {

class CudaChain : public CudaRows {
 protected:
  static constexpr int kLongest = 40;
  static constexpr int kFirstCell = 64;  // of the rows under test
  static constexpr int kOthers = 128;    // first cell of rows that have nothing to do with them

  // Logits of token i at depth d + 1, every token alone in its steps.
  void MakeReference() {
    Start(160);
    depths_ = backend_->spec().recurrence;
    std::vector<int32_t> chain;
    for (int i = 0; i < kLongest; ++i) {
      std::vector<std::vector<float>> of_token;
      for (int d = 0; d < depths_; ++d) {
        driver_->Begin(1);
        driver_->AddRow(i, Token(i), kPrompt + i, d, chain);
        driver_->AddReadout(0, d);
        driver_->Run();
        of_token.push_back(driver_->Logits(0));
      }
      expected_.push_back(std::move(of_token));
      chain.push_back(i);
    }
  }

  // Other keys and values in every plane of the cells, so that rows which read them too early show.
  void Scramble(int count) {
    for (int d = 0; d < depths_; ++d) {
      driver_->Begin(1);
      for (int i = 0; i < count; ++i) {
        const int row = driver_->AddRow(kFirstCell + i, Token(i + 77), kPrompt, d);
        driver_->AddReadout(row, d);
      }
      driver_->Run();
    }
  }

  // Token i of the chain as the step's next row, read out at depth `depth` + recurrences.
  void AddToken(int i, int depth) {
    std::vector<int32_t> chain;
    for (int c = 0; c < i; ++c) chain.push_back(kFirstCell + c);
    const int row = driver_->AddRow(kFirstCell + i, Token(i), kPrompt + i, depth, chain);
    driver_->AddReadout(row, depth + driver_->plan.recurrences - 1);
  }

  // Rows of no chain, half of them at depth 0 again and again.
  void AddOthers(int count, int d) {
    for (int i = 0; i < count; ++i)
      driver_->AddRow(kOthers + i, Token(i + 5), kPrompt, (d + i) % 2 == 0 ? d : 0);
  }

  // Readout `readout` of the last step is that of token i after `depth` recurrences.
  void Expect(int readout, int i, int depth, const std::string& where) {
    ASSERT_EQ(driver_->Logits(readout),
              expected_[static_cast<size_t>(i)][static_cast<size_t>(depth - 1)])
        << "token " << i << " at depth " << depth << ", " << where;
  }

  int depths_ = 0;
  std::vector<std::vector<std::vector<float>>> expected_;  // [token][depth - 1][vocab]
};

TEST_P(CudaChain, AdvancesTogetherAsOneByOne) {
  LOOPSPEC_NEEDS_GPU();
  MakeReference();
  for (const int count : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 25, 32, 33, 40}) {
    for (const int others : {0, 1, 3}) {
      Scramble(count);
      for (int d = 0; d < depths_; ++d) {
        driver_->Begin(1);
        AddOthers(others, d);
        for (int i = 0; i < count; ++i) AddToken(i, d);
        driver_->Run();
        for (int i = 0; i < count; ++i)
          ASSERT_NO_FATAL_FAILURE(
              Expect(i, i, d + 1,
                     std::to_string(count) + " rows and " + std::to_string(others) + " others"));
      }
    }
  }
}

// Tokens one by one, again and again.
TEST_P(CudaChain, IsTheSameEveryTime) {
  LOOPSPEC_NEEDS_GPU();
  MakeReference();
  const auto first = expected_;
  for (int again = 0; again < 3; ++again) {
    expected_.clear();
    MakeReference();
    ASSERT_EQ(expected_, first) << "time " << again;
  }
}

// The order of the rows in the step does not matter.
TEST_P(CudaChain, MayStandInAnyOrder) {
  LOOPSPEC_NEEDS_GPU();
  MakeReference();
  constexpr int kCount = 6;
  Scramble(kCount);
  for (int d = 0; d < depths_; ++d) {
    driver_->Begin(1);
    for (int i = kCount - 1; i >= 0; --i) AddToken(i, d);
    driver_->Run();
    for (int i = 0; i < kCount; ++i)
      ASSERT_NO_FATAL_FAILURE(Expect(kCount - 1 - i, i, d + 1, "youngest first"));
  }
}

// All recurrences in one step.
TEST_P(CudaChain, GoesThroughAllDepthsAtOnce) {
  LOOPSPEC_NEEDS_GPU();
  MakeReference();
  for (const int count : {2, 5, 8, 20}) {
    Scramble(count);
    driver_->Begin(depths_);
    for (int i = 0; i < count; ++i) AddToken(i, 0);
    driver_->Run();
    for (int i = 0; i < count; ++i)
      ASSERT_NO_FATAL_FAILURE(Expect(i, i, depths_, std::to_string(count) + " rows at once"));
  }
}

// Two groups of one chain, the older one a recurrence ahead; one and two recurrences a step.
TEST_P(CudaChain, AdvancesInGroupsAtDifferentDepths) {
  LOOPSPEC_NEEDS_GPU();
  MakeReference();
  for (const int per_step : {1, 2}) {
    // C attends to ancestors read out at the same depth, which groups one apart are not then.
    if (per_step == 2 && backend_->spec().coda_layers > 0) continue;
    for (const auto& [older, younger] : {std::pair(1, 1), {2, 3}, {4, 4}, {3, 9}, {16, 20}}) {
      Scramble(older + younger);
      const auto step = [&](int recurrences, int older_depth, int younger_depth) {
        driver_->Begin(recurrences);
        int rows = 0;
        if (older_depth >= 0) {
          for (int i = 0; i < older; ++i, ++rows) AddToken(i, older_depth);
        }
        if (younger_depth >= 0) {
          for (int i = older; i < older + younger; ++i, ++rows) AddToken(i, younger_depth);
        }
        driver_->Run();
        const std::string where = std::to_string(older) + " + " + std::to_string(younger) +
                                  " rows, " + std::to_string(recurrences) + " recurrences";
        for (int r = 0; r < rows; ++r) {
          const bool is_older = older_depth >= 0 && r < older;
          ASSERT_NO_FATAL_FAILURE(Expect(r, older_depth >= 0 ? r : older + r,
                                         (is_older ? older_depth : younger_depth) + recurrences,
                                         where));
        }
      };
      ASSERT_NO_FATAL_FAILURE(step(1, 0, -1));
      int d = 0;  // of the younger group
      for (; d + 1 + per_step <= depths_; d += per_step)
        ASSERT_NO_FATAL_FAILURE(step(per_step, d + 1, d));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaChain, testing::Range(0, kRowModels));

}  // namespace
}  // namespace loopspec

// A row's result depends on that row alone, bit for bit: whatever shares the step with it, and
// wherever its prefix lies.
#include "cuda_rows.h"
#include "backends/cuda/program/wide_work.h"

#include <cmath>

namespace loopspec {
namespace {

// The row under test (cell 0) through all depths, alone or among `others` rows at mixed depths; its
// logits at each depth.
TEST_P(CudaRows, DoNotDependOnTheirCompany) {
  LOOPSPEC_NEEDS_GPU();
  Start(256);
  const int depths = backend_->spec().recurrence;
  std::vector<std::vector<float>> alone;
  for (const int others : {0, 1, 3, 6, 8, 17, 23, 24, 31, 32, 40, 63, 64, 127, 128, 191, 255}) {
    for (int d = 0; d < depths; ++d) {
      driver_->Begin(1);
      // The others start over whenever they are done; before the first step they have no state, so
      // they begin at depth 0.
      const int before = others / 2;
      const auto add_others = [&](int begin, int end) {
        for (int i = begin; i < end; ++i) {
          const int depth = d == 0 ? 0 : (d + i) % 2 == 0 ? d : 0;
          driver_->AddRow(1 + i, Token(i + 1), kPrompt, depth);
        }
      };
      add_others(0, before);
      const int row = driver_->AddRow(0, Token(0), kPrompt, d);
      add_others(before, others);
      driver_->AddReadout(row, d);
      if (others > 1)
        driver_->AddReadout(row == 0 ? 1 : 0, driver_->plan.rows[row == 0 ? 1 : 0].depth);
      driver_->Run();
      const std::vector<float> logits = driver_->Logits(0);
      if (others == 0) {
        alone.push_back(logits);
      } else {
        ASSERT_EQ(logits, alone[static_cast<size_t>(d)])
            << "depth " << d + 1 << " among " << others << " others";
      }
    }
  }
}

// Every row of a step, and every readout, as if it were alone: numbers of rows around those at
// which kernels, tiles and groups of rows change.
TEST_P(CudaRows, HaveTheBitsOfSingleRowsInAnyNumber) {
  LOOPSPEC_NEEDS_GPU();
  Start(256);
  const int depths = backend_->spec().recurrence;
  const auto step = [&](int first, int rows) {
    driver_->Begin(depths);
    for (int i = 0; i < rows; ++i) driver_->AddRow(first + i, Token(first + i), kPrompt, 0);
    for (int i = 0; i < rows; ++i) driver_->AddReadout(i, depths - 1);
    driver_->Run();
  };
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 256; ++i) {
    step(i, 1);
    alone.push_back(driver_->Logits(0));
  }
  const auto check = [&](const char* how, int shape) {
    for (const int rows :
         {1, 2, 9, 32, 33, 48, 63, 64, 65, 96, 97, 127, 128, 129, 160, 192, 193, 255, 256}) {
      step(0, rows);
      for (int i = 0; i < rows; ++i) {
        ASSERT_EQ(driver_->Logits(i), alone[static_cast<size_t>(i)])
            << "row " << i << " of " << rows << ", " << how << " " << shape;
      }
    }
  };
  backend_->SetWideFrom(1);
  for (int shape = -1; shape < cuda::kWideShapeCount; ++shape) {
    if (shape >= 0 && !backend_->HasWideShape(shape)) continue;
    backend_->SetWideShape(shape);
    check("a kernel for each operation, tile shape", shape);
  }
  backend_->SetWideFrom(1 << 30);
  check("a pass for every 32 rows", -1);
}

// After so many positions that combining takes several rounds, whose number depends on the rows,
// that warps have runs of splits, and that several of them are a partial.
TEST_P(CudaRows, DoNotDependOnTheirCompanyAfterLongPrefixes) {
  LOOPSPEC_NEEDS_GPU();
  constexpr int kLong = 17000;
  Start(64, kLong);
  const int depths = backend_->spec().recurrence;
  for (const int position : {1040, 3000, 8200, kLong}) {
    std::vector<float> alone;
    for (const int others : {0, 1, 3, 7, 8, 15, 23, 31, 63}) {
      driver_->Begin(depths);
      for (int i = 0; i <= others; ++i) driver_->AddRow(i, Token(i), position, 0);
      driver_->AddReadout(0, depths - 1);
      driver_->Run();
      if (others == 0) alone = driver_->Logits(0);
      ASSERT_EQ(driver_->Logits(0), alone)
          << "at position " << position << " among " << others << " others";
    }
  }
}

// With 63 others the kernel without a producer warp runs; with fewer, the producer warp fetches the
// keys and values of so long a prefix. After the longer one a warp has runs of several splits.
TEST_P(CudaRows, DoNotDependOnWhoFetchesTheirKeys) {
  LOOPSPEC_NEEDS_GPU();
  for (const int prefix : {700, 3900}) {
    Start(64, prefix);
    std::vector<float> loaded;
    for (const int others : {63, 0, 3, 15, 23, 27, 31}) {
      driver_->Begin(1);
      for (int i = 0; i <= others; ++i) driver_->AddRow(i, Token(i), prefix, 0);
      driver_->AddReadout(0, 0);
      driver_->Run();
      if (others == 63) loaded = driver_->Logits(0);
      ASSERT_EQ(driver_->Logits(0), loaded) << "among " << others << " others after " << prefix;
    }
  }
}

// Several recurrences in one step are the same as one at a time.
TEST_P(CudaRows, DoNotDependOnHowRecurrencesAreGrouped) {
  LOOPSPEC_NEEDS_GPU();
  Start(64);
  const int depths = backend_->spec().recurrence;
  for (int d = 0; d < depths; ++d) {
    driver_->Begin(1);
    driver_->AddRow(0, Token(0), kPrompt, d);
    if (d + 1 == depths) driver_->AddReadout(0, d);
    driver_->Run();
  }
  const std::vector<float> single = driver_->Logits(0);
  driver_->Begin(depths);
  driver_->AddRow(1, Token(0), kPrompt, 0);
  driver_->AddReadout(0, depths - 1);
  driver_->Run();
  EXPECT_EQ(driver_->Logits(0), single);
}

// Forty tokens in a chain of cells, then the same tokens committed one by one: the last one's
// logits are the same.
TEST_P(CudaRows, DoNotDependOnWherePrefixesLie) {
  LOOPSPEC_NEEDS_GPU();
  constexpr int kLong =
      700;  // long enough for the producer warp to fetch committed keys and values
  Start(64, kLong);
  const int depths = backend_->spec().recurrence;
  constexpr int kChain = 40;
  std::vector<std::vector<float>> in_cells;
  std::vector<int32_t> chain;
  for (int i = 0; i <= kChain; ++i) {
    driver_->Begin(depths);
    driver_->AddRow(i, Token(i), kLong + i, 0, chain);
    driver_->AddReadout(0, depths - 1);
    driver_->Run();
    in_cells.push_back(driver_->Logits(0));
    chain.push_back(i);
  }
  for (int i = 0; i <= kChain; ++i) {
    driver_->Begin(depths);
    if (i > 0) driver_->Commit(i - 1, kLong + i - 1);
    driver_->AddRow(i, Token(i), kLong + i, 0);
    driver_->AddReadout(0, depths - 1);
    driver_->Run();
    ASSERT_EQ(driver_->Logits(0), in_cells[static_cast<size_t>(i)])
        << "after " << i << " committed tokens";
  }
}

// A prompt cut anywhere gives the same keys and values, as far as the next token can tell.
TEST_P(CudaRows, DoNotDependOnHowThePromptWasCut) {
  LOOPSPEC_NEEDS_GPU();
  Start(64);
  const int depths = backend_->spec().recurrence;
  const auto next = [&] {
    driver_->Begin(depths);
    driver_->AddRow(0, Token(0), kPrompt, 0);
    driver_->AddReadout(0, depths - 1);
    driver_->Run();
    return driver_->Logits(0);
  };
  const std::vector<float> whole = next();
  int at = 0;
  for (const int length : {1, 63, 100, 136}) {
    backend_->Prefill(
        {driver_->Sequence(), at,
         std::span(prompt_).subspan(static_cast<size_t>(at), static_cast<size_t>(length))});
    at += length;
  }
  ASSERT_EQ(at, kPrompt);
  EXPECT_EQ(next(), whole);
}

// Pages that were saved and loaded again, or copied, are the same to who attends to them.
TEST_P(CudaRows, DoNotDependOnWhetherPagesWereAway) {
  LOOPSPEC_NEEDS_GPU();
  Start(64);
  const int depths = backend_->spec().recurrence;
  const auto next = [&] {
    driver_->Begin(depths);
    driver_->AddRow(0, Token(0), kPrompt, 0);
    driver_->AddReadout(0, depths - 1);
    driver_->Run();
    return driver_->Logits(0);
  };
  const std::vector<float> before = next();
  const auto used = std::span<const int32_t>(driver_->pages).first(kPrompt / kPageSize + 1);
  std::vector<std::byte> host(used.size() * static_cast<size_t>(backend_->page_bytes()));
  backend_->SavePages(used, host.data());
  std::vector<int32_t> others;
  for (const int32_t page : used) others.push_back(page + 16);
  backend_->LoadPages(others, host.data());
  backend_->CopyPage(used[1], others[0] + 8);
  others[1] = others[0] + 8;
  std::copy(others.begin(), others.end(), driver_->pages.begin());
  EXPECT_EQ(next(), before);
}

// The two ways into a position, prompt and step, agree to rounding.
TEST_P(CudaRows, PromptsAndStepsAgree) {
  LOOPSPEC_NEEDS_GPU();
  Start(64);
  const int depths = backend_->spec().recurrence;
  std::vector<std::vector<float>> scored(static_cast<size_t>(depths));
  const int32_t token = Token(0);
  driver_->Begin(depths);
  driver_->AddRow(0, token, kPrompt, 0);
  driver_->AddReadout(0, depths - 1);
  driver_->Run();
  const std::vector<float> stepped = driver_->Logits(0);
  backend_->Score({driver_->Sequence(), kPrompt, std::span(&token, 1)},
                  [&](int32_t, int32_t readout, std::span<const float> logits) {
                    scored[static_cast<size_t>(readout)].assign(logits.begin(), logits.end());
                  });
  float largest = 0, worst = 0;
  for (size_t v = 0; v < stepped.size(); ++v) {
    largest = std::max(largest, std::fabs(stepped[v]));
    const float difference = std::fabs(stepped[v] - scored.back()[v]);
    if (!(difference <= worst)) worst = difference;
  }
  EXPECT_LT(worst, 2e-2f * largest);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaRows, testing::Range(0, kRowModels));

}  // namespace
}  // namespace loopspec

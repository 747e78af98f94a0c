// A step whose CTAs wait for each other in vain is given up: one error, and the backend works on.
#include "base/error.h"
#include "cuda_rows.h"

namespace loopspec {
namespace {

class CudaWatchdog : public CudaRows {};

TEST_P(CudaWatchdog, GivesUpAStepAndTheBackendWorksOn) {
  LOOPSPEC_NEEDS_GPU();
  Start(64);
  const int depths = backend_->spec().recurrence;
  // One row and small batches use the exchange at released widths; then kernels with and without a
  // producer warp, and barriers everywhere.
  for (const int rows : {1, 4, 12, 28, 40}) {
    const auto step = [&] {
      driver_->Begin(depths);
      for (int i = 0; i < rows; ++i) driver_->AddRow(i, Token(i), kPrompt, 0);
      driver_->AddReadout(rows - 1, depths - 1);
      driver_->Run();
      return driver_->Logits(0);
    };
    backend_->SetTimeout(10);
    const std::vector<float> before = step();
    backend_->SetTimeout(0.5);
    backend_->StallNextStep();
    try {
      step();
      ADD_FAILURE() << rows << " rows: the step was not given up";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("given up"), std::string::npos) << error.what();
    }
    ASSERT_EQ(step(), before) << rows << " rows, after a step was given up";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaWatchdog, testing::Values(0, 2, 3, 4, 5));

}  // namespace
}  // namespace loopspec

// LoopSpec, greedy and coupled, is autoregressive decoding on the GPU too, ids and logits bit for
// bit; many more tokens, and full-size twins, through gpu_check (scripts/gpu-check.py).
#include <gtest/gtest.h>

#include "cuda_driver.h"
#include "equality.h"

namespace loopspec {
namespace {

struct EqualityCase {
  const char* model;
  KvType kv_type;
};

class CudaEquality : public testing::TestWithParam<EqualityCase> {};

TEST_P(CudaEquality, LoopSpecIsAutoregressiveDecoding) {
  LOOPSPEC_NEEDS_GPU();
  EqualityRequest request;
  request.folder = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / GetParam().model;
  request.kv_type = GetParam().kv_type;
  if (!std::filesystem::exists(request.folder / "config.json"))
    GTEST_SKIP() << "the demo models are not here";
  request.tokens = 600;
  request.text = 120;
  const EqualityResult result =
      CompareDecoders(request, [](const Model& model, const BackendOptions& options) {
        return MakeCudaBackend(model, options, 0);
      });
  EXPECT_EQ(result.tokens, request.tokens);
  EXPECT_EQ(result.first_difference, "");
  for (const EqualityResult::Set& set : result.sets) {
    EXPECT_EQ(set.equal_tokens, result.tokens);
    EXPECT_EQ(set.equal_logits, result.tokens);
    EXPECT_LT(set.steps, result.autoregressive_steps) << "nothing was ever accepted";
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, CudaEquality,
                         testing::Values(EqualityCase{"ouro-demo", KvType::kCompute},
                                         EqualityCase{"raven-demo", KvType::kCompute},
                                         EqualityCase{"ouro-demo", KvType::kInt8},
                                         EqualityCase{"raven-demo", KvType::kInt8}),
                         [](const auto& demo) {
                           return std::string(demo.param.model, 4) +
                                  (demo.param.kv_type == KvType::kInt8 ? "_int8_keys" : "");
                         });

}  // namespace
}  // namespace loopspec

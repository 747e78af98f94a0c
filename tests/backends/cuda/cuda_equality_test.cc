// LoopSpec, greedy and coupled, is autoregressive decoding on the GPU too, ids and logits bit for
// bit; many more tokens, and full-size twins, through gpu_check (scripts/gpu-check.py).
#include <gtest/gtest.h>

#include "cuda_driver.h"
#include "equality.h"
#include "tests/support/ifm_models.h"
#include "tests/support/quantized_model.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

EqualityResult CompareOnGpu(const EqualityRequest& request) {
  return CompareDecoders(request, [](const Model& model, const BackendOptions& options) {
    return MakeCudaBackend(model, options, 0);
  });
}

struct EqualityCase {
  const char* model;
  KvType kv_type;
  int bits = 16;  // of weights
};

class CudaEquality : public testing::TestWithParam<EqualityCase> {};

TEST_P(CudaEquality, LoopSpecIsAutoregressiveDecoding) {
  LOOPSPEC_NEEDS_GPU();
  EqualityRequest request;
  request.folder = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / GetParam().model;
  request.kv_type = GetParam().kv_type;
  if (!std::filesystem::exists(request.folder / "config.json"))
    GTEST_SKIP() << "the demo models are not here";
  if (GetParam().bits < 16) request.folder = QuantizedFolder(GetParam().model, GetParam().bits);
  request.tokens = 600;
  request.text = 120;
  const EqualityResult result = CompareOnGpu(request);
  EXPECT_EQ(result.tokens, request.tokens);
  EXPECT_EQ(result.first_difference, "");
  for (const EqualityResult::Set& set : result.sets) {
    EXPECT_EQ(set.equal_tokens, result.tokens);
    EXPECT_EQ(set.equal_logits, result.tokens);
    EXPECT_LT(set.steps, result.autoregressive_steps) << "nothing was ever accepted";
  }
}

// Every set of depths below R, for the recipes of IFM's Part II; some for Part I's.
std::vector<std::vector<int>> DepthsOf(int recurrence) {
  if (recurrence > 5) return {{1}, {4}, {7}, {2, 4}, {3, 5}, {1, 2, 4}, {2, 5, 7}};
  std::vector<std::vector<int>> sets;
  for (int chosen = 1; chosen < 1 << (recurrence - 1); ++chosen) {
    std::vector<int> depths;
    for (int d = 1; d < recurrence; ++d) {
      if ((chosen >> (d - 1) & 1) != 0) depths.push_back(d);
    }
    sets.push_back(depths);
  }
  return sets;
}

class CudaIfmEquality : public testing::TestWithParam<const char*> {};

TEST_P(CudaIfmEquality, LoopSpecIsAutoregressiveDecoding) {
  LOOPSPEC_NEEDS_GPU();
  const TemporaryFolder folder;
  const Json config = IfmConfig(GetParam());
  WriteIfmModel(config, folder.path());
  EqualityRequest request;
  request.folder = folder.path();
  request.tokens = 240;
  request.text = 80;
  request.depth_sets = DepthsOf(config["model"]["loop_times"].get<int>());
  const EqualityResult result = CompareOnGpu(request);
  EXPECT_EQ(result.tokens, request.tokens);
  EXPECT_EQ(result.first_difference, "");
  int64_t drafted = 0;
  for (const EqualityResult::Set& set : result.sets) {
    EXPECT_EQ(set.equal_tokens, result.tokens);
    EXPECT_EQ(set.equal_logits, result.tokens);
    drafted += set.drafted;
  }
  EXPECT_GT(drafted, 0) << "nothing was ever accepted";
  std::printf("    %s: %zu sets of depths, %lld of %lld tokens from drafts\n", GetParam(),
              result.sets.size(), static_cast<long long>(drafted),
              static_cast<long long>(result.tokens) * std::ssize(result.sets));
}

INSTANTIATE_TEST_SUITE_P(Ifm, CudaIfmEquality,
                         testing::Values("fixed", "linear", "parcae", "orthoinj", "raw-injection",
                                         "huginn", "middle"),
                         [](const auto& recipe) {
                           std::string name = recipe.param;
                           std::erase(name, '-');
                           return name;
                         });

// Models with parts that the GPU has no code for are refused in one sentence.
TEST(CudaIfm, RefusesMixturesAndTwoStates) {
  LOOPSPEC_NEEDS_GPU();
  for (const auto& [recipe, part] :
       {std::pair("moe-ouro", "a mixture of experts"),
        std::pair("moe-huginn", "a mixture of experts"), std::pair("shared-hl", "two states")}) {
    const TemporaryFolder folder;
    WriteIfmModel(IfmConfig(recipe), folder.path());
    const Model model = Model::Load(folder.path());
    try {
      MakeCudaBackend(model, {}, 0);
      ADD_FAILURE() << recipe << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                fmt::format("the ifm model has {}, which the CUDA backend does not have; the CPU "
                            "backend does",
                            part));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, CudaEquality,
                         testing::Values(EqualityCase{"ouro-demo", KvType::kCompute},
                                         EqualityCase{"raven-demo", KvType::kCompute},
                                         EqualityCase{"ouro-demo", KvType::kInt8},
                                         EqualityCase{"raven-demo", KvType::kInt8},
                                         EqualityCase{"ouro-demo", KvType::kCompute, 8},
                                         EqualityCase{"ouro-demo", KvType::kInt8, 4},
                                         EqualityCase{"raven-demo", KvType::kInt8, 8},
                                         EqualityCase{"raven-demo", KvType::kCompute, 4}),
                         [](const auto& demo) {
                           return std::string(demo.param.model, 4) +
                                  (demo.param.kv_type == KvType::kInt8 ? "_int8_keys" : "") +
                                  (demo.param.bits < 16 ? "_int" + std::to_string(demo.param.bits)
                                                        : "");
                         });

}  // namespace
}  // namespace loopspec

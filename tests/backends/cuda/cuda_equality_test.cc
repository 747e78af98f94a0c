// LoopSpec, greedy and coupled, is autoregressive decoding on the GPU too, ids and logits bit for
// bit; many more tokens, and full-size twins, through gpu_check (scripts/gpu-check.py).
#include <gtest/gtest.h>

#include "cuda_driver.h"
#include "equality.h"
#include "tests/support/ifm_models.h"
#include "tests/support/models.h"
#include "tests/support/quantized_model.h"
#include "tests/support/run_request.h"
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
  int bits = 16;          // of weights
  const char* plan = "";  // of keys
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
  if (request.kv_type == KvType::kLoops) {
    request.key_plan = GetParam().plan;
    request.text = 300;  // several spans
  }
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

// By a plan of keys: requests with a common beginning, some of them autoregressive, one at a time
// and all at once, where memory is short: hits, steps of several texts, windows that are swapped.
TEST(CudaKeyPlans, TextsDoNotDependOnOtherRequests) {
  LOOPSPEC_NEEDS_GPU();
  const auto folder = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / "raven-demo";
  if (!std::filesystem::exists(folder / "config.json"))
    GTEST_SKIP() << "the demo models are not here";
  const Model model = Model::Load(folder);
  BackendOptions options;
  options.readout_depths = {2, 8, model.spec.recurrence};
  options.cells = 64;
  options.kv_positions = 1024;
  options.kv_type = KvType::kLoops;
  options.key_plan = SpannedKeyPlan::Parse("int8*8,last", model.spec.recurrence);
  const auto roomy = MakeCudaBackend(model, options, 0);
  const std::vector<int32_t> common = RandomTokens(model.spec, 200, 1);
  std::vector<ResolvedRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 8; ++i) {
    ResolvedRequest& request = requests.emplace_back();
    request.prompt = common;
    const std::vector<int32_t> own =
        RandomTokens(model.spec, static_cast<size_t>(5 + 31 * i), static_cast<uint32_t>(i + 2));
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.max_tokens = 90;
    if (i % 2 == 1) {
      request.sampling.temperature = 0.8f;
      request.sampling.sampler = Sampler::kCoupled;
      request.seed = static_cast<uint64_t>(i);
    }
    Scheduler scheduler(*roomy, OneAtATime());
    alone.emplace_back();
    for (const Token& token : RunRequest(scheduler, request).tokens)
      alone.back().push_back(token.id);
    if (i % 3 != 2) request.depths = {2, 8};
  }
  options.kv_memory =
      roomy->page_bytes() * (3 * (PagesFor(560) + roomy->window_pages()) + PagesFor(200));
  const auto tight = MakeCudaBackend(model, options, 0);
  SchedulerOptions several;
  several.max_running = 6;
  Scheduler scheduler(*tight, several);
  int64_t hits = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const ResolvedRequest& request : requests) streams.push_back(scheduler.Submit(request));
    std::vector<std::vector<int32_t>> texts(streams.size());
    std::vector<bool> done(streams.size(), false);
    while (std::ranges::count(done, false) > 0) {
      scheduler.Step();
      for (size_t i = 0; i < streams.size(); ++i) {
        StreamEvent event;
        Stream::Status status = Stream::Status::kDone;
        while (!done[i] && (status = streams[i]->Next(event, std::chrono::milliseconds(0))) !=
                               Stream::Status::kTimeout) {
          if (status == Stream::Status::kToken) texts[i].push_back(event.token.id);
          done[i] = status == Stream::Status::kDone;
        }
      }
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(texts[i], alone[i]) << "request " << i << ", round " << round;
      hits += streams[i]->statistics(0).cached_tokens;
    }
  }
  EXPECT_GT(hits, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Demo, CudaEquality,
    testing::Values(
        EqualityCase{"ouro-demo", KvType::kCompute}, EqualityCase{"raven-demo", KvType::kCompute},
        EqualityCase{"ouro-demo", KvType::kInt8}, EqualityCase{"raven-demo", KvType::kInt8},
        EqualityCase{"ouro-demo", KvType::kCompute, 8}, EqualityCase{"ouro-demo", KvType::kInt8, 4},
        EqualityCase{"raven-demo", KvType::kInt8, 8},
        EqualityCase{"raven-demo", KvType::kCompute, 4},
        EqualityCase{"ouro-demo", KvType::kLoops, 16, "int8*2,last"},
        EqualityCase{"raven-demo", KvType::kLoops, 16, "int8*8,last"},
        EqualityCase{"raven-demo", KvType::kLoops, 4, "last,int8*4,last@128"}),
    [](const auto& demo) {
      return std::string(demo.param.model, 4) +
             (demo.param.kv_type == KvType::kInt8    ? "_int8_keys"
              : demo.param.kv_type == KvType::kLoops ? "_planned_keys"
                                                     : "") +
             (demo.param.bits < 16 ? "_int" + std::to_string(demo.param.bits) : "");
    });

}  // namespace
}  // namespace loopspec

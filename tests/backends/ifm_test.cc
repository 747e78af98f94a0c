// IFM's recipes against their formulas in double precision: the formulas themselves against the
// golden files first, then the engine on a tiny checkpoint of every recipe at every depth.
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "tests/support/driver.h"
#include "tests/support/ifm_models.h"
#include "tests/support/ifm_reference.h"
#include "tests/support/models.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

TEST(IfmReference, AgreesWithTheGoldens) {
  for (const char* name :
       {"ifm-p1-ouro-tiny", "ifm-p1-huginn-tiny", "ifm-p2-huginn-tiny", "ifm-p2-linear-tiny"}) {
    if (!HasGolden(name)) GTEST_SKIP() << kNoGolden;
    const auto folder = GoldenFolder() / name;
    const Json config = ReadJsonFile(folder / "config.json");
    const Checkpoint weights = Checkpoint::Open(folder);
    const Checkpoint golden = Checkpoint::OpenFile(folder / "golden.safetensors");
    const TensorView& ids = golden.tensors().at("input_ids");
    const TensorView& expected = golden.tensors().at("logits");
    std::vector<int32_t> tokens(static_cast<size_t>(ids.shape[0]));
    std::memcpy(tokens.data(), ids.data, ids.bytes());
    const auto logits = IfmReference(config["model"], weights.tensors())
                            .Logits(tokens, static_cast<int>(expected.shape[0]));
    double worst = 0;
    int64_t at = 0;
    for (const auto& loop : logits) {
      for (const auto& row : loop) {
        for (const double value : row)
          worst = std::max(worst, std::fabs(value - LoadElement(expected.data, DType::kF32, at++)));
      }
    }
    EXPECT_EQ(at, expected.elements());
    EXPECT_LT(worst, 3e-5) << name;
    std::printf("%s: worst %.1e\n", name, worst);
  }
}

class IfmRecipe : public testing::TestWithParam<std::string> {};

TEST_P(IfmRecipe, EveryDepthAndPosition) {
  const TemporaryFolder folder;
  const Json config = IfmConfig(GetParam());
  WriteIfmModel(config, folder.path());
  const Model model = Model::Load(folder.path());
  EXPECT_EQ(model.spec.family, "ifm");
  const bool two = GetParam().find("-hl") != std::string::npos;  // R counts updates of H
  EXPECT_EQ(model.spec.recurrence, two ? 2 : config["model"]["loop_times"].get<int>());
  const std::vector<int32_t> tokens = RandomTokens(model.spec, 20, 7);
  const auto expected = IfmReference(config["model"], model.checkpoint.tensors())
                            .Logits(tokens, model.spec.recurrence);
  double largest = 0;
  for (const auto& loop : expected) {
    for (const auto& row : loop) {
      for (const double value : row) largest = std::max(largest, std::fabs(value));
    }
  }
  BackendOptions options;
  options.compute = ComputeMode::kF32;
  options.kv_positions = 64;
  options.threads = 2;
  for (int d = 1; d <= model.spec.recurrence; ++d) options.readout_depths.push_back(d);
  const auto backend = MakeCpuBackend(model, options);
  double worst = 0;
  int seen = 0;
  ScoreTokens(
      *backend, tokens, [&](int32_t position, int32_t readout, std::span<const float> logits) {
        const auto& row = expected[static_cast<size_t>(readout)][static_cast<size_t>(position)];
        for (size_t v = 0; v < row.size(); ++v)
          worst = std::max(worst, std::fabs(static_cast<double>(logits[v]) - row[v]));
        ++seen;
      });
  EXPECT_EQ(seen, model.spec.recurrence * static_cast<int>(tokens.size()));
  EXPECT_LT(worst, 1e-5 * largest);
  std::printf("worst %.1e of logits up to %.1f\n", worst, largest);
}

INSTANTIATE_TEST_SUITE_P(All, IfmRecipe, testing::ValuesIn(IfmRecipes()), [](const auto& param) {
  std::string name = param.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace loopspec

// Every depth and position of the tiny checkpoints against the logits of the released modelling
// code, and the demo models' greedy continuations.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "backends/backend.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

const std::filesystem::path kGoldens = std::filesystem::path(LOOPSPEC_BINARY_DIR) / "goldens";

// Largest |ours - golden| over the row, relative to the largest |golden| of the whole tensor, and
// the argmax wherever the golden's top two are further apart than `gap`.
void Compare(std::span<const float> ours, std::span<const float> golden, float scale,
             double tolerance, double gap, const std::string& where) {
  double worst = 0.0;
  for (size_t v = 0; v < golden.size(); ++v)
    worst = std::max(worst, std::fabs(static_cast<double>(ours[v]) - golden[v]));
  ASSERT_LE(worst, tolerance * scale) << where;
  std::vector<float> sorted(golden.begin(), golden.end());
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  const float second = sorted[1];
  const auto ours_top = std::max_element(ours.begin(), ours.end()) - ours.begin();
  const auto golden_top = std::max_element(golden.begin(), golden.end()) - golden.begin();
  if (golden[static_cast<size_t>(golden_top)] - second > gap) {
    ASSERT_EQ(ours_top, golden_top) << where;
  }
}

float Largest(const TensorView& view) {
  float largest = 0;
  for (int64_t i = 0; i < view.elements(); ++i)
    largest = std::max(largest, std::fabs(LoadElement(view.data, view.dtype, i)));
  return largest;
}

struct Case {
  const char* model;
  ComputeMode compute;
};

class TinyGolden : public testing::TestWithParam<Case> {};

TEST_P(TinyGolden, EveryDepthAndPosition) {
  const auto folder = kGoldens / GetParam().model;
  if (!HasGolden(GetParam().model)) GTEST_SKIP() << kNoGolden;
  const Model model = Model::Load(folder);
  const Checkpoint golden = Checkpoint::OpenFile(folder / "golden.safetensors");
  const TensorView& ids = golden.tensors().at("input_ids");
  const TensorView& expected = golden.tensors().at("logits");
  ASSERT_EQ(expected.shape,
            (std::vector<int64_t>{model.spec.recurrence, ids.shape[0], model.spec.vocab}));
  std::vector<int32_t> tokens(static_cast<size_t>(ids.shape[0]));
  std::memcpy(tokens.data(), ids.data, ids.bytes());

  BackendOptions options;
  options.compute = GetParam().compute;
  options.kv_positions = 128;
  options.threads = 2;
  for (int d = 1; d <= model.spec.recurrence; ++d) options.readout_depths.push_back(d);
  const auto backend = MakeTestBackend(model, options);
  const bool bf16 = GetParam().compute == ComputeMode::kBF16;
  const float scale = Largest(expected);
  std::vector<float> row(static_cast<size_t>(model.spec.vocab));
  int seen = 0;
  double worst = 0;
  ScoreTokens(
      *backend, tokens, [&](int32_t position, int32_t readout, std::span<const float> logits) {
        std::memcpy(row.data(),
                    expected.data + (readout * ids.shape[0] + position) * model.spec.vocab * 4,
                    row.size() * 4);
        Compare(logits, row, scale, bf16 ? 3e-2 : 2e-4, bf16 ? 0.1 : 1e-2,
                fmt::format("depth {} position {}", readout + 1, position));
        for (size_t v = 0; v < row.size(); ++v)
          worst = std::max(worst, std::fabs(static_cast<double>(logits[v]) - row[v]));
        ++seen;
      });
  std::printf("worst %.2e of logits up to %.2f\n", worst, static_cast<double>(scale));
  if (!bf16) {
    EXPECT_LE(worst, 3e-4);
  }
  EXPECT_EQ(seen, model.spec.recurrence * ids.shape[0]);
}

INSTANTIATE_TEST_SUITE_P(
    All, TinyGolden,
    testing::Values(
        Case{"huginn-tiny-f32", ComputeMode::kF32}, Case{"huginn-tiny-f32", ComputeMode::kBF16},
        Case{"ifm-p1-huginn-tiny", ComputeMode::kF32},
        Case{"ifm-p1-huginn-tiny", ComputeMode::kBF16}, Case{"ifm-p1-ouro-tiny", ComputeMode::kF32},
        Case{"ifm-p1-ouro-tiny", ComputeMode::kBF16}, Case{"ifm-p2-huginn-tiny", ComputeMode::kF32},
        Case{"ifm-p2-huginn-tiny", ComputeMode::kBF16},
        Case{"ifm-p2-linear-tiny", ComputeMode::kF32},
        Case{"ifm-p2-linear-tiny", ComputeMode::kBF16},
        Case{"nanbeige-tiny-f32", ComputeMode::kF32}, Case{"nanbeige-tiny-f32", ComputeMode::kBF16},
        Case{"nanbeige-tiny-skipnorm-bf16", ComputeMode::kF32},
        Case{"nanbeige-tiny-skipnorm-bf16", ComputeMode::kBF16},
        Case{"ouro-tiny-f32", ComputeMode::kF32}, Case{"ouro-tiny-f32", ComputeMode::kBF16},
        Case{"ouro-tiny-gqa-bf16-sharded", ComputeMode::kF32},
        Case{"ouro-tiny-gqa-bf16-sharded", ComputeMode::kBF16},
        Case{"raven-llama-tiny-f32", ComputeMode::kF32},
        Case{"raven-llama-tiny-f32", ComputeMode::kBF16},
        Case{"raven-olmo-tiny-bf16", ComputeMode::kF32},
        Case{"raven-olmo-tiny-bf16", ComputeMode::kBF16}),
    [](const auto& param) {
      std::string name = param.param.model;
      std::replace(name.begin(), name.end(), '-', '_');
      return name + (param.param.compute == ComputeMode::kBF16 ? "_bf16" : "_f32");
    });

// A header of odd length puts every tensor across its own alignment; the logits are the same.
TEST(OddlyPacked, SameLogits) {
  for (const char* name : {"huginn-tiny-f32", "ouro-tiny-f32", "raven-olmo-tiny-bf16"}) {
    const TemporaryFolder folder;
    std::filesystem::copy_file(kGoldens / name / "config.json", folder / "config.json");
    std::string file = ReadFile(kGoldens / name / "model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, file.data(), 8);
    file.insert(8 + header, header % 2 == 0 ? " " : "  ");
    header += header % 2 == 0 ? 1 : 2;
    std::memcpy(file.data(), &header, 8);
    std::ofstream(folder / "model.safetensors", std::ios::binary) << file;
    std::vector<std::vector<float>> logits;
    for (const auto& from : {kGoldens / name, folder.path()}) {
      const Model model = Model::Load(from);
      BackendOptions options;
      options.compute = ComputeMode::kF32;
      options.kv_positions = 64;
      options.threads = 1;
      const auto backend = MakeTestBackend(model, options);
      ScoreTokens(*backend, std::vector<int32_t>{1, 2, 3, 4, 5},
                  [&](int32_t, int32_t, std::span<const float> row) {
                    logits.emplace_back(row.begin(), row.end());
                  });
    }
    ASSERT_EQ(logits.size(), 10u);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(logits[i], logits[i + 5]) << name;
  }
}

struct DemoCase {
  const char* model;
  const char* golden;
  ConfigOverrides overrides;
  ComputeMode compute;
};

class DemoGolden : public testing::TestWithParam<DemoCase> {};

TEST_P(DemoGolden, LastPromptLogitsAndGreedyContinuation) {
  const DemoCase& which = GetParam();
  const Model model = Model::Load(
      std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / which.model, which.overrides);
  const Json json = ReadJsonFile(kGoldens / (std::string(which.golden) + ".json"));
  const Checkpoint golden =
      Checkpoint::OpenFile(kGoldens / (std::string(which.golden) + ".safetensors"));
  BackendOptions options;
  options.compute = which.compute;
  options.kv_positions = 256;
  options.threads = 2;
  options.readout_depths = json["depths"].get<std::vector<int>>();
  const auto backend = MakeTestBackend(model, options);
  const bool bf16 = which.compute == ComputeMode::kBF16;
  // Under a sanitizer one text: the tiny models run the same code in every way.
  const size_t cases = kSanitized ? 1 : json["cases"].size();
  for (size_t c = 0; c < cases; ++c) {
    const Json& entry = json["cases"][c];
    const TensorView& ids = golden.tensors().at(fmt::format("ids{}", c));
    const TensorView& expected = golden.tensors().at(fmt::format("last_logits{}", c));
    std::vector<int32_t> tokens(static_cast<size_t>(ids.shape[0]));
    std::memcpy(tokens.data(), ids.data, ids.bytes());
    const auto prompt = entry["prompt_tokens"].get<int32_t>();
    const int last = static_cast<int>(options.readout_depths.size()) - 1;
    const float scale = Largest(expected);
    const bool exact = !bf16 || entry["min_top2_gap"].get<double>() > 0.05;
    std::vector<float> row(static_cast<size_t>(model.spec.vocab));
    ScoreTokens(
        *backend, tokens, [&](int32_t position, int32_t readout, std::span<const float> logits) {
          const std::string where =
              fmt::format("case {} depth {} position {}", c,
                          options.readout_depths[static_cast<size_t>(readout)], position);
          if (position == prompt - 1) {
            std::memcpy(row.data(), expected.data + readout * model.spec.vocab * 4, row.size() * 4);
            Compare(logits, row, scale, bf16 ? 3e-2 : 2e-4, bf16 ? 0.1 : 1e-2, where);
          }
          // Teacher-forced: the argmax at each position is the next golden token.
          if (readout == last && position >= prompt - 1 && position + 1 < ids.shape[0] && exact) {
            ASSERT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(),
                      tokens[static_cast<size_t>(position) + 1])
                << where;
          }
        });
  }
}

const ConfigOverrides kZeroState = {{"init_values.std", "0"}};
INSTANTIATE_TEST_SUITE_P(All, DemoGolden,
                         testing::Values(DemoCase{"ouro-demo", "ouro-demo", {}, ComputeMode::kF32},
                                         DemoCase{"ouro-demo", "ouro-demo", {}, ComputeMode::kBF16},
                                         DemoCase{"raven-demo", "raven-demo-zero-state", kZeroState,
                                                  ComputeMode::kF32},
                                         DemoCase{"raven-demo", "raven-demo-zero-state", kZeroState,
                                                  ComputeMode::kBF16}),
                         [](const auto& param) {
                           return std::string(param.param.model).substr(0, 4) +
                                  (param.param.compute == ComputeMode::kBF16 ? "_bf16" : "_f32");
                         });

}  // namespace
}  // namespace loopspec

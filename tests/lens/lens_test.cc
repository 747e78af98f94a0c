// The look inside: figures of the lens against plain computation from the golden logits, and the
// exit gate's rule.
#include "lens/lens.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "lens/npz.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

TEST(ExitGate, TheLastRecurrenceTakesTheRest) {
  const double lambdas[] = {0.5, 0.5, 0.5, 0.5};
  const std::vector<double> p = ExitDistribution(lambdas);
  EXPECT_EQ(p, (std::vector<double>{0.5, 0.25, 0.125, 0.125}));
  EXPECT_EQ(ExitAt(p, 0.5), 0u);
  EXPECT_EQ(ExitAt(p, 0.51), 1u);
  EXPECT_EQ(ExitAt(p, 0.8), 2u);
  EXPECT_EQ(ExitAt(p, 0.9), 3u);
  EXPECT_EQ(ExitAt(p, 1.0), 3u);
  const double sure[] = {0.0, 1.0, 0.3};
  EXPECT_EQ(ExitDistribution(sure), (std::vector<double>{0, 1, 0}));
}

TEST(ExitGate, ReportCountsWhatChanges) {
  ExitReport report({1, 2, 4});
  const double early[] = {0.9, 0.5, 0.5}, late[] = {0.0, 0.0, 0.0};
  const int32_t wrong[] = {7, 5, 5}, right[] = {5, 5, 5};
  report.Add(early, wrong);  // leaves at depth 1, where the choice is another
  report.Add(late, right);
  const Json json = Json::parse(report.ToJson().dump());
  EXPECT_EQ(json.at("positions"), 2);
  EXPECT_NEAR(json.at("probability")[0].get<double>(), 0.45, 1e-12);
  for (const Json& threshold : json.at("thresholds")) {
    const bool left = threshold.at("threshold").get<double>() <= 0.9;
    EXPECT_NEAR(threshold.at("agreement").get<double>(), left ? 0.5 : 1.0, 1e-12);
    if (left) {
      EXPECT_NEAR(threshold.at("mean_depth").get<double>(), 2.5, 1e-12);
    }
  }
}

TEST(ExitGate, OuroHasOneAndOthersDoNot) {
  const Model ouro = LoadTestModel("ouro-tiny-f32");
  EXPECT_EQ(ExitGate::Of(ouro).has_value(),
            ouro.checkpoint.tensors().contains("model.early_exit_gate.weight"));
  EXPECT_FALSE(ExitGate::Of(LoadTestModel("huginn-tiny-f32")));
  ExitGate gate{{1.0f, -2.0f}, 0.5f};
  const float state[] = {1.0f, 0.25f};
  EXPECT_NEAR(gate.Lambda(state), 1 / (1 + std::exp(-1.0)), 1e-12);
}

class LensFigures : public testing::TestWithParam<const char*> {};

TEST_P(LensFigures, AreThoseOfTheGoldenLogits) {
  const Model model = LoadTestModel(GetParam());
  const Checkpoint golden =
      Checkpoint::OpenFile(GoldenFolder() / GetParam() / "golden.safetensors");
  const TensorView& ids = golden.tensors().at("input_ids");
  const TensorView& logits = golden.tensors().at("logits");
  std::vector<int32_t> tokens(static_cast<size_t>(ids.shape[0]));
  std::memcpy(tokens.data(), ids.data, ids.bytes());
  BackendOptions options;
  options.compute = ComputeMode::kF32;
  options.kv_positions = 128;
  options.threads = 2;
  for (int d = 1; d <= model.spec.recurrence; ++d) options.readout_depths.push_back(d);
  const auto backend = MakeCpuBackend(model, options);
  const Lens lens = LookThrough(*backend, tokens, 3, nullptr);
  ASSERT_EQ(lens.depths, options.readout_depths);
  EXPECT_EQ(lens.kv_type, "f32");
  ASSERT_EQ(lens.cells.size(), tokens.size() * lens.depths.size());

  const auto vocab = static_cast<size_t>(model.spec.vocab);
  const auto probabilities = [&](size_t depth, size_t position) {
    std::vector<double> p(vocab);
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) {
      const auto at = static_cast<int64_t>((depth * tokens.size() + position) * vocab + v);
      sum += p[v] = std::exp(static_cast<double>(LoadElement(logits.data, logits.dtype, at)));
    }
    for (double& value : p) value /= sum;
    return p;
  };
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<double> last = probabilities(lens.depths.size() - 1, t);
    for (size_t d = 0; d < lens.depths.size(); ++d) {
      const std::vector<double> p = probabilities(d, t);
      const LensCell& cell = lens.At(t, d);
      double entropy = 0, divergence = 0;
      for (size_t v = 0; v < vocab; ++v) {
        entropy -= p[v] * std::log2(p[v]);
        divergence += last[v] * std::log2(last[v] / p[v]);
      }
      std::vector<double> sorted = p;
      std::sort(sorted.rbegin(), sorted.rend());
      EXPECT_NEAR(cell.entropy, entropy, 1e-3);
      EXPECT_NEAR(cell.divergence, divergence, 1e-3);
      EXPECT_NEAR(cell.margin, sorted[0] - sorted[1], 1e-4);
      ASSERT_EQ(cell.tokens.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(cell.probabilities[i], sorted[i], 1e-4);
        EXPECT_NEAR(p[static_cast<size_t>(cell.tokens[i])], sorted[i], 1e-4);
      }
      if (t + 1 < tokens.size()) {
        EXPECT_NEAR(cell.next, p[static_cast<size_t>(tokens[t + 1])], 1e-4);
      }
      EXPECT_GT(cell.norm, 0);
      EXPECT_LE(std::fabs(cell.cosine), 1.00001);
    }
    EXPECT_NEAR(lens.At(t, lens.depths.size() - 1).cosine, 1, 1e-5);
    EXPECT_LT(lens.Settled(t), lens.depths.size());
  }
}

INSTANTIATE_TEST_SUITE_P(All, LensFigures,
                         testing::Values("ouro-tiny-f32", "huginn-tiny-f32", "nanbeige-tiny-f32"),
                         [](const auto& param) { return std::string(param.param).substr(0, 4); });

TEST(Npz, IsAZipOfArrays) {
  const auto path = std::filesystem::path(testing::TempDir()) / "loopspec-test.npz";
  const std::vector<float> values = {1.5f, -2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  const std::vector<NpyArray> arrays = {FloatArray("x", {2, 3}, values),
                                        IntArray("n", {2}, std::vector<int32_t>{7, 8})};
  WriteNpz(path, arrays);
  const std::string file = [&] {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  std::filesystem::remove(path);
  // Local header (30 bytes and the name), then numpy's header to a multiple of 64, then the data.
  ASSERT_TRUE(file.starts_with("PK\x03\x04"));
  const size_t npy = 30 + 5;
  EXPECT_EQ(file.substr(30, 5), "x.npy");
  EXPECT_EQ(file.substr(npy, 6), "\x93NUMPY");
  uint16_t header = 0;
  std::memcpy(&header, file.data() + npy + 8, 2);
  EXPECT_EQ((10 + header) % 64, 0);
  EXPECT_NE(file.find("'shape': (2, 3)"), std::string::npos);
  EXPECT_NE(file.find("'shape': (2,)"), std::string::npos);
  EXPECT_EQ(std::memcmp(file.data() + npy + 10 + header, values.data(), 24), 0);
  // The check sum of the entry is that of its bytes, bit by bit.
  uint32_t stored = 0, crc = 0xFFFFFFFFu;
  std::memcpy(&stored, file.data() + 14, 4);
  for (size_t i = npy; i < npy + 10 + header + 24; ++i) {
    crc ^= static_cast<uint8_t>(file[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  EXPECT_EQ(~crc, stored);
  EXPECT_EQ(file.substr(file.size() - 22, 4), "PK\x05\x06");
}

}  // namespace
}  // namespace loopspec

// Weights of few bits on the GPU: the numbers that they stand for, as bf16, and what rounding adds
// to logits against float32.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "backends/cuda/host/transfers.h"
#include "backends/cuda/prefill/widen.h"
#include "cuda_driver.h"
#include "prompts.h"
#include "tests/support/quantized_model.h"

namespace loopspec {
namespace {

class CudaWeights : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    LOOPSPEC_NEEDS_GPU();
    source_ = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / std::get<0>(GetParam());
    if (!std::filesystem::exists(source_ / "config.json"))
      GTEST_SKIP() << "the demo models are not here";
    folder_ = QuantizedFolder(std::get<0>(GetParam()), bits());
  }
  static int bits() { return std::get<1>(GetParam()); }

  std::filesystem::path source_, folder_;
};

// Every weight of a layer is what the file says, rounded to bf16 once.
TEST_P(CudaWeights, AreTheFilesRoundedOnce) {
  const Model model = Model::Load(folder_);
  cuda::Check(cudaSetDevice(0), "selecting the GPU");
  const cuda::DeviceModel device = cuda::DeviceModel::Load(model);
  ASSERT_TRUE(device.packed());
  const cuda::DeviceLayer& layer = device.core[0];
  const BlockWeights& weights = model.weights.core[0];
  const ModelSpec& spec = model.spec;
  struct Part {
    const cuda::DeviceMatrix& matrix;
    const LinearWeights& from;
    cuda::TileLayout layout;
  };
  const cuda::TileLayout plain = cuda::TileLayout::Plain(spec.hidden);
  const cuda::Stream stream;
  for (const Part& part : {Part{layer.qkv, weights.qkv, cuda::TileLayout::Qkv(spec)},
                           Part{layer.attn_out, weights.attn_out, plain},
                           Part{layer.gate_up, weights.gate_up, cuda::TileLayout::GateUp(spec)},
                           Part{layer.down, weights.down, plain}}) {
    const cuda::DeviceMatrix& m = part.matrix;
    ASSERT_EQ(m.form, bits() == 8 ? cuda::WeightForm::kInt8 : cuda::WeightForm::kInt4);
    const size_t elements = static_cast<size_t>(m.rows) * static_cast<size_t>(m.ld);
    cuda::DeviceArray<cuda::bf16> wide(elements, "a test");
    cuda::FillAndWait(wide.data(), 0xFF, wide.bytes());
    cuda::WidenRows(m, 0, m.rows, wide.data(), stream.get());
    stream.Synchronize();
    std::vector<uint16_t> found(elements);
    cuda::CopyToHost(found.data(), reinterpret_cast<const uint16_t*>(wide.data()), wide.bytes(),
                     stream.get(), "a test");
    stream.Synchronize();
    std::vector<float> row(static_cast<size_t>(m.cols));
    for (int r = 0; r < m.rows; ++r) {
      int64_t source = part.layout.Source(r);
      std::fill(row.begin(), row.end(), 0.0f);
      if (source >= 0) {
        size_t i = 0;
        while (source >= part.from.parts[i].shape[0]) source -= part.from.parts[i++].shape[0];
        part.from.parts[i].quantized->DequantizeRow(source, row.data());
      }
      for (int k = 0; k < m.ld; ++k) {
        const float value = k < m.cols ? row[static_cast<size_t>(k)] : 0.0f;
        const uint16_t bits =
            found[static_cast<size_t>(r) * static_cast<size_t>(m.ld) + static_cast<size_t>(k)];
        // By value: a weight of zero may have either sign.
        ASSERT_EQ(BF16ToFloat(bits), BF16ToFloat(FloatToBF16(value))) << "row " << r << " k " << k;
      }
    }
  }
}

// Mean distance of the logits of some prompts from those of float32 on the CPU, by steps.
double ErrorOf(const std::filesystem::path& folder, const std::filesystem::path& named) {
  const Model model = Model::Load(folder);
  BackendOptions options;
  options.readout_depths = {model.spec.recurrence};
  options.cells = 2;
  options.kv_positions = 1024;
  options.compute = ComputeMode::kF32;
  const auto reference = MakeCpuBackend(model, options);
  options.compute = ComputeMode::kBF16;
  const auto gpu = MakeCudaBackend(model, options, 0);
  const PromptMaker prompt_of(named, model.spec);
  constexpr int kPrompts = 8, kTokens = 24;
  double error = 0;
  int64_t count = 0;
  for (int p = 0; p < kPrompts; ++p) {
    const std::vector<int32_t> prompt = prompt_of(p), text = RandomTokens(model.spec, kTokens, 7u);
    StepDriver drivers[] = {StepDriver(*reference, reference->pages()),
                            StepDriver(*gpu, gpu->pages())};
    for (StepDriver& driver : drivers) driver.backend.Prefill({{driver.pages.data()}, 0, prompt});
    for (const int32_t token : text) {
      std::vector<float> logits[2];
      for (int i = 0; i < 2; ++i) {
        drivers[i].Begin(model.spec.recurrence);
        drivers[i].AddRow(0, token, static_cast<int>(prompt.size()), 0);
        drivers[i].AddReadout(0, 0);
        drivers[i].Run();
        logits[i] = drivers[i].Logits(0);
      }
      for (size_t v = 0; v < logits[0].size(); ++v)
        error += static_cast<double>(std::fabs(logits[0][v] - logits[1][v]));
      count += static_cast<int64_t>(logits[0].size());
    }
  }
  return error / static_cast<double>(count);
}

// bf16 has int8 codes exactly. int4 weights are products of a code and a scale, each rounded as
// inputs are, so that the two together err by the root of two times as much.
TEST_P(CudaWeights, AddLittleToTheErrorOfBF16) {
  const double plain = ErrorOf(source_, source_), few = ErrorOf(folder_, source_);
  std::printf("    %s, int%d: error of a logit %.4f, in bf16 %.4f, ratio %.3f\n",
              std::get<0>(GetParam()), bits(), few, plain, few / plain);
  EXPECT_LT(few, plain * (bits() == 8 ? 1.25 : 1.75));
}

INSTANTIATE_TEST_SUITE_P(Demo, CudaWeights,
                         testing::Combine(testing::Values("ouro-demo", "raven-demo"),
                                          testing::Values(8, 4)),
                         [](const auto& demo) {
                           return std::string(std::get<0>(demo.param), 4) + "_int" +
                                  std::to_string(std::get<1>(demo.param));
                         });

}  // namespace
}  // namespace loopspec

// int8 keys and values in pages against the same ones in bf16, rounded here as the CPU does it. In
// the first layer they depend on the tokens alone, so they are the same bits before rounding,
// whether a prompt or a step wrote them.
#include <bit>
#include <cmath>
#include <cstring>

#include "backends/cuda/host/transfers.h"
#include "cuda_rows.h"

namespace loopspec {
namespace {

struct Rounded {
  float scale;
  std::vector<int8_t> codes;
};

// backends/cpu/kv_int8.cc
Rounded Round(const std::vector<float>& x) {
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  Rounded out{largest / 127.0f, {}};
  for (const float v : x)
    out.codes.push_back(static_cast<int8_t>(std::lrintf(v * (127.0f / largest))));
  return out;
}

class CudaInt8Keys : public testing::TestWithParam<int> {
 protected:
  static constexpr int kPositions = 150;  // in a prompt, and as many after it by steps

  std::unique_ptr<cuda::CudaBackend> Fill(KvType type) const {
    const ModelSpec spec = SpecOf(GetParam());
    BackendOptions options = AllDepths(spec, 64);
    options.kv_type = type;
    auto backend =
        std::make_unique<cuda::CudaBackend>(cuda::DeviceModel::Random(spec, 7), options, 0);
    StepDriver driver(*backend, backend->pages());
    std::vector<int32_t> prompt;
    for (int i = 0; i < kPositions; ++i) prompt.push_back(TokenAt(i, spec));
    backend->Prefill({{driver.pages.data()}, 0, prompt});
    for (int i = kPositions; i < 2 * kPositions; ++i) {
      driver.Begin(1);
      if (i > kPositions) driver.Commit((i - 1) % 2, i - 1);
      driver.AddRow(i % 2, TokenAt(i, spec), i, 0);
      driver.Run();
    }
    driver.Begin(1);
    driver.Commit((2 * kPositions - 1) % 2, 2 * kPositions - 1);
    driver.AddRow(5, 1, 2 * kPositions, 0);
    driver.Run();
    return backend;
  }
  static int32_t TokenAt(int i, const ModelSpec& spec) { return (i * 37 + 11) % spec.vocab; }

  static std::vector<uint16_t> Memory(const cuda::CudaBackend& backend) {
    std::vector<uint16_t> out(backend.page_memory().size());
    cuda::CopyToHostAndWait(out.data(), backend.page_memory().data(), 2 * out.size(), "pages");
    return out;
  }
};

// Where element i of a key lies among its codes (device/kv_int8.cuh).
size_t CodeAt(size_t position, size_t i, size_t stride) {
  const size_t part = i / 32, lane = i % 32 / 8;
  if (stride < 64) return lane * 8 + i % 8;
  const size_t half = stride >= 128 ? part / 2 ^ position % 2 : part / 2;
  return half * 64 + lane * 16 + part % 2 * 8 + i % 8;
}

TEST_P(CudaInt8Keys, AreTheRoundedOnes) {
  LOOPSPEC_NEEDS_GPU();
  const ModelSpec spec = SpecOf(GetParam());
  const auto plain = Fill(KvType::kCompute), tested = Fill(KvType::kInt8);
  const std::vector<uint16_t> want = Memory(*plain), got = Memory(*tested);
  const size_t planes = static_cast<size_t>(
      PlaneMap(spec, static_cast<int>(plain->options().readout_depths.size())).count());
  const size_t vectors = static_cast<size_t>(2 * spec.kv_heads);
  const size_t of_page = planes * vectors * kPageSize * static_cast<size_t>(plain->pages());
  const size_t stride = want.size() / of_page, words = got.size() / of_page;
  ASSERT_EQ(words, static_cast<size_t>(cuda::KeyWords(static_cast<int>(stride), true)));
  const auto split = static_cast<size_t>(cuda::SplitPositions(static_cast<int>(stride)));
  int64_t others = 0, all = 0;
  for (size_t position = 0; position < 2 * kPositions; ++position) {
    const size_t page = position / kPageSize, slot = position % kPageSize;
    for (size_t vector = 0; vector < vectors; ++vector) {
      const size_t head = page * planes * vectors + vector;  // plane 0: the first layer's
      std::vector<float> key(static_cast<size_t>(spec.head_dim));
      for (size_t i = 0; i < key.size(); ++i) {
        const uint32_t bits = want[(head * kPageSize + slot) * stride + i];
        key[i] = std::bit_cast<float>(bits << 16);
      }
      const Rounded expected = Round(key);
      const auto* memory =
          reinterpret_cast<const std::byte*>(&got[head / 2 * 2 * kPageSize * words]);
      const size_t which = vector % 2, at = slot / split * 2 * split + which * split + slot % split;
      float scale;
      std::memcpy(&scale, memory + 2 * kPageSize * stride + at * 4, 4);
      ASSERT_NEAR(scale, expected.scale, 1e-6f * expected.scale)
          << "position " << position << " vector " << vector;
      const auto* codes = reinterpret_cast<const int8_t*>(memory + at * stride);
      for (size_t i = 0; i < key.size(); ++i) {
        const int code = codes[CodeAt(position, i, stride)];
        ASSERT_LE(std::abs(code - expected.codes[i]), 1)
            << "position " << position << " vector " << vector << " element " << i;
        others += code != expected.codes[i];
        ++all;
      }
      for (size_t i = key.size(); i < stride; ++i)
        ASSERT_EQ(codes[CodeAt(position, i, stride)], 0) << "padding";
    }
  }
  // A quotient rounded differently matters where a number lies half-way between two codes, which
  // numbers of eight bits do now and then.
  EXPECT_LT(others, all / 200);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaInt8Keys, testing::ValuesIn(kInt8RowModels));

}  // namespace
}  // namespace loopspec

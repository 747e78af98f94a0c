// The parts that prompts are made of, each against a plain reference: attention, matrix products
// and what they are fused with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "backends/cuda/host/transfers.h"
#include "backends/cuda/prefill/gemm_hopper.h"
#include "backends/cuda/prefill/prefill_encoder.h"
#include "backends/cuda/prefill/prompt_attention.h"
#include "backends/cuda/prefill/prompt_rows.h"
#include "backends/cuda/prefill/widen.h"
#include "kv/kept_planes.h"
#include "kv/ledger.h"
#include "tests/backends/cuda/cuda_driver.h"
#include "tests/backends/cuda/prefill_reference.h"

namespace loopspec {
namespace {

using cuda::bf16;
using cuda::DeviceArray;

bool HopperIsThere() {
  int major = 0, minor = 0;
  return GpuIsThere() &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess &&
         major == 9 && minor == 0;
}
#define LOOPSPEC_NEEDS_HOPPER() \
  if (!HopperIsThere()) GTEST_SKIP() << "no GPU of compute capability 9.0 here"

std::vector<uint16_t> RandomBits(size_t count, double scale, int seed) {
  std::mt19937 engine(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal(0, scale);
  std::vector<uint16_t> out(count);
  for (uint16_t& v : out) v = FloatToBF16(static_cast<float>(normal(engine)));
  return out;
}

template <typename T, typename U>
void Upload(DeviceArray<T>& to, const std::vector<U>& from) {
  static_assert(sizeof(T) == sizeof(U));
  to = DeviceArray<T>(from.size(), "a test");
  cuda::CopyToDeviceAndWait(to.data(), from.data(), to.bytes(), "a test");
}
std::vector<uint16_t> DownloadBits(const DeviceArray<bf16>& from) {
  return Download(reinterpret_cast<const uint16_t*>(from.data()), from.size());
}

double RelativeError(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

// ---- What the kernels read: no GPU needed ----

TEST(PromptEncoder, RowsTilesAndTailsAreWhereTheyBelong) {
  const cuda::PromptMemory memory{nullptr, 100, 3, 2, 64, 64};
  const int64_t page_elements = 3 * 2 * 2 * kPageSize * 64;
  std::vector<int32_t> pages(40), tokens(2000);
  std::iota(pages.rbegin(), pages.rend(), 5);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<PrefillPlan> parts = {{{pages.data()}, 100, std::span(tokens).first(700)},
                                          {{pages.data() + 20}, 0, std::span(tokens).first(1)},
                                          {{pages.data() + 25}, 64, std::span(tokens).first(64)}};
  const cuda::EncodedPrompt prompt = cuda::EncodePrompt(parts, memory, 256, 2000);
  ASSERT_EQ(prompt.rows.size(), 765u);
  ASSERT_EQ(prompt.chunks.size(), 3u);
  size_t at = 0;
  for (const PrefillPlan& part : parts) {
    for (size_t i = 0; i < part.tokens.size(); ++i, ++at) {
      const int position = part.start + static_cast<int>(i);
      EXPECT_EQ(prompt.rows[at].position, position);
      EXPECT_EQ(prompt.rows[at].token, part.tokens[i]);
      EXPECT_EQ(prompt.rows[at].place, part.sequence.pages[position / kPageSize] * page_elements +
                                           position % kPageSize * 64);
    }
  }
  int rows = 0;
  for (const cuda::PromptChunk& chunk : prompt.chunks) {
    EXPECT_EQ(chunk.row, rows);
    EXPECT_LE(chunk.rows, 256);
    rows += chunk.rows;
    // Every row is in exactly one tile, at its own position, and sees its own pages.
    std::vector<int> seen(static_cast<size_t>(chunk.rows));
    int before = INT32_MAX;
    for (int t = 0; t < chunk.tiles; ++t) {
      const cuda::AttentionTile& tile = prompt.tiles[static_cast<size_t>(chunk.tile + t)];
      EXPECT_LE(tile.tile, before);
      before = tile.tile;
      for (int i = tile.first; i < tile.last; ++i) {
        const int row = tile.row + i;
        ASSERT_GE(row, 0);
        ASSERT_LT(row, chunk.rows);
        ++seen[static_cast<size_t>(row)];
        const cuda::PromptRow& info = prompt.rows[static_cast<size_t>(chunk.row + row)];
        EXPECT_EQ(info.position, tile.tile * cuda::kAttentionTile + i);
        ASSERT_LT(info.position / kPageSize, tile.page_count);
        EXPECT_EQ(info.place / page_elements,
                  prompt.pages[static_cast<size_t>(tile.pages + info.position / kPageSize)]);
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), chunk.rows);
  }
  EXPECT_EQ(rows, 765);
  // Chunks end at positions 356, 612 and, with the other sequences, 800, 1 and 128.
  ASSERT_EQ(prompt.tails.size(), 4u);
  EXPECT_EQ(prompt.tails[0].page, pages[5]);
  EXPECT_EQ(prompt.tails[0].slot, 36);
  EXPECT_EQ(prompt.tails[3].page, pages[20]);
  EXPECT_EQ(prompt.tails[3].slot, 1);
}

// By a plan of keys: a chunk has two spans of a sequence at most, and every query sees the span
// before its own as it was stored, and all before that as the plan reads it.
TEST(PromptEncoder, ReadsByAPlanWhatLiesBeforeTheWindow) {
  ModelSpec spec;
  spec.family = "ouro";
  spec.heads = spec.kv_heads = 2;
  spec.head_dim = 64;
  spec.core_layers = 3;
  spec.recurrence = 4;
  for (const int span : {64, 128, 192}) {
    const SpannedKeyPlan plan = {KeyPlan::Parse("int8,last", 4), span};
    const KeptPlanes kept(spec, 1, plan);
    ASSERT_EQ(kept.slots(), 6);
    ASSERT_EQ(kept.pages_per_turn(), 1);
    std::vector<int32_t> pages(30), other(30), window(static_cast<size_t>(kept.window_pages())),
        tokens(1000);
    std::iota(pages.begin(), pages.end(), 5);
    std::iota(other.begin(), other.end(), 50);
    std::iota(window.begin(), window.end(), 90);
    const std::vector<PrefillPlan> parts = {
        {{pages.data(), window.data()}, 150, std::span(tokens).first(900)},
        {{other.data(), window.data()}, 0, std::span(tokens).first(10)}};
    const cuda::PromptMemory memory{nullptr, 120, 1, 2, 64, 64};
    const cuda::EncodedPrompt prompt = cuda::EncodePrompt(parts, memory, 512, 2000, &kept);
    size_t rows = 0;
    for (const cuda::PromptChunk& chunk : prompt.chunks) {
      // What lies in the pages of PromptMemory: 'f' by the plan, 's' stored, or nothing.
      std::vector<char> holds(prompt.pages.size(), ' ');
      for (int i = 0; i < chunk.far_pages; ++i)
        holds[static_cast<size_t>(prompt.far[static_cast<size_t>(chunk.far + i)].page)] = 'f';
      for (int i = 0; i < chunk.stored_pages; ++i)
        holds[static_cast<size_t>(prompt.stored[static_cast<size_t>(chunk.stored + i)].page)] = 's';
      std::map<bool, int> first;  // of each sequence
      for (int row = 0; row < chunk.rows; ++row) {
        const cuda::PromptRow& at = prompt.rows[static_cast<size_t>(chunk.row + row)];
        const bool second = rows + static_cast<size_t>(row) >= 900;
        first.emplace(second, at.position);
        EXPECT_LT(at.position / span, first[second] / span + 2);
        int tiles = 0;
        for (int t = 0; t < chunk.tiles; ++t) {
          const cuda::AttentionTile& tile = prompt.tiles[static_cast<size_t>(chunk.tile + t)];
          const int in_tile = row - tile.row;
          if (in_tile < tile.first || in_tile >= tile.last) continue;
          ++tiles;
          EXPECT_EQ(tile.tile * cuda::kAttentionTile + in_tile, at.position);
          for (int page = 0; page <= at.position / kPageSize; ++page) {
            ASSERT_LT(page, tile.page_count);
            const auto where =
                static_cast<size_t>(prompt.numbers[static_cast<size_t>(tile.pages + page)]);
            ASSERT_LT(where, prompt.pages.size());
            EXPECT_EQ(prompt.pages[where], (second ? other : pages)[static_cast<size_t>(page)]);
            const bool before = page * kPageSize < first[second];
            EXPECT_EQ(holds[where], page < kept.FarPages(at.position) ? 'f' : before ? 's' : ' ');
            EXPECT_EQ(prompt.windows[where],
                      window[static_cast<size_t>(page % (2 * span / kPageSize))]);
          }
        }
        EXPECT_EQ(tiles, 1);
      }
      rows += static_cast<size_t>(chunk.rows);
    }
    EXPECT_EQ(rows, 910u);
  }
}

TEST(GemmWidth, FillsTheGpuWithFewRows) {
  const cuda::GemmLaunch h200{132, 0, 1, nullptr};
  EXPECT_EQ(cuda::GemmWidth(h200, 1024, 2048, 16), 128);
  EXPECT_EQ(cuda::GemmWidth(h200, 1024, 6144, 64), 192);
  EXPECT_EQ(cuda::GemmWidth(h200, 4096, 11264, 64), 256);
  // Huginn's: 264 tiles for 132 multiprocessors. Gate and up have no such tiles.
  EXPECT_EQ(cuda::GemmWidth(h200, 1024, 5280, 16), 160);
  EXPECT_EQ(cuda::GemmWidth(h200, 1024, 5280, 64) % 64, 0);
}

// ---- Attention ----

class PromptAttention : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(PromptAttention, IsNearDoublePrecision) {
  LOOPSPEC_NEEDS_GPU();
  const auto [head_dim, hopper] = GetParam();
  if (hopper) LOOPSPEC_NEEDS_HOPPER();
  const int heads = 4, kv_heads = 2, planes = 2, plane = 1, page_count = 12, start = 70, end = 500;
  const auto dim = static_cast<size_t>(head_dim);
  cuda::PromptMemory memory{nullptr, page_count, planes, kv_heads, head_dim, head_dim};
  const size_t page = static_cast<size_t>(planes * kv_heads * 2 * kPageSize) * dim;
  std::vector<uint16_t> kv = RandomBits(page * page_count, 1.0, 1);
  const std::vector<uint16_t> q = RandomBits(static_cast<size_t>(512 * heads) * dim, 1.5, 2);
  std::vector<int32_t> pages = {3, 0, 7, 9, 1, 11, 5, 2}, tokens(static_cast<size_t>(end - start));
  const PrefillPlan part{{pages.data()}, start, tokens};
  const cuda::EncodedPrompt prompt = cuda::EncodePrompt({&part, 1}, memory, 512, 1);
  DeviceArray<bf16> device_kv, device_q;
  DeviceArray<cuda::PromptRow> rows;
  DeviceArray<cuda::AttentionTile> tiles;
  DeviceArray<cuda::PageTail> tails;
  DeviceArray<int32_t> device_pages;
  // Values past the end are not numbers until the tails are cleared.
  const auto value_at = [&](int position, int head, int which) {
    return static_cast<size_t>(pages[static_cast<size_t>(position / kPageSize)]) * page +
           (static_cast<size_t>(((plane * kv_heads + head) * 2 + which) * kPageSize +
                                position % kPageSize)) *
               dim;
  };
  for (int position = end; position < 512; ++position) {
    for (int h = 0; h < kv_heads; ++h) {
      for (const int which : {0, 1})
        std::fill_n(kv.begin() + static_cast<int64_t>(value_at(position, h, which)), dim,
                    uint16_t{0xFFFF});
    }
  }
  Upload(device_kv, kv);
  Upload(device_q, q);
  Upload(rows, prompt.rows);
  Upload(tiles, prompt.tiles);
  Upload(tails, prompt.tails);
  Upload(device_pages, prompt.pages);
  const size_t ld = static_cast<size_t>(heads) * dim;
  DeviceArray<bf16> out(512 * ld, "a test");
  cuda::FillAndWait(out.data(), 0xFF, out.bytes());
  memory.pages = device_kv.data();
  cuda::PromptBuffers buffers;
  buffers.heads = heads;
  buffers.ld_attention = static_cast<int>(ld);
  buffers.attention_scale =
      static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(head_dim)));
  buffers.rows = rows.data();
  buffers.q = device_q.data();
  buffers.attention = out.data();
  const cuda::AttentionArguments arguments{buffers,
                                           memory,
                                           plane,
                                           tiles.data(),
                                           device_pages.data(),
                                           static_cast<int>(prompt.tiles.size())};
  cuda::Stream stream;
  cuda::ClearTails(tails.data(), static_cast<int>(prompt.tails.size()), memory, stream.get());
  if (hopper) {
    cuda::HopperAttention(buffers, memory, 512).Run(arguments, stream.get());
  } else {
    cuda::PortableAttention(arguments, stream.get());
  }
  stream.Synchronize();
  const std::vector<uint16_t> bits = DownloadBits(out);
  for (int h = 0; h < heads; ++h) {
    std::vector<double> keys, values, got, expected;
    for (int position = 0; position < end; ++position) {
      for (size_t d = 0; d < dim; ++d) {
        keys.push_back(ToDouble(kv[value_at(position, h / 2, 0) + d]));
        values.push_back(ToDouble(kv[value_at(position, h / 2, 1) + d]));
      }
    }
    double worst = 0;
    int worst_position = -1;
    for (int position = start; position < end; ++position) {
      const size_t row = static_cast<size_t>(position - start);
      std::vector<double> query;
      for (size_t d = 0; d < dim; ++d)
        query.push_back(ToDouble(q[row * ld + static_cast<size_t>(h) * dim + d]));
      const std::vector<double> o =
          ReferenceAttention(query.data(), keys.data(), values.data(), position + 1, head_dim);
      for (size_t d = 0; d < dim; ++d) {
        got.push_back(ToDouble(bits[row * ld + static_cast<size_t>(h) * dim + d]));
        expected.push_back(o[d]);
        const double difference = std::fabs(got.back() - o[d]);
        if (!(difference <= worst)) {
          worst = difference;
          worst_position = position;
        }
      }
    }
    const double relative = RelativeError(got, expected);
    std::printf("    head_dim %d %s head %d: relative error %.5f, worst %.4f at position %d\n",
                head_dim, hopper ? "hopper" : "portable", h, relative, worst, worst_position);
    // Weights and outputs are rounded to bf16, 2^-9 each at most.
    EXPECT_LT(relative, 4e-3);
  }
  // Nothing else was written.
  for (size_t i = static_cast<size_t>(end - start) * ld; i < bits.size(); ++i)
    ASSERT_EQ(bits[i], 0xFFFF);
}

INSTANTIATE_TEST_SUITE_P(Heads, PromptAttention,
                         testing::Values(std::tuple(64, true), std::tuple(128, true),
                                         std::tuple(32, false), std::tuple(64, false),
                                         std::tuple(128, false)));

// ---- Products ----

struct Product {
  Product(int rows_in, int outputs_in, int cols, int seed) : rows(rows_in), outputs(outputs_in) {
    const int ld = cuda::PaddedK(cols), capacity = (rows + 255) / 256 * 256;
    weight_bits = RandomBits(static_cast<size_t>(outputs) * static_cast<size_t>(ld), 0.05, seed);
    input_bits = RandomBits(static_cast<size_t>(capacity) * static_cast<size_t>(ld), 1.0, seed + 1);
    Upload(weights, weight_bits);
    Upload(input, input_bits);
    matrix.data = weights.data();
    matrix.rows = outputs;
    matrix.cols = matrix.ld = ld;
    described = cuda::DescribeWeights(matrix);
    described_input = cuda::DescribeInput(input.data(), capacity, ld);
    cuda::Check(cudaDeviceGetAttribute(&launch.multiprocessors, cudaDevAttrMultiProcessorCount, 0),
                "reading the device");
    launch.stream = stream.get();
    cuda::PrepareGemm(cuda::WeightForm::kBF16);
  }
  std::vector<float> Sums(int width, int cluster, int first = 0) {
    launch.width = width;
    launch.cluster = cluster;
    DeviceArray<float> out(static_cast<size_t>(rows) * static_cast<size_t>(outputs), "a test");
    cuda::FillAndWait(out.data(), 0xFF, out.bytes());
    cuda::GemmSums(launch, described, described_input, {first, rows - first}, out.data(), outputs,
                   outputs);
    stream.Synchronize();
    return Download(out.data(), out.size());
  }

  int rows, outputs;
  std::vector<uint16_t> weight_bits, input_bits;
  DeviceArray<bf16> weights, input;
  cuda::DeviceMatrix matrix;
  cuda::GemmWeights described;
  cuda::GemmInput described_input;
  cuda::GemmLaunch launch;
  cuda::Stream stream;
};

TEST(PromptProducts, AreNearDoublePrecisionAndAlikeInEveryTile) {
  LOOPSPEC_NEEDS_HOPPER();
  for (const auto& [rows, outputs, cols] :
       {std::tuple(1, 16, 64), std::tuple(130, 272, 256), std::tuple(777, 1040, 1024),
        std::tuple(3000, 2048, 512), std::tuple(256, 4096, 2048)}) {
    Product product(rows, outputs, cols, rows);
    const std::vector<float> first = product.Sums(256, 1);
    // A sample of the outputs, and all of the small ones.
    std::vector<double> got, expected;
    const auto ld = static_cast<size_t>(product.matrix.ld);
    for (size_t i = 0; i < first.size(); i += first.size() < 4000 ? 1 : 997) {
      const size_t row = i / static_cast<size_t>(outputs),
                   column = i % static_cast<size_t>(outputs);
      double sum = 0;
      for (size_t k = 0; k < ld; ++k)
        sum += ToDouble(product.input_bits[row * ld + k]) *
               ToDouble(product.weight_bits[column * ld + k]);
      got.push_back(first[i]);
      expected.push_back(sum);
    }
    const double relative = RelativeError(got, expected);
    std::printf("    %d x %d x %d: relative error %.2e\n", rows, outputs, cols, relative);
    // Products of bf16 are exact; the matrix instruction's sums have float32's accuracy, less a few
    // bits that it cuts off.
    EXPECT_LT(relative, 1e-4);
    for (const int width : cuda::kGemmWidths) {
      for (const int cluster : {1, 2}) {
        const std::vector<float> sums = product.Sums(width, cluster);
        size_t differ = 0, where = 0;
        for (size_t i = 0; i < sums.size(); ++i) {
          if (sums[i] == first[i]) continue;
          if (differ++ == 0) where = i;
        }
        ASSERT_EQ(differ, 0u) << "width " << width << " cluster " << cluster << ": first at row "
                              << where / static_cast<size_t>(outputs) << " column "
                              << where % static_cast<size_t>(outputs) << ", " << sums[where]
                              << " and " << first[where];
      }
    }
    if (rows > 100) {  // the same rows from another place in the tiles
      const std::vector<float> shifted = product.Sums(0, 1, 77);
      const auto skip = static_cast<int64_t>(77) * outputs;
      ASSERT_TRUE(std::equal(first.begin() + skip, first.end(), shifted.begin()));
    }
  }
}

// A matrix of few bits beside the same one as bf16: int8 has scales that are powers of two, so that
// no weight has to be rounded.
struct PackedProduct : Product {
  PackedProduct(cuda::WeightForm form, int rows_in, int outputs_in, int cols)
      : Product(rows_in, outputs_in, cols, outputs_in) {
    packed.rows = outputs;
    packed.cols = packed.ld = matrix.ld;
    packed.form = form;
    std::mt19937 engine(static_cast<unsigned>(rows_in));
    std::vector<uint8_t> bytes(packed.bytes());
    const auto unit = static_cast<size_t>(cuda::UnitBytes(form)),
               codes = static_cast<size_t>(cuda::UnitCodeBytes(form));
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t two = static_cast<uint16_t>(engine());
      if (i % unit >= codes) {  // scales of about 0.01, and biases of either sign
        const bool bias = i % unit >= codes + cuda::kUnitScaleBytes;
        const float size = 0.005f + 1e-7f * static_cast<float>(two);
        two = FloatToBF16(!bias ? size / cuda::kCodeStep : (two % 2 == 0 ? 5.0f : -5.0f) * size);
      }
      std::memcpy(&bytes[i], &two, sizeof(two));
    }
    Upload(units, bytes);
    packed.units = reinterpret_cast<const std::byte*>(units.data());
    std::vector<float> sizes(static_cast<size_t>(outputs));
    for (float& size : sizes) size = std::ldexp(1.0f, -static_cast<int>(engine() % 5) - 4);
    Upload(scales, sizes);
    if (form == cuda::WeightForm::kInt8) packed.scales = scales.data();
    cuda::WidenRows(packed, 0, outputs, weights.data(), stream.get());
    stream.Synchronize();
    described_packed = cuda::DescribeWeights(packed);
    cuda::PrepareGemm(form);
  }

  DeviceArray<uint8_t> units;
  DeviceArray<float> scales;
  cuda::DeviceMatrix packed;
  cuda::GemmWeights described_packed;
};

TEST(PromptProducts, OfFewBitsAreThoseOfTheSameWeightsInBF16) {
  LOOPSPEC_NEEDS_HOPPER();
  for (const cuda::WeightForm form :
       {cuda::WeightForm::kInt8, cuda::WeightForm::kInt4, cuda::WeightForm::kInt4Bias}) {
    for (const auto& [rows, outputs, cols] :
         {std::tuple(1, 16, 64), std::tuple(130, 272, 256), std::tuple(777, 1040, 1024),
          std::tuple(3000, 2048, 512), std::tuple(256, 4096, 2048)}) {
      PackedProduct product(form, rows, outputs, cols);
      const std::vector<float> expected = product.Sums(0, 1);
      std::swap(product.described, product.described_packed);
      for (const int width : {128, 256, 0}) {
        const std::vector<float> sums = product.Sums(width, 1);
        for (size_t i = 0; i < sums.size(); ++i) {
          ASSERT_EQ(sums[i], expected[i])
              << "form " << static_cast<int>(form) << ", " << rows << " x " << outputs << " x "
              << cols << ", tiles of " << width << ": row " << i / static_cast<size_t>(outputs)
              << " column " << i % static_cast<size_t>(outputs);
        }
      }
      if (rows > 100) {
        const std::vector<float> shifted = product.Sums(0, 1, 77);
        const auto skip = static_cast<int64_t>(77) * outputs;
        ASSERT_TRUE(std::equal(expected.begin() + skip, expected.end(), shifted.begin()));
      }
    }
  }
}

TEST(PromptProducts, FusedSwiGluIsThatOfTheSums) {
  LOOPSPEC_NEEDS_HOPPER();
  for (const auto& [ff, form] :
       {std::pair(96, cuda::WeightForm::kBF16), std::pair(420, cuda::WeightForm::kBF16),
        std::pair(1024, cuda::WeightForm::kBF16), std::pair(420, cuda::WeightForm::kInt8),
        std::pair(1024, cuda::WeightForm::kInt4)}) {
    ModelSpec spec;
    spec.ff = ff;
    const int outputs = cuda::TileLayout::GateUp(spec).rows(), rows = 333;
    const bool packed = form != cuda::WeightForm::kBF16;
    PackedProduct product(packed ? form : cuda::WeightForm::kInt8, rows, outputs, 256);
    product.launch.width = 0;
    DeviceArray<float> sums(static_cast<size_t>(rows * outputs), "a test");
    const size_t ld = static_cast<size_t>(cuda::PaddedK(ff));
    DeviceArray<bf16> plain(static_cast<size_t>(rows) * ld, "a test", true),
        fused(plain.size(), "a test", true);
    cuda::PromptBuffers buffers;
    buffers.ff = ff;
    buffers.ld_ff = static_cast<int>(ld);
    buffers.ff_in = plain.data();
    cuda::GemmSums(product.launch, product.described, product.described_input, {0, rows},
                   sums.data(), outputs, outputs);
    cuda::FinishSwiGlu(sums.data(), outputs, buffers, rows, product.stream.get());
    cuda::GemmSwiGlu(product.launch, packed ? product.described_packed : product.described,
                     product.described_input, {0, rows}, fused.data(), static_cast<int>(ld));
    product.stream.Synchronize();
    const std::vector<uint16_t> a = DownloadBits(plain), b = DownloadBits(fused);
    // What pads a tile of weights is random here; what it makes is past the end.
    for (size_t i = 0; i < a.size(); ++i) {
      if (i % ld >= static_cast<size_t>(ff)) continue;
      ASSERT_EQ(a[i], b[i]) << "row " << i / ld << " element " << i % ld;
    }
  }
}

TEST(PromptProducts, FusedRotationIsThatOfTheSums) {
  LOOPSPEC_NEEDS_HOPPER();
  for (const auto& [head_dim, heads, kv_heads, form] :
       {std::tuple(64, 8, 2, cuda::WeightForm::kBF16),
        std::tuple(128, 4, 4, cuda::WeightForm::kBF16),
        std::tuple(128, 3, 1, cuda::WeightForm::kBF16),
        std::tuple(64, 8, 2, cuda::WeightForm::kInt4),
        std::tuple(128, 4, 4, cuda::WeightForm::kInt8)}) {
    ModelSpec spec;
    spec.heads = heads;
    spec.kv_heads = kv_heads;
    spec.head_dim = head_dim;
    spec.rope.theta = 10000;
    const int outputs = cuda::TileLayout::Qkv(spec).rows(), rows = 200, planes = 2, page_count = 8;
    const bool packed = form != cuda::WeightForm::kBF16;
    PackedProduct product(packed ? form : cuda::WeightForm::kInt8, rows, outputs, 512);
    cuda::PromptMemory memory{nullptr, page_count, planes, kv_heads, head_dim, head_dim};
    std::vector<int32_t> pages = {6, 2, 5, 0, 7}, tokens(static_cast<size_t>(rows));
    const PrefillPlan part{{pages.data()}, 77, tokens};
    const cuda::EncodedPrompt prompt = cuda::EncodePrompt({&part, 1}, memory, 256, 1);
    DeviceArray<cuda::PromptRow> info;
    DeviceArray<double> frequencies;
    Upload(info, prompt.rows);
    Upload(frequencies, spec.RopeFrequencies());
    const size_t kv =
        static_cast<size_t>(page_count * planes * kv_heads * 2 * kPageSize * head_dim);
    DeviceArray<float2> rope(static_cast<size_t>(rows * head_dim / 2), "a test");
    DeviceArray<float> sums(static_cast<size_t>(rows * outputs), "a test");
    std::vector<uint16_t> q[2], page_bits[2];
    for (const int fused : {0, 1}) {
      DeviceArray<bf16> device_q(static_cast<size_t>(rows * heads * head_dim), "a test", true);
      DeviceArray<bf16> device_kv(kv, "a test", true);
      memory.pages = device_kv.data();
      cuda::PromptBuffers buffers;
      buffers.heads = heads;
      buffers.eps = 1e-6f;
      buffers.rows = info.data();
      buffers.rope = rope.data();
      buffers.q = device_q.data();
      cuda::FillRotations(buffers, frequencies.data(), head_dim / 2, rows, product.stream.get());
      if (fused) {
        cuda::GemmQkv(product.launch, packed ? product.described_packed : product.described,
                      product.described_input, {0, rows}, buffers, memory, 1);
      } else {
        cuda::GemmSums(product.launch, product.described, product.described_input, {0, rows},
                       sums.data(), outputs, outputs);
        cuda::FinishQkv(sums.data(), outputs, {}, buffers, memory, 1, rows, product.stream.get());
      }
      product.stream.Synchronize();
      q[fused] = DownloadBits(device_q);
      page_bits[fused] = DownloadBits(device_kv);
    }
    for (size_t i = 0; i < q[0].size(); ++i)
      ASSERT_EQ(q[0][i], q[1][i]) << "head_dim " << head_dim << ": q, element " << i;
    for (size_t i = 0; i < page_bits[0].size(); ++i)
      ASSERT_EQ(page_bits[0][i], page_bits[1][i])
          << "head_dim " << head_dim << ": pages, element " << i;
    ASSERT_GT(
        std::count_if(page_bits[0].begin(), page_bits[0].end(), [](uint16_t v) { return v != 0; }),
        rows * kv_heads * head_dim);
  }
}

}  // namespace
}  // namespace loopspec

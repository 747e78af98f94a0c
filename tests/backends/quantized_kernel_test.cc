// Products with weights of few bits: every kernel of this machine against the dequantised matrix in
// double precision, against each other and row by row with ==.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "backends/cpu/kv_int8.h"
#include "backends/cpu/matmul_quantized.h"
#include "backends/cpu/ops.h"

namespace loopspec::cpu {
namespace {

using Layout = QuantizedTensor::Layout;

struct Form {
  const char* name;
  Layout layout;
  int64_t group;  // 0: one scale per output
  bool biases, zeros;
  DType scale;
};
constexpr Form kForms[] = {
    {"int8_per_output", Layout::kSigned8, 0, false, false, DType::kF32},
    {"int8_per_output_bf16", Layout::kSigned8, 0, false, false, DType::kBF16},
    {"int8_groups_32", Layout::kSigned8, 32, false, false, DType::kF32},
    {"int8_zero_points", Layout::kSigned8, 64, false, true, DType::kF32},
    {"int4_per_output", Layout::kNibbles, 0, false, false, DType::kF32},
    {"int4_groups_16", Layout::kNibbles, 16, false, false, DType::kBF16},
    {"int4_groups_32", Layout::kNibbles, 32, false, false, DType::kBF16},
    {"int4_groups_128", Layout::kNibbles, 128, false, false, DType::kF16},
    {"int4_zero_points", Layout::kNibbles, 32, false, true, DType::kBF16},
    {"mlx_4_bit", Layout::kNibbles, 64, true, false, DType::kBF16},
    {"mlx_8_bit", Layout::kBytes, 32, true, false, DType::kF16},
    {"Q8_0", Layout::kQ8_0, 32, false, false, DType::kF16},
    {"Q4_0", Layout::kQ4_0, 32, false, false, DType::kF16},
    {"Q4_K", Layout::kQ4_K, 32, false, false, DType::kF16},
    {"Q6_K", Layout::kQ6_K, 16, false, false, DType::kF16}};

// A matrix of random codes with scales around 0.01.
struct Stored {
  std::vector<std::byte> codes, scales, biases, zeros;
  QuantizedTensor tensor;

  Stored(const Form& form, int64_t rows, int64_t columns, uint32_t seed) {
    std::mt19937 random(seed);
    const int64_t group = form.group == 0 ? columns : form.group;
    tensor.layout = form.layout;
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.group = group;
    const BlockSize block = BlockOf(form.layout);
    const int64_t bytes = block.bytes > 0 ? rows * columns / block.elements * block.bytes
                          : form.layout == Layout::kNibbles ? rows * columns / 2
                                                            : rows * columns;
    codes.resize(static_cast<size_t>(bytes));
    for (std::byte& code : codes) code = static_cast<std::byte>(random());
    if (block.bytes > 0) {  // f16 numbers of ordinary size
      for (int64_t at = 0; at < bytes; at += block.bytes) {
        const auto put = [&](int64_t i) {
          const auto half = static_cast<uint16_t>(0x1800u + random() % 0x800u);
          std::memcpy(codes.data() + at + i, &half, 2);
        };
        put(form.layout == Layout::kQ6_K ? 208 : 0);
        if (form.layout == Layout::kQ4_K) put(2);
      }
    } else {
      const int64_t groups = columns / group;
      const auto fill = [&](std::vector<std::byte>& table, double middle) {
        table.resize(static_cast<size_t>(rows * groups) * SizeOf(form.scale));
        for (int64_t i = 0; i < rows * groups; ++i) {
          const float value =
              static_cast<float>(middle * (0.5 + static_cast<double>(random() % 1000) / 1000));
          if (form.scale == DType::kF32) {
            std::memcpy(table.data() + i * 4, &value, 4);
          } else {
            const uint16_t half = form.scale == DType::kBF16
                                      ? FloatToBF16(value)
                                      : static_cast<uint16_t>(0x2000u + random() % 0x400u);
            std::memcpy(table.data() + i * 2, &half, 2);
          }
        }
        return QuantizedTensor::Table{table.data(), form.scale};
      };
      tensor.scales = fill(scales, 0.01);
      if (form.biases) tensor.biases = fill(biases, -0.08);
      if (form.zeros) {
        zeros.resize(static_cast<size_t>((rows + 7) / 8 * 8 * groups * 4));
        for (std::byte& zero : zeros) zero = static_cast<std::byte>(random());
        tensor.zeros = zeros.data();
      }
    }
    tensor.codes = codes.data();
  }
};

std::vector<float> RandomRows(int rows, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (float& value : x) value = normal(random);
  for (int r = 0; r < rows; ++r) x[static_cast<size_t>(r * k + k / 2)] *= 30;  // an outlier each
  return x;
}

std::vector<float> Product(const QuantizedKernel& kernel, const QuantizedMatrix& m,
                           const std::vector<float>& x, const std::vector<int>& rows, int64_t begin,
                           int64_t end, bool in_pieces = false) {
  std::vector<std::byte> packed(kernel.kernel.PackedBytes(static_cast<int>(rows.size()), m.in) +
                                64);
  std::byte* at = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* row = x.data() + rows[r] * m.in;
    if (!in_pieces) {
      kernel.kernel.pack(at, static_cast<int>(r), m.in, 0, row, m.in);
      continue;
    }
    const int64_t piece = kernel.kernel.k_block;
    for (int64_t i = 0; i < m.in; i += piece) {
      kernel.kernel.PackPiece(at, static_cast<int>(r), m.in, i, row + i, std::min(piece, m.in - i));
    }
    kernel.kernel.finish(at, static_cast<int>(r), m.in);
  }
  const int64_t count = end - begin, stride = count + 2;
  std::vector<float> out(rows.size() * static_cast<size_t>(stride), 777.0f);
  MatMulCall call{nullptr, count, m.in, at, static_cast<int>(rows.size()), out.data(), stride};
  call.quantized = &m;
  call.first = begin;
  kernel.kernel.multiply(call);
  std::vector<float> result;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      const float value = out[r * static_cast<size_t>(stride) + static_cast<size_t>(i)];
      if (i < count) {
        result.push_back(value);
      } else {
        EXPECT_EQ(value, 777.0f) << "written past the outputs";
      }
    }
  }
  return result;
}

std::vector<int> FirstRows(int n, int from = 0) {
  std::vector<int> rows;
  for (int r = 0; r < n; ++r) rows.push_back(from + r);
  return rows;
}

bool Equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

class QuantizedMatMul : public testing::TestWithParam<Form> {
 protected:
  // Inputs that the form can have.
  static bool Fits(int64_t k) {
    const Form& form = GetParam();
    if (form.layout == Layout::kNibbles && k % 2 != 0) return false;
    if (form.layout == Layout::kQ4_K || form.layout == Layout::kQ6_K) return k % 256 == 0;
    return form.group == 0 || k % form.group == 0;
  }
};

// The digits are the only rounding that is not float's: each is off by at most half a step.
TEST_P(QuantizedMatMul, AgainstTheDequantisedMatrix) {
  int shapes = 0;
  for (const QuantizedKernel* kernel : AllQuantized()) {
    for (const int64_t k : {2, 8, 30, 32, 96, 100, 128, 256, 384, 640, 1024}) {
      if (!Fits(k)) continue;
      for (const int64_t n : {1, 5, 16, 40, 67}) {
        const Stored stored(GetParam(), n, k, static_cast<uint32_t>(k * 100 + n));
        const PackedQuantized packed = PackQuantized(stored.tensor, kernel->layout);
        const int rows = static_cast<int>((k + n) % 19 + 1);
        const std::vector<float> x = RandomRows(rows, k, 5);
        const std::vector<float> y = Product(*kernel, packed.matrix, x, FirstRows(rows), 0, n);
        std::vector<float> w(static_cast<size_t>(k));
        for (int64_t o = 0; o < n; ++o) {
          stored.tensor.DequantizeRow(o, w.data());
          for (int r = 0; r < rows; ++r) {
            double sum = 0, weight = 0, magnitude = 0, largest = 0;
            for (int64_t i = 0; i < k; ++i) {
              const double value = x[static_cast<size_t>(r * k + i)];
              const double product = value * static_cast<double>(w[static_cast<size_t>(i)]);
              sum += product;
              magnitude += std::fabs(product);
              weight += std::fabs(static_cast<double>(w[static_cast<size_t>(i)]));
              largest = std::max(largest, std::fabs(value));
            }
            // Codes of one sign with a bias of the other cancel: what float rounds is larger.
            const double cancelled = stored.tensor.has_bias() ? 20 : 1;
            ASSERT_NEAR(y[static_cast<size_t>(r * n + o)], sum,
                        weight * largest / 32512 * 0.51 + 2e-6 * cancelled * magnitude + 1e-7)
                << fmt::format("{} k {} n {} row {} output {}", kernel->kernel.name, k, n, r, o);
          }
        }
        ++shapes;
      }
    }
  }
  EXPECT_GT(shapes, 10);
}

// Integer sums are exact, so the instruction set does not matter either.
TEST_P(QuantizedMatMul, AllKernelsAndRowCountsGiveTheSameBits) {
  for (const int64_t k : {100, 256, 768, 2176}) {  // one chunk of inputs, and several
    if (!Fits(k)) continue;
    const int64_t n = 83;
    const Stored stored(GetParam(), n, k, 9);
    const std::vector<float> x = RandomRows(70, k, 11);
    std::vector<float> all;
    for (const QuantizedKernel* kernel : AllQuantized()) {
      const PackedQuantized packed = PackQuantized(stored.tensor, kernel->layout);
      const std::vector<float> whole = Product(*kernel, packed.matrix, x, FirstRows(70), 0, n);
      if (all.empty()) all = whole;
      ASSERT_TRUE(Equal(whole, all)) << kernel->kernel.name;
      for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33}) {
        for (const int first : {0, 70 - count}) {
          const std::vector<float> some =
              Product(*kernel, packed.matrix, x, FirstRows(count, first), 0, n, count % 2 == 1);
          ASSERT_TRUE(Equal(
              some, std::vector<float>(all.begin() + first * n, all.begin() + (first + count) * n)))
              << fmt::format("{} k {}: {} rows from {}", kernel->kernel.name, k, count, first);
        }
      }
      // Any cut of the outputs.
      for (const auto& [begin, end] :
           {std::pair<int64_t, int64_t>{0, 16}, {3, 14}, {15, 50}, {70, 83}}) {
        const std::vector<float> some =
            Product(*kernel, packed.matrix, x, FirstRows(6), begin, end);
        for (int r = 0; r < 6; ++r) {
          for (int64_t i = begin; i < end; ++i) {
            ASSERT_EQ(some[static_cast<size_t>(r * (end - begin) + i - begin)],
                      all[static_cast<size_t>(r * n + i)])
                << kernel->kernel.name;
          }
        }
      }
    }
  }
}

TEST_P(QuantizedMatMul, PoisonStaysInItsRow) {
  const int64_t k = 256, n = 20;
  const Stored stored(GetParam(), n, k, 3);
  for (const QuantizedKernel* kernel : AllQuantized()) {
    const PackedQuantized packed = PackQuantized(stored.tensor, kernel->layout);
    std::vector<float> x = RandomRows(6, k, 2);
    const std::vector<float> before = Product(*kernel, packed.matrix, x, FirstRows(6), 0, n);
    x[static_cast<size_t>(2 * k + 5)] = INFINITY;
    x[static_cast<size_t>(4 * k + 7)] = NAN;
    std::fill_n(x.begin() + 3 * k, k, 0.0f);
    const std::vector<float> after = Product(*kernel, packed.matrix, x, FirstRows(6), 0, n);
    for (int r = 0; r < 6; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(r * n + i);
        if (r == 2 || r == 4) {
          ASSERT_FALSE(std::isfinite(after[at]));
        } else if (r == 3) {
          ASSERT_EQ(after[at], 0.0f);
        } else {
          ASSERT_EQ(before[at], after[at]) << kernel->kernel.name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedMatMul, testing::ValuesIn(kForms),
                         [](const auto& param) { return std::string(param.param.name); });

// Codes and rows at their largest: int32 sums of a group have room for them.
TEST(QuantizedMatMulLimits, LargestSumsDoNotOverflow) {
  constexpr int64_t kInputs = 1024, kOutputs = 16;
  for (const Layout layout : {Layout::kSigned8, Layout::kBytes, Layout::kNibbles}) {
    for (const int64_t group : {16, 32, 64, 128, 256, 512, 1024}) {
      for (const bool biases : {false, true}) {
        if (biases && layout == Layout::kSigned8) continue;
        Stored stored({"limits", layout, group, biases, false, DType::kF32}, kOutputs, kInputs, 1);
        for (const int code : {0x00, 0x7F, 0x80, 0xFF}) {
          std::fill(stored.codes.begin(), stored.codes.end(), static_cast<std::byte>(code));
          std::vector<float> x(3 * kInputs, 1.0f);
          std::fill_n(x.begin() + kInputs, kInputs, -1.0f);
          std::vector<float> w(kInputs), all;
          stored.tensor.DequantizeRow(5, w.data());
          double sum = 0, magnitude = 0;
          for (const float value : w) {
            sum += static_cast<double>(value);
            magnitude += std::fabs(static_cast<double>(value));
          }
          for (const QuantizedKernel* kernel : AllQuantized()) {
            const PackedQuantized packed = PackQuantized(stored.tensor, kernel->layout);
            const std::vector<float> y =
                Product(*kernel, packed.matrix, x, FirstRows(3), 0, kOutputs);
            if (all.empty()) all = y;
            ASSERT_TRUE(Equal(y, all)) << kernel->kernel.name;
            for (int r = 0; r < 3; ++r) {
              ASSERT_NEAR(y[static_cast<size_t>(r * kOutputs + 5)], r == 1 ? -sum : sum,
                          4e-5 * magnitude + 1e-4)
                  << fmt::format("{} group {} code {} row {}", kernel->kernel.name, group, code, r);
            }
          }
        }
      }
    }
  }
}

// By hand, from the layouts' descriptions.
TEST(QuantizedTensor, ZeroPointsAndInterleavedHeads) {
  const uint8_t codes[] = {0x80, 0x00, 0x7F, 0xFF, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const float scales[] = {0.5f, 2.0f, 1.0f, 1.0f};
  const int8_t zeros[] = {1, -2, 0, 0};
  QuantizedTensor t;
  t.rows = 4;
  t.columns = t.group = 4;
  t.codes = reinterpret_cast<const std::byte*>(codes);
  t.scales = {reinterpret_cast<const std::byte*>(scales), DType::kF32};
  t.zeros = reinterpret_cast<const std::byte*>(zeros);
  float row[4];
  t.DequantizeRow(0, row);
  EXPECT_EQ(row[0], -64.5f);
  EXPECT_EQ(row[1], -0.5f);
  EXPECT_EQ(row[2], 63.0f);
  EXPECT_EQ(row[3], -1.0f);
  t.DequantizeRow(1, row);
  EXPECT_EQ(row[0], 6.0f);
  t.interleaved_heads = 4;  // rows 0 1 2 3 of a head lie at 0 2 1 3
  t.DequantizeRow(1, row);
  EXPECT_EQ(row[0], 5.0f);
  t.DequantizeRow(2, row);
  EXPECT_EQ(row[0], 6.0f);
  t.DequantizeRow(3, row);
  EXPECT_EQ(row[0], 9.0f);
}

// ---- int8 keys and values ----

// Keys and values of a text, each position in a page or in a cell.
struct Int8Text {
  int d;
  std::vector<float> keys, values;
  std::vector<std::vector<std::byte>> memory;
  std::vector<KvRun> runs;

  // Positions below `in_pages` lie in pages, the others in cells.
  Int8Text(int head_dim, int64_t positions, int64_t in_pages, uint32_t seed) : d(head_dim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < positions * d; ++i) {
      keys.push_back(normal(random));
      values.push_back(normal(random));
    }
    memory.reserve(static_cast<size_t>(positions + 1));
    for (int64_t at = 0; at < in_pages; at += kPageSize) {
      memory.emplace_back(static_cast<size_t>(2 * kPageSize * (d + 4)), std::byte{0xEE});
      const int64_t count = std::min<int64_t>(kPageSize, in_pages - at);
      for (int64_t p = 0; p < count; ++p) {
        StoreInt8InPage(keys.data() + (at + p) * d, values.data() + (at + p) * d, d,
                        memory.back().data(), static_cast<int>(p));
      }
      runs.push_back({memory.back().data(), memory.back().data(), count});
    }
    for (int64_t p = in_pages; p < positions; ++p) {
      memory.emplace_back(static_cast<size_t>(2 * (d + 4)));
      StoreInt8(keys.data() + p * d, values.data() + p * d, d, memory.back().data());
      runs.push_back({memory.back().data(), memory.back().data(), 1, nullptr, true});
    }
  }
};

// All that this machine can run.
std::vector<AttentionFunction> Int8Attentions(int d) {
  std::vector<AttentionFunction> all = {Int8Attention(d), PortableInt8Attention()};
  for (const AttentionFunction attention :
       {VnniInt8Attention(), UsmmlaInt8Attention(), SdotInt8Attention()}) {
    if (attention != nullptr && d % 16 == 0) all.push_back(attention);
  }
  return all;
}

// `ladder`: each query has a position less than the next, as in a prompt.
std::vector<float> AttendInt8(AttentionFunction attend, const Int8Text& text, int group,
                              const std::vector<float>& q, bool ladder = false) {
  const auto positions = static_cast<int64_t>(text.keys.size()) / text.d;
  std::vector<float> scratch(static_cast<size_t>(group * AttentionScratch(positions, text.d)),
                             99.0f);
  std::vector<float> out(static_cast<size_t>(group * text.d));
  std::vector<AttentionQuery> queries;
  for (int g = 0; g < group; ++g) {
    const int64_t less = ladder ? std::min<int64_t>(group - 1 - g, positions - 1) : 0;
    queries.push_back({q.data() + g * text.d, positions - less, out.data() + g * text.d});
  }
  attend(
      {queries, text.d, 1.0f / std::sqrt(static_cast<float>(text.d)), text.runs, scratch.data()});
  return out;
}

// What is stored of each position: code times scale.
struct Int8Values {
  std::vector<double> keys, values;

  explicit Int8Values(const Int8Text& text) {
    const int d = text.d;
    std::vector<std::byte> cell(static_cast<size_t>(2 * (d + 4)));
    for (size_t p = 0; p < text.keys.size(); p += static_cast<size_t>(d)) {
      StoreInt8(text.keys.data() + p, text.values.data() + p, d, cell.data());
      float scales[2];
      std::memcpy(scales, cell.data() + 2 * d, 8);
      for (int i = 0; i < d; ++i) {
        keys.push_back((static_cast<int>(cell[static_cast<size_t>(i)]) - 128) *
                       static_cast<double>(scales[0]));
        values.push_back((static_cast<int>(cell[static_cast<size_t>(d + i)]) - 128) *
                         static_cast<double>(scales[1]));
      }
    }
  }
};

TEST(Int8Attention, RoundingIsOffByHalfAStepAtMost) {
  const Int8Text text(64, 50, 0, 4);
  const Int8Values stored(text);
  for (size_t p = 0; p < text.keys.size(); p += 64) {
    double largest = 0;
    for (size_t i = 0; i < 64; ++i)
      largest = std::max(largest, std::fabs(static_cast<double>(text.keys[p + i])));
    for (size_t i = 0; i < 64; ++i)
      ASSERT_NEAR(stored.keys[p + i], text.keys[p + i], largest / 127 * 0.5001);
  }
}

TEST(Int8Attention, AgainstRoundedKeysInDouble) {
  for (const int d : {4, 16, 64, 96, 128, 640}) {
    for (const int64_t positions : {1, 5, 63, 64, 65, 200}) {
      const Int8Text text(d, positions, positions - positions / 3, 7);
      const Int8Values stored(text);
      const std::vector<float> q = Int8Text(d, 2, 0, 8).keys;
      for (const AttentionFunction attend : Int8Attentions(d)) {
        const std::vector<float> out = AttendInt8(attend, text, 2, q);
        for (int g = 0; g < 2; ++g) {
          std::vector<double> weights;
          double top = -1e300, sum = 0;
          for (int64_t p = 0; p < positions; ++p) {
            double score = 0;
            for (int i = 0; i < d; ++i)
              score += static_cast<double>(q[static_cast<size_t>(g * d + i)]) *
                       stored.keys[static_cast<size_t>(p * d + i)];
            weights.push_back(score / std::sqrt(d));
            top = std::max(top, weights.back());
          }
          for (double& w : weights) sum += w = std::exp(w - top);
          for (int i = 0; i < d; ++i) {
            double expected = 0;
            for (int64_t p = 0; p < positions; ++p)
              expected += weights[static_cast<size_t>(p)] / sum *
                          stored.values[static_cast<size_t>(p * d + i)];
            // 16-bit queries move scores by some 1e-4, 16-bit weights sums by as much.
            ASSERT_NEAR(out[static_cast<size_t>(g * d + i)], expected, 2e-3)
                << fmt::format("d {} positions {} head {} dimension {}", d, positions, g, i);
          }
        }
      }
    }
  }
}

// Wherever a position lies, and whatever the instruction set.
TEST(Int8Attention, PagesAndCellsAndKernelsGiveTheSameBits) {
  for (const int d : {12, 64, 128, 640}) {
    for (const int64_t positions : {1, 64, 130, 300}) {
      const std::vector<float> q = RandomRows(3, d, 5);
      std::vector<float> first;
      for (const int64_t in_pages : {int64_t{0}, positions / 2, positions - 1, positions}) {
        const Int8Text text(d, positions, in_pages, 3);
        for (const AttentionFunction attend : Int8Attentions(d)) {
          const std::vector<float> out = AttendInt8(attend, text, 3, q);
          if (first.empty()) first = out;
          ASSERT_TRUE(Equal(out, first))
              << fmt::format("d {} positions {} of which {} in pages", d, positions, in_pages);
        }
      }
    }
  }
}

TEST(Int8Attention, QueriesTogetherChangeNoBit) {
  for (const int d : {12, 64, 96, 640}) {
    for (const int64_t positions : {1, 3, 64, 67, 130, 200}) {
      const std::vector<float> q = RandomRows(kMostQueries, d, 5);
      const Int8Text text(d, positions, positions, 3);
      for (const AttentionFunction attend : Int8Attentions(d)) {
        const std::vector<float> together = AttendInt8(attend, text, kMostQueries, q, true);
        for (int g = 0; g < kMostQueries; ++g) {
          const int64_t own = std::max<int64_t>(positions - (kMostQueries - 1 - g), 1);
          Int8Text shorter(d, positions, positions, 3);
          shorter.keys.resize(static_cast<size_t>(own * d));
          shorter.runs.resize(static_cast<size_t>((own + kPageSize - 1) / kPageSize));
          shorter.runs.back().count = (own - 1) % kPageSize + 1;
          const auto from = [&](const std::vector<float>& all) {
            return std::vector<float>(all.begin() + g * d, all.begin() + (g + 1) * d);
          };
          ASSERT_TRUE(Equal(AttendInt8(attend, shorter, 1, from(q)), from(together)))
              << fmt::format("d {} positions {} query {}", d, positions, g);
        }
      }
    }
  }
}

// A cell that is committed is what would have been written into the page.
TEST(Int8Attention, CommitIsWriting) {
  const int d = 64;
  const std::vector<float> x = RandomRows(2, d, 1);
  std::vector<std::byte> cell(2 * (d + 4)), a(2 * kPageSize * (d + 4)), b = a;
  for (const int position : {0, 5, 17, 63}) {
    StoreInt8(x.data(), x.data() + d, d, cell.data());
    CopyInt8ToPage(cell.data(), d, a.data(), position);
    StoreInt8InPage(x.data(), x.data() + d, d, b.data(), position);
  }
  EXPECT_TRUE(a == b);
}

TEST(Int8Attention, NaNShows) {
  Int8Text text(64, 70, 64, 2);
  std::vector<float> q = RandomRows(1, 64, 5);
  q[3] = NAN;
  EXPECT_TRUE(std::isnan(AttendInt8(Int8Attention(64), text, 1, q)[0]));
  const std::vector<float> good = RandomRows(1, 64, 5);
  std::vector<float> bad(64, 1.0f);
  bad[5] = INFINITY;
  StoreInt8(bad.data(), bad.data(), 64, text.memory.back().data());
  EXPECT_TRUE(std::isnan(AttendInt8(Int8Attention(64), text, 1, good)[0]));
}

}  // namespace
}  // namespace loopspec::cpu

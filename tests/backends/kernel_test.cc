// Every kernel of this machine against plain double-precision references, over many shapes; row
// independence with ==.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backends/cpu/matmul.h"
#include "backends/cpu/ops.h"

namespace loopspec::cpu {
namespace {

// Memory whose last byte is followed by a page that cannot be touched: reading one byte too far
// ends the test.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + mapped_ - page, page, PROT_NONE), 0);
    data_ = base_ + mapped_ - page - bytes;
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t size() const { return bytes_; }

 private:
  std::byte *base_, *data_;
  size_t bytes_, mapped_;
};

uint16_t FloatToF16(float value) {  // normal range only
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 127 + 15;
  if (exponent <= 0) return static_cast<uint16_t>(bits >> 16 & 0x8000u);
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | static_cast<uint32_t>(exponent) << 10 |
                               (bits >> 13 & 0x3FFu));
}

void Store(std::byte* to, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(to + i * 4, &value, 4);
  } else {
    const uint16_t half = dtype == DType::kBF16 ? FloatToBF16(value) : FloatToF16(value);
    std::memcpy(to + i * 2, &half, 2);
  }
}

struct TypePair {
  DType weights, activations;
};
constexpr TypePair kTypes[] = {{DType::kF32, DType::kF32},
                               {DType::kBF16, DType::kF32},
                               {DType::kF16, DType::kF32},
                               {DType::kBF16, DType::kBF16}};

// One weight matrix and a set of rows, with what the products should be.
struct Problem {
  Problem(const TypePair& pair, int64_t inputs, int64_t outputs, int row_count, uint32_t seed)
      : types(pair),
        k(inputs),
        n(outputs),
        rows(row_count),
        weights(static_cast<size_t>(outputs * inputs) * SizeOf(pair.weights)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < n * k; ++i) Store(weights.data(), types.weights, i, normal(random));
    x.resize(static_cast<size_t>(rows * k));
    for (float& value : x) value = normal(random);
  }

  // The product in double, and the sum of magnitudes that rounding errors are measured by.
  std::pair<double, double> Expected(int row, int64_t output) const {
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < k; ++i) {
      float value = x[static_cast<size_t>(row * k + i)];
      if (types.activations == DType::kBF16) value = BF16ToFloat(FloatToBF16(value));
      const double product =
          static_cast<double>(value) *
          static_cast<double>(LoadElement(weights.data(), types.weights, output * k + i));
      sum += product;
      magnitude += std::fabs(product);
    }
    return {sum, magnitude};
  }

  TypePair types;
  int64_t k, n;
  int rows;
  Guarded weights;
  std::vector<float> x;
};

// Packs the named rows and multiplies outputs [begin, end). The packed rows end at a guard page;
// outputs are surrounded by a mark that must stay.
std::vector<float> Multiply(const MatMulKernel& kernel, const Problem& problem,
                            const std::vector<int>& rows, int64_t begin, int64_t end,
                            bool in_pieces = false) {
  const Guarded packed(kernel.PackedBytes(static_cast<int>(rows.size()), problem.k));
  std::memset(packed.data(), 0xFF, packed.size());  // NaNs, should a padded place be left as it was
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* values = problem.x.data() + rows[r] * problem.k;
    const int64_t piece = in_pieces ? kernel.k_block : problem.k;
    for (int64_t at = 0; at < problem.k; at += piece) {
      kernel.pack(packed.data(), static_cast<int>(r), problem.k, at, values + at,
                  std::min(piece, problem.k - at));
    }
  }
  constexpr float kMark = 12345.0f;
  const int64_t count = end - begin, stride = count + 3;
  std::vector<float> out(rows.size() * static_cast<size_t>(stride), kMark);
  const int64_t row_bytes = problem.k * static_cast<int64_t>(SizeOf(problem.types.weights));
  kernel.multiply({problem.weights.data() + begin * row_bytes, count, problem.k, packed.data(),
                   static_cast<int>(rows.size()), out.data(), stride});
  std::vector<float> result;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      const float value = out[r * static_cast<size_t>(stride) + static_cast<size_t>(i)];
      if (i < count) {
        result.push_back(value);
      } else {
        EXPECT_EQ(value, kMark) << "written past the outputs";
      }
    }
  }
  return result;
}

std::vector<int> AllRows(int n) {
  std::vector<int> rows(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) rows[static_cast<size_t>(r)] = r;
  return rows;
}

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

class MatMul : public testing::TestWithParam<TypePair> {};

TEST_P(MatMul, AgainstTheReferenceOverShapes) {
  uint32_t seed = 1;
  int shapes = 0;
  for (const MatMulKernel* kernel : AllMatMuls(GetParam().weights, GetParam().activations)) {
    for (const int64_t k : {1, 7, 8, 9, 31, 33, 64, 96, 100, 384, 1024, 2048, 5280}) {
      for (const int64_t n : {1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 23, 31, 33, 39, 40, 200}) {
        if (k * n > 100000) continue;
        const int rows = std::array{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33}[seed % 12];
        const Problem problem(GetParam(), k, n, rows, seed++);
        const std::vector<float> ours = Multiply(*kernel, problem, AllRows(rows), 0, n);
        for (int r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            const auto [expected, magnitude] = problem.Expected(r, i);
            ASSERT_NEAR(ours[static_cast<size_t>(r * n + i)], expected, 2e-6 * magnitude + 1e-7)
                << fmt::format("{} k {} n {} rows {} at {}, {}", kernel->name, k, n, rows, r, i);
          }
        }
        ++shapes;
      }
    }
  }
  EXPECT_GT(shapes, 100);
}

TEST_P(MatMul, ARowAloneIsTheRowAmongOthers) {
  for (const MatMulKernel* kernel : AllMatMuls(GetParam().weights, GetParam().activations)) {
    for (const int64_t k : {9, 64, 100, 384}) {
      for (const int64_t n : {1, 7, 40, 67}) {
        const Problem problem(GetParam(), k, n, 34, static_cast<uint32_t>(k * 100 + n));
        std::vector<std::vector<float>> alone;
        for (int r = 0; r < problem.rows; ++r)
          alone.push_back(Multiply(*kernel, problem, {r}, 0, n));
        for (const int count : {2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 34}) {
          for (const int first : {0, 34 - count}) {
            std::vector<int> rows;
            for (int r = 0; r < count; ++r) rows.push_back(first + r);
            const std::vector<float> together = Multiply(*kernel, problem, rows, 0, n);
            for (int r = 0; r < count; ++r) {
              for (int64_t i = 0; i < n; ++i) {
                ASSERT_TRUE(SameBits(together[static_cast<size_t>(r * n + i)],
                                     alone[static_cast<size_t>(first + r)][static_cast<size_t>(i)]))
                    << fmt::format("{} k {} n {} {} rows from {}: row {} output {}", kernel->name,
                                   k, n, count, first, r, i);
              }
            }
          }
        }
      }
    }
  }
}

// Rows next to a row of infinities and NaNs keep their values.
TEST_P(MatMul, PoisonStaysInItsRow) {
  for (const MatMulKernel* kernel : AllMatMuls(GetParam().weights, GetParam().activations)) {
    Problem problem(GetParam(), 100, 20, 6, 3);
    const std::vector<float> before = Multiply(*kernel, problem, AllRows(6), 0, 20);
    for (int64_t i = 0; i < 100; ++i)
      problem.x[static_cast<size_t>(200 + i)] = i % 2 == 0 ? INFINITY : NAN;
    const std::vector<float> after = Multiply(*kernel, problem, AllRows(6), 0, 20);
    for (int r = 0; r < 6; ++r) {
      for (int i = 0; i < 20; ++i) {
        const auto at = static_cast<size_t>(r * 20 + i);
        if (r != 2) {
          ASSERT_TRUE(SameBits(before[at], after[at])) << kernel->name;
        } else {
          ASSERT_FALSE(std::isfinite(after[at]));
        }
      }
    }
  }
}

// The cut of the outputs among threads and of the inputs among packers changes no bit.
TEST_P(MatMul, PartsAreTheWhole) {
  for (const MatMulKernel* kernel : AllMatMuls(GetParam().weights, GetParam().activations)) {
    const Problem problem(GetParam(), 200, 75, 5, 4);
    const std::vector<float> whole = Multiply(*kernel, problem, AllRows(5), 0, 75);
    for (int64_t begin = 0; begin < 75; begin += kernel->grain) {
      const int64_t end = std::min<int64_t>(75, begin + kernel->grain);
      const std::vector<float> part = Multiply(*kernel, problem, AllRows(5), begin, end, true);
      for (int r = 0; r < 5; ++r) {
        for (int64_t i = begin; i < end; ++i) {
          ASSERT_TRUE(SameBits(part[static_cast<size_t>(r * (end - begin) + i - begin)],
                               whole[static_cast<size_t>(r * 75 + i)]))
              << kernel->name;
        }
      }
    }
  }
}

// safetensors packs tightly: weights start at any multiple of their element.
TEST_P(MatMul, UnalignedWeights) {
  for (const MatMulKernel* kernel : AllMatMuls(GetParam().weights, GetParam().activations)) {
    const Problem problem(GetParam(), 72, 19, 4, 5);
    const std::vector<float> aligned = Multiply(*kernel, problem, AllRows(4), 0, 19);
    std::vector<std::byte> packed(kernel->PackedBytes(4, 72) + 64);
    std::byte* at = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
    for (int r = 0; r < 4; ++r) kernel->pack(at, r, 72, 0, problem.x.data() + r * 72, 72);
    for (const size_t elements : {1, 3, 5}) {
      const size_t offset = elements * SizeOf(GetParam().weights);
      std::vector<std::byte> moved(problem.weights.size() + 128);
      std::byte* to =
          moved.data() + (64 - reinterpret_cast<uintptr_t>(moved.data()) % 64) % 64 + offset;
      std::memcpy(to, problem.weights.data(), problem.weights.size());
      std::vector<float> out(4 * 19);
      kernel->multiply({to, 19, 72, at, 4, out.data(), 19});
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_TRUE(SameBits(out[i], aligned[i])) << kernel->name << " offset " << offset;
    }
  }
}

// Weights shuffled at load give the same bits, from any multiple of the grain on.
TEST_P(MatMul, PackedWeightsAreTheSameSums) {
  for (const MatMulKernel* kernel : AllMatMuls(GetParam().weights, GetParam().activations)) {
    if (kernel->pack_weights == nullptr) continue;
    for (const int64_t k : {1, 3, 12, 48}) {
      for (const int64_t n : {1, 2, 5, 16}) {
        const Problem problem(GetParam(), k * kernel->k_block, n * kernel->grain, 17, 6);
        const Guarded shuffled(kernel->packed_weight_bytes(problem.n, problem.k));
        kernel->pack_weights(problem.weights.data(), problem.n, problem.k, shuffled.data());
        for (const int rows : {1, 2, 3, 8, 9, 17}) {
          const Guarded packed(kernel->PackedBytes(rows, problem.k));
          for (int r = 0; r < rows; ++r) {
            kernel->pack(packed.data(), r, problem.k, 0, problem.x.data() + r * problem.k,
                         problem.k);
          }
          const std::vector<float> plain = Multiply(*kernel, problem, AllRows(rows), 0, problem.n);
          for (const int64_t begin : {int64_t{0}, n / 2 * kernel->grain}) {
            const int64_t count = problem.n - begin;
            std::vector<float> out(static_cast<size_t>(rows * count));
            kernel->multiply_packed(
                {shuffled.data() + kernel->packed_weight_bytes(begin, problem.k), count, problem.k,
                 packed.data(), rows, out.data(), count});
            for (int r = 0; r < rows; ++r) {
              for (int64_t i = 0; i < count; ++i) {
                ASSERT_TRUE(SameBits(out[static_cast<size_t>(r * count + i)],
                                     plain[static_cast<size_t>(r * problem.n + begin + i)]))
                    << fmt::format("{} k {} n {} rows {} from {}", kernel->name, problem.k,
                                   problem.n, rows, begin);
              }
            }
          }
        }
      }
    }
  }
}

std::string PairName(const TypePair& types) {
  return fmt::format("{}_weights_{}_rows", NameOf(types.weights), NameOf(types.activations));
}
INSTANTIATE_TEST_SUITE_P(All, MatMul, testing::ValuesIn(kTypes),
                         [](const auto& param) { return PairName(param.param); });

// ---- Attention ----

struct AttentionProblem {
  AttentionProblem(DType type, int size, int queries, int64_t length, uint32_t seed)
      : kv(type),
        head_dim(size),
        group(queries),
        positions(length),
        keys(static_cast<size_t>(length * size) * SizeOf(type)),
        values(static_cast<size_t>(length * size) * SizeOf(type)),
        q(static_cast<size_t>(queries * size)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1.5f);
    for (int64_t i = 0; i < positions * head_dim; ++i) {
      Store(keys.data(), kv, i, normal(random));
      Store(values.data(), kv, i, normal(random));
    }
    for (float& value : q) value = normal(random);
  }

  std::vector<double> Expected() const {
    std::vector<double> out(q.size());
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
    for (int g = 0; g < group; ++g) {
      std::vector<double> scores(static_cast<size_t>(positions));
      for (int64_t j = 0; j < positions; ++j) {
        for (int d = 0; d < head_dim; ++d) {
          float value = q[static_cast<size_t>(g * head_dim + d)];
          if (kv == DType::kBF16) value = BF16ToFloat(FloatToBF16(value));
          scores[static_cast<size_t>(j)] +=
              static_cast<double>(value) *
              static_cast<double>(LoadElement(keys.data(), kv, j * head_dim + d)) * scale;
        }
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& score : scores) total += score = std::exp(score - top);
      for (int d = 0; d < head_dim; ++d) {
        double sum = 0;
        for (int64_t j = 0; j < positions; ++j) {
          sum += scores[static_cast<size_t>(j)] / total *
                 static_cast<double>(LoadElement(values.data(), kv, j * head_dim + d));
        }
        out[static_cast<size_t>(g * head_dim + d)] = sum;
      }
    }
    return out;
  }

  // Cut at the given positions; with `apart`, every run in memory of its own, as pages and cells
  // are.
  std::vector<float> Run(AttentionFunction attention, const std::vector<int64_t>& cuts,
                         bool apart) const {
    std::vector<KvRun> runs;
    std::vector<std::unique_ptr<Guarded>> copies;
    const auto row = static_cast<int64_t>(SizeOf(kv)) * head_dim;
    int64_t at = 0;
    for (size_t c = 0; c <= cuts.size(); ++c) {
      const int64_t end = c < cuts.size() ? cuts[c] : positions;
      if (end == at) continue;
      KvRun run{keys.data() + at * row, values.data() + at * row, end - at};
      if (apart) {
        for (const std::byte** part : {&run.keys, &run.values}) {
          copies.push_back(std::make_unique<Guarded>(static_cast<size_t>((end - at) * row)));
          std::memcpy(copies.back()->data(), *part, static_cast<size_t>((end - at) * row));
          *part = copies.back()->data();
        }
      }
      runs.push_back(run);
      at = end;
    }
    std::vector<float> out(q.size());
    std::vector<AttentionQuery> queries;
    for (int g = 0; g < group; ++g)
      queries.push_back({q.data() + g * head_dim, positions - less(g), out.data() + g * head_dim});
    Attend(attention, queries, runs);
    return out;
  }
  // The same, a query at a time.
  std::vector<float> RunAlone(AttentionFunction attention) const {
    const KvRun all{keys.data(), values.data(), positions};
    std::vector<float> out(q.size());
    for (int g = 0; g < group; ++g) {
      KvRun run = all;
      run.count = positions - less(g);
      Attend(attention, {{{q.data() + g * head_dim, run.count, out.data() + g * head_dim}}},
             {&run, 1});
    }
    return out;
  }
  void Attend(AttentionFunction attention, const std::vector<AttentionQuery>& queries,
              std::span<const KvRun> runs) const {
    const auto size = static_cast<size_t>(AttentionScratch(queries.back().positions, head_dim));
    const Guarded scratch(queries.size() * size * sizeof(float));
    std::memset(scratch.data(), 0xFF, scratch.size());
    attention({queries, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)), runs,
               scratch.as<float>()});
  }
  // How many positions query g has less than the last: as in a prompt, where `ladder` is set.
  int64_t less(int g) const { return ladder ? std::min<int64_t>(group - 1 - g, positions - 1) : 0; }

  DType kv;
  int head_dim, group;
  int64_t positions;
  bool ladder = false;
  Guarded keys, values;
  std::vector<float> q;
};

std::vector<std::pair<std::string, AttentionFunction>> Attentions(DType kv) {
  std::vector<std::pair<std::string, AttentionFunction>> all = {{"Highway", HighwayAttention(kv)},
                                                                {"chosen", ChooseAttention(kv)}};
  if (kv == DType::kBF16 && BfdotAttention() != nullptr) all.push_back({"BFDOT", BfdotAttention()});
  return all;
}

TEST(Attention, AgainstTheReference) {
  uint32_t seed = 0;
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    for (const auto& [name, attention] : Attentions(kv)) {
      for (const int head_dim : {2, 6, 16, 20, 32, 48, 64, 80, 96, 128, 256}) {
        for (const int group : {1, 2, 3}) {
          for (const int64_t positions : {1, 2, 3, 4, 5, 8, 63, 64, 65, 200}) {
            const AttentionProblem problem(kv, head_dim, group, positions, ++seed);
            const std::vector<float> ours = problem.Run(attention, {}, false);
            const std::vector<double> expected = problem.Expected();
            for (size_t i = 0; i < ours.size(); ++i) {
              ASSERT_NEAR(ours[i], expected[i], kv == DType::kBF16 ? 2e-2 : 2e-5)
                  << fmt::format("{} {} head_dim {} group {} positions {}", name, NameOf(kv),
                                 head_dim, group, positions);
            }
          }
        }
      }
    }
  }
}

TEST(Attention, TheCutIntoRunsChangesNoBit) {
  std::mt19937 random(1);
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    for (const auto& [name, attention] : Attentions(kv)) {
      for (const int head_dim : {2, 6, 20, 64, 80, 96, 128}) {
        for (const int64_t positions : {2, 7, 70, 133}) {
          const AttentionProblem problem(kv, head_dim, 2, positions, 9);
          const std::vector<float> whole = problem.Run(attention, {}, false);
          for (int trial = 0; trial < 12; ++trial) {
            std::vector<int64_t> cuts;
            for (int64_t at = 1; at < positions; ++at) {
              if (trial == 0 || (trial == 1 && at % 64 == 0) ||
                  (trial > 1 && random() % static_cast<uint32_t>(trial) == 0)) {
                cuts.push_back(at);
              }
            }
            const std::vector<float> cut = problem.Run(attention, cuts, true);
            for (size_t i = 0; i < cut.size(); ++i) {
              ASSERT_TRUE(SameBits(cut[i], whole[i]))
                  << fmt::format("{} {} head_dim {} positions {} trial {}", name, NameOf(kv),
                                 head_dim, positions, trial);
            }
          }
        }
      }
    }
  }
}

TEST(Attention, QueriesTogetherChangeNoBit) {
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    for (const auto& [name, attention] : Attentions(kv)) {
      for (const int head_dim : {2, 6, 20, 48, 64, 80, 96, 128}) {
        for (int queries = 1; queries <= kMostQueries; ++queries) {
          for (const int64_t positions : {1, 2, 7, 63, 64, 65, 66, 70, 133, 200}) {
            for (const bool ladder : {false, true}) {
              AttentionProblem problem(kv, head_dim, queries, positions, 17);
              problem.ladder = ladder;
              const std::vector<float> alone = problem.RunAlone(attention);
              std::vector<int64_t> pages, cells;
              for (int64_t at = 64; at < positions; at += 64) pages.push_back(at);
              for (int64_t at = 1; at < positions; ++at) {
                if (at % 64 == 0 || at + 5 > positions) cells.push_back(at);
              }
              for (const auto& cuts : {{}, pages, cells}) {
                const std::vector<float> together = problem.Run(attention, cuts, true);
                for (size_t i = 0; i < alone.size(); ++i) {
                  ASSERT_TRUE(SameBits(together[i], alone[i])) << fmt::format(
                      "{} {} head_dim {} queries {} positions {} ladder {} cuts {}", name,
                      NameOf(kv), head_dim, queries, positions, ladder, cuts.size());
                }
              }
            }
          }
        }
      }
    }
  }
}

// ---- The small operations ----

std::vector<float> Normal(size_t n, uint32_t seed, float sigma = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Ops, RmsNorm) {
  for (const size_t n : {1, 2, 3, 7, 8, 9, 31, 64, 100, 384, 2048}) {
    for (const float sigma : {1e-6f, 1.0f, 1000.0f}) {
      const std::vector<float> x = Normal(n, 1, sigma), weight = Normal(n, 2);
      double squares = 0;
      for (const float value : x)
        squares += static_cast<double>(value) * static_cast<double>(value);
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
      std::vector<float> out(n), in_place = x;
      RmsNorm(x.data(), weight.data(), 1e-6f, static_cast<int64_t>(n), out.data());
      RmsNorm(in_place.data(), weight.data(), 1e-6f, static_cast<int64_t>(n), in_place.data());
      for (size_t i = 0; i < n; ++i) {
        const double expected = static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]);
        ASSERT_NEAR(out[i], expected, 2e-6 * std::fabs(expected) + 1e-12);
        ASSERT_TRUE(SameBits(out[i], in_place[i]));
      }
    }
  }
}

TEST(Ops, AddSwiGluAndRounding) {
  for (const size_t n : {1, 3, 4, 7, 8, 15, 64, 100}) {
    const std::vector<float> gate = Normal(n, 3, 20.0f), up = Normal(n, 4);
    std::vector<float> out(n), sum = gate;
    SwiGlu(gate.data(), up.data(), static_cast<int64_t>(n), out.data());
    AddTo(sum.data(), up.data(), static_cast<int64_t>(n));
    std::vector<uint16_t> rounded(n);
    ToBF16(gate.data(), static_cast<int64_t>(n), rounded.data());
    for (size_t i = 0; i < n; ++i) {
      const double g = gate[i];
      const double expected = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
      ASSERT_NEAR(out[i], expected, 1e-5 * std::fabs(expected) + 1e-12);
      ASSERT_EQ(sum[i], gate[i] + up[i]);
      ASSERT_EQ(rounded[i], FloatToBF16(gate[i]));
    }
  }
  // Far out the gate is closed or open, never a NaN.
  const float far[] = {-1e4f, 1e4f, -88.0f, 88.0f, -3e38f, 3e38f, 0.0f, -0.0f};
  float one[8], out[8];
  std::fill(one, one + 8, 1.0f);
  SwiGlu(far, one, 8, out);
  for (int i = 0; i < 8; ++i)
    EXPECT_NEAR(out[i], std::max(far[i], 0.0f), std::fabs(far[i]) * 1e-5f) << far[i];
  // Elements do not depend on their place: vector body and tail are the same arithmetic.
  const std::vector<float> gate = Normal(33, 5, 3.0f), up = Normal(33, 6);
  std::vector<float> whole(33);
  SwiGlu(gate.data(), up.data(), 33, whole.data());
  for (size_t i = 0; i < 33; ++i) {
    float single = 0;
    SwiGlu(gate.data() + i, up.data() + i, 1, &single);
    ASSERT_TRUE(SameBits(single, whole[i])) << i;
  }
}

TEST(Ops, Injections) {
  for (const size_t n : {1, 2, 3, 7, 8, 9, 31, 64, 100, 1536}) {
    const std::vector<float> s = Normal(n, 8), decay = Normal(n, 9, 0.5f), u = Normal(n, 10);
    double ku = 0, uu = 0;
    for (size_t i = 0; i < n; ++i) {
      const double k = static_cast<double>(decay[i]) * static_cast<double>(s[i]);
      ku += k * static_cast<double>(u[i]);
      uu += static_cast<double>(u[i]) * static_cast<double>(u[i]);
    }
    for (const double eps : {1e-6, 0.5}) {
      std::vector<float> diagonal = s, orthogonal = s;
      InjectDiagonal(diagonal.data(), decay.data(), u.data(), static_cast<int64_t>(n));
      InjectOrthogonal(orthogonal.data(), decay.data(), u.data(), static_cast<float>(eps),
                       static_cast<int64_t>(n));
      for (size_t i = 0; i < n; ++i) {
        const double k = static_cast<double>(decay[i]) * static_cast<double>(s[i]);
        const double add = u[i];
        ASSERT_NEAR(diagonal[i], k + add, 1e-6) << n;
        ASSERT_NEAR(orthogonal[i], k - ku / (uu + eps) * add + add, 4e-6) << n;
      }
    }
  }
}

TEST(Ops, Rotate) {
  for (const int n : {2, 4, 6, 20, 64, 80, 96, 128}) {
    const std::vector<float> x = Normal(static_cast<size_t>(n), 7);
    std::vector<float> cos(static_cast<size_t>(n / 2)), sin(cos.size()), head = x;
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i) + 0.3f);
      sin[i] = std::sin(static_cast<float>(i) + 0.3f);
    }
    Rotate(head.data(), cos.data(), sin.data(), n);
    for (size_t i = 0; i < cos.size(); ++i) {
      const double a = x[i], b = x[i + cos.size()], c = cos[i], s = sin[i];
      ASSERT_NEAR(head[i], a * c - b * s, 1e-6);
      ASSERT_NEAR(head[i + cos.size()], b * c + a * s, 1e-6);
    }
    // Interleaved, it is the same arithmetic on other places.
    std::vector<float> pairs(x.size()), turned = head;
    for (size_t i = 0; i < cos.size(); ++i) {
      pairs[2 * i] = x[i];
      pairs[2 * i + 1] = x[i + cos.size()];
      turned[2 * i] = head[i];
      turned[2 * i + 1] = head[i + cos.size()];
    }
    RotateInterleaved(pairs.data(), cos.data(), sin.data(), n);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(pairs[i], turned[i], 1e-6) << n << " " << i;
  }
}

}  // namespace
}  // namespace loopspec::cpu

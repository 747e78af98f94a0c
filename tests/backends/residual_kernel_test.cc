// Residuals against the last loop's keys: their packing, and attention that adds them, by every
// kernel of this machine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backends/cpu/kv_int8.h"
#include "backends/cpu/kv_residual.h"
#include "backends/cpu/ops.h"
#include "kv/key_plan.h"
#include "tensor/dtype.h"

namespace loopspec::cpu {
namespace {

bool Equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> Normal(int64_t count, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// A head of a cell.
std::vector<std::byte> Cell(const float* key, const float* value, int d) {
  std::vector<std::byte> cell(static_cast<size_t>(2 * (d + 4)));
  StoreInt8(key, value, d, cell.data());
  return cell;
}

// The numbers that a cell holds of a key (part 0) or a value (part 1).
std::vector<float> Held(const std::vector<std::byte>& cell, int d, int part) {
  float scale;
  std::memcpy(&scale, cell.data() + 2 * d + 4 * part, 4);
  std::vector<float> numbers;
  for (int i = 0; i < d; ++i) {
    const auto stored = static_cast<int>(cell[static_cast<size_t>(part * d + i)]);
    numbers.push_back(static_cast<float>(stored - 128) * scale);
  }
  return numbers;
}

// ---- Packing ----

// Positions come in any order, in memory that others used before.
TEST(Residuals, OfAPositionAreThoseOfThePlainForm) {
  for (const int d : {4, 12, 64, 96, 128}) {
    for (int bits = kFewestResidualBits; bits <= kMostResidualBits; ++bits) {
      std::vector<std::byte> page(static_cast<size_t>(ResidualPageBytes(bits, d)), std::byte{0xEE});
      std::vector<int> order;
      for (int i = 0; i < kPageSize; ++i) order.push_back(i * 37 % kPageSize);
      std::vector<std::vector<std::byte>> own(kPageSize), last(kPageSize);
      for (const uint32_t round : {1u, 2u}) {
        for (const int p : order) {
          const uint32_t seed = round * 1000 + static_cast<uint32_t>(p);
          const std::vector<float> from = Normal(2 * d, seed);
          std::vector<float> x = Normal(2 * d, seed + 500, 0.2f);
          for (size_t i = 0; i < x.size(); ++i) x[i] += from[i];
          const auto at = static_cast<size_t>(p);
          last[at] = Cell(from.data(), from.data() + d, d);
          own[at] = Cell(x.data(), x.data() + d, d);
          StoreResidual(own[at].data(), last[at].data(), bits, d, page.data(), p);
        }
      }
      const ResidualPageHead head(page.data(), bits, d);
      EXPECT_EQ(head.value_scales + 2 * kPageSize, page.data() + page.size());
      for (const int part : {0, 1}) {
        std::vector<std::byte> numbers(static_cast<size_t>(kPageSize * d));
        UnpackResiduals(part == 0 ? head.keys : head.values, bits, std::ssize(numbers),
                        numbers.data());
        for (int p = 0; p < kPageSize; ++p) {
          const auto at = static_cast<size_t>(p);
          const std::vector<float> from = Held(last[at], d, part);
          std::vector<int8_t> levels(static_cast<size_t>(d));
          const float scale =
              RoundResidual(bits, from.data(), Held(own[at], d, part).data(), d, levels.data());
          uint16_t stored;
          std::memcpy(&stored, (part == 0 ? head.key_scales : head.value_scales) + 2 * p, 2);
          ASSERT_EQ(BF16ToFloat(stored), scale);
          for (int i = 0; i < d; ++i) {
            const int64_t place =
                part == 0 ? Int8PageHead::KeyAt(p, i, d) : Int8PageHead::ValueAt(p, i, d);
            const int number = static_cast<int>(numbers[static_cast<size_t>(place)]);
            ASSERT_EQ(number - (1 << (bits - 1)), levels[static_cast<size_t>(i)])
                << fmt::format("d {} bits {} part {} position {} number {}", d, bits, part, p, i);
          }
        }
      }
    }
  }
}

TEST(Residuals, OfAPageAreThoseOfItsCells) {
  const int d = 12;
  const std::vector<float> x = Normal(2 * d, 1);
  std::vector<std::byte> page(2 * kPageSize * (d + 4));
  const std::vector<std::byte> cell = Cell(x.data(), x.data() + d, d);
  for (const int position : {0, 17, 63}) {
    CopyInt8ToPage(cell.data(), d, page.data(), position);
    std::vector<std::byte> back(cell.size());
    CopyInt8FromPage(page.data(), d, back.data(), position);
    EXPECT_TRUE(back == cell);
  }
}

TEST(Residuals, OfWhatIsNoNumberHaveNoScale) {
  const int d = 4;
  const float good[] = {1, 2, 3, 4}, bad[] = {1, NAN, 3, 4};
  std::vector<std::byte> page(static_cast<size_t>(ResidualPageBytes(3, d)));
  StoreResidual(Cell(bad, good, d).data(), Cell(good, good, d).data(), 3, d, page.data(), 5);
  const ResidualPageHead head(page.data(), 3, d);
  uint16_t scales[2];
  std::memcpy(scales, head.key_scales + 10, 2);
  std::memcpy(scales + 1, head.value_scales + 10, 2);
  EXPECT_TRUE(std::isnan(BF16ToFloat(scales[0])));
  EXPECT_EQ(scales[1], 0);
}

// ---- Attention ----

// A text whose first pages have residuals of several loops, one for each entry of `bits`; the last
// positions lie in cells.
struct ResidualText {
  int d;
  int64_t positions;
  std::vector<std::vector<std::byte>> memory, cells;
  std::vector<KvRun> runs;
  struct Loop {
    int bits;
    std::vector<std::vector<std::byte>> memory = {};
    std::vector<const std::byte*> pages = {};
    std::vector<double> keys = {}, values = {};  // of all positions, with the residuals
  };
  std::vector<Loop> loops;

  // `change`: what a loop's keys have beyond the last one's, by the spread of its numbers.
  ResidualText(int head_dim, int64_t count, int64_t far_pages, std::vector<int> bits,
               float change = 0.2f)
      : d(head_dim), positions(count) {
    const std::vector<float> last = Normal(2 * positions * d, 3);
    const int64_t in_pages = std::max(far_pages * kPageSize, positions - 3);
    for (int64_t at = 0; at < positions; ++at) {
      const float* key = last.data() + 2 * at * d;
      cells.push_back(Cell(key, key + d, d));
      if (at >= in_pages) continue;
      if (at % kPageSize == 0)
        memory.emplace_back(static_cast<size_t>(2 * kPageSize * (d + 4)), std::byte{0xEE});
      CopyInt8ToPage(cells.back().data(), d, memory.back().data(),
                     static_cast<int>(at % kPageSize));
    }
    for (size_t page = 0; page < memory.size(); ++page) {
      const int64_t begin = static_cast<int64_t>(page) * kPageSize;
      runs.push_back({memory[page].data(), memory[page].data(),
                      std::min<int64_t>(kPageSize, in_pages - begin)});
    }
    for (int64_t at = in_pages; at < positions; ++at) {
      const std::byte* cell = cells[static_cast<size_t>(at)].data();
      runs.push_back({cell, cell, 1, nullptr, true});
    }
    for (const int b : bits) AddLoop(b, far_pages, last, change);
  }

  void AddLoop(int bits, int64_t far_pages, const std::vector<float>& last, float change) {
    Loop loop{bits};
    const std::vector<float> more =
        Normal(2 * positions * d, 40 + static_cast<uint32_t>(loops.size()), change);
    for (int64_t at = 0; at < positions; ++at) {
      const std::vector<std::byte>& cell = cells[static_cast<size_t>(at)];
      std::vector<float> own(static_cast<size_t>(2 * d));
      for (size_t i = 0; i < own.size(); ++i)
        own[i] =
            last[static_cast<size_t>(2 * at * d) + i] + more[static_cast<size_t>(2 * at * d) + i];
      const std::vector<std::byte> own_cell =
          change == 0 ? cell : Cell(own.data(), own.data() + d, d);
      const bool far = at < far_pages * kPageSize;
      if (far) {
        if (at % kPageSize == 0)
          loop.memory.emplace_back(static_cast<size_t>(ResidualPageBytes(bits, d)),
                                   std::byte{0xEE});
        StoreResidual(own_cell.data(), cell.data(), bits, d, loop.memory.back().data(),
                      static_cast<int>(at % kPageSize));
      }
      for (const int part : {0, 1}) {
        const std::vector<float> from = Held(cell, d, part);
        std::vector<float> x = Held(own_cell, d, part);
        if (far) {
          RoundToForm(ResidualKeys(bits), from.data(), x.data(), d);
        } else {
          x = from;
        }
        std::vector<double>& all = part == 0 ? loop.keys : loop.values;
        all.insert(all.end(), x.begin(), x.end());
      }
    }
    for (const auto& page : loop.memory) loop.pages.push_back(page.data());
    loops.push_back(std::move(loop));
  }
};

std::vector<AttentionFunction> Kernels(int d) {
  std::vector<AttentionFunction> all = {Int8Attention(d), PortableInt8Attention()};
  for (const AttentionFunction attention :
       {VnniInt8Attention(), UsmmlaInt8Attention(), SdotInt8Attention()}) {
    if (attention != nullptr && d % 16 == 0) all.push_back(attention);
  }
  return all;
}

// Query i reads loop i, or with -1 the last loop alone.
std::vector<float> Attend(AttentionFunction attend, const ResidualText& text,
                          const std::vector<int>& loops, const std::vector<float>& q,
                          std::span<const KvRun> runs, std::span<const OwnRuns> own = {}) {
  const int d = text.d;
  const auto count = static_cast<int64_t>(loops.size());
  std::vector<float> scratch(static_cast<size_t>(count * AttentionScratch(text.positions, d)),
                             99.f);
  std::vector<float> out(loops.size() * static_cast<size_t>(d));
  std::vector<AttentionQuery> queries;
  for (int64_t i = 0; i < count; ++i) {
    queries.push_back({q.data() + i * d, text.positions, out.data() + i * d});
    const int loop = loops[static_cast<size_t>(i)];
    if (loop < 0) continue;
    queries.back().residuals = text.loops[static_cast<size_t>(loop)].pages;
    queries.back().bits = text.loops[static_cast<size_t>(loop)].bits;
  }
  attend({queries, d, 1.0f / std::sqrt(static_cast<float>(d)), runs, scratch.data(), own,
          own.empty() ? 0 : text.positions});
  return out;
}

std::vector<float> AttendAlone(AttentionFunction attend, const ResidualText& text, int loop,
                               const float* q) {
  return Attend(attend, text, {loop}, std::vector<float>(q, q + text.d), text.runs);
}

TEST(ResidualAttention, AgainstTheSumInDouble) {
  for (const int d : {4, 16, 96, 128}) {
    for (int bits = kFewestResidualBits; bits <= kMostResidualBits; ++bits) {
      const ResidualText text(d, 200, 2, {bits});
      const std::vector<double>&keys = text.loops[0].keys, &values = text.loops[0].values;
      const std::vector<float> q = Normal(d, 8);
      std::vector<double> weights;
      double top = -1e300, sum = 0;
      for (size_t p = 0; p < 200; ++p) {
        double score = 0;
        for (size_t i = 0; i < q.size(); ++i)
          score += static_cast<double>(q[i]) * keys[p * q.size() + i];
        weights.push_back(score / std::sqrt(d));
        top = std::max(top, weights.back());
      }
      for (double& w : weights) sum += w = std::exp(w - top);
      for (const AttentionFunction attend : Kernels(d)) {
        const std::vector<float> out = AttendAlone(attend, text, 0, q.data());
        for (size_t i = 0; i < q.size(); ++i) {
          double expected = 0;
          for (size_t p = 0; p < 200; ++p) expected += weights[p] / sum * values[p * q.size() + i];
          ASSERT_NEAR(out[i], expected, 2e-3) << fmt::format("d {} bits {}", d, bits);
        }
      }
    }
  }
}

TEST(ResidualAttention, AllKernelsGiveTheSameBits) {
  for (const int d : {16, 64, 96, 128, 512}) {
    for (int bits = kFewestResidualBits; bits <= kMostResidualBits; ++bits) {
      const ResidualText text(d, 64 * 3 + 9, 3, {bits});
      const std::vector<float> q = Normal(d, 8);
      const std::vector<float> expected = AttendAlone(PortableInt8Attention(), text, 0, q.data());
      EXPECT_FALSE(Equal(AttendAlone(PortableInt8Attention(), text, -1, q.data()), expected));
      for (const AttentionFunction attend : Kernels(d))
        ASSERT_TRUE(Equal(AttendAlone(attend, text, 0, q.data()), expected))
            << fmt::format("d {} bits {}", d, bits);
    }
  }
}

// A loop whose keys are the last one's adds nothing, not a bit.
TEST(ResidualAttention, NothingChangedIsTheLastLoop) {
  const ResidualText text(64, 150, 2, {2, 5}, 0.0f);
  const std::vector<float> q = Normal(64, 8);
  for (const AttentionFunction attend : Kernels(64)) {
    const std::vector<float> last = AttendAlone(attend, text, -1, q.data());
    EXPECT_TRUE(Equal(AttendAlone(attend, text, 0, q.data()), last));
    EXPECT_TRUE(Equal(AttendAlone(attend, text, 1, q.data()), last));
  }
}

// Queries of several loops that read the last one's pages together, and rows of their own after
// them: each gets what it gets alone.
TEST(ResidualAttention, QueriesOfSeveralLoopsChangeNoBit) {
  for (const int d : {12, 64, 128}) {
    for (const int64_t positions : {129, 200, 330}) {
      const ResidualText text(d, positions, 2, {7, 3, 4});
      const std::vector<int> loops = {0, 0, 1, -1, 2, 1, 2, 0};
      const std::vector<float> q = Normal(std::ssize(loops) * d, 5);
      const std::span<const KvRun> runs = text.runs;
      std::vector<OwnRuns> own;
      for (size_t i = 0; i < loops.size(); i += 2) own.push_back({i, i + 2, runs.subspan(2)});
      for (const AttentionFunction attend : Kernels(d)) {
        const std::vector<float> together = Attend(attend, text, loops, q, runs);
        ASSERT_TRUE(Equal(Attend(attend, text, loops, q, runs.first(2), own), together));
        for (size_t i = 0; i < loops.size(); ++i) {
          const auto at = static_cast<int64_t>(i) * d;
          const std::vector<float> alone = AttendAlone(attend, text, loops[i], q.data() + at);
          ASSERT_TRUE(
              Equal(alone, std::vector<float>(together.begin() + at, together.begin() + at + d)))
              << fmt::format("d {} positions {} query {}", d, positions, i);
        }
      }
    }
  }
}

TEST(ResidualAttention, WhatIsNoNumberShows) {
  const int d = 64;
  ResidualText text(d, 150, 2, {4});
  const std::vector<float> q = Normal(d, 8);
  const std::vector<float> good(64, 1.0f), bad(64, INFINITY);
  for (const bool of_key : {true, false}) {
    std::vector<std::byte> page = text.loops[0].memory[1];
    StoreResidual(Cell((of_key ? bad : good).data(), (of_key ? good : bad).data(), d).data(),
                  Cell(good.data(), good.data(), d).data(), 4, d, page.data(), 5);
    text.loops[0].pages[1] = page.data();
    for (const AttentionFunction attend : Kernels(d))
      EXPECT_TRUE(std::isnan(AttendAlone(attend, text, 0, q.data())[0]));
  }
}

}  // namespace
}  // namespace loopspec::cpu

// Attention over int8 keys and values, for instruction sets that give two integer sums;
// everything else is the same operations on floats in the same order, so all give the same bits.
//
//   score[p] = q . k[p] * scale       q as 16-bit integers in two int8 digits, one scale; the key's
//                                     scale is folded into the score
//   out      = sum of e^(score - max) v / sum of e^(score - max)
//
// The sum over values goes by chunks of 64 positions, counted from the first of the text: a chunk's
// weights, each times its value's scale, become two digits with a scale of the chunk's own; its
// integer sums are exact in any order, and chunks are added in order. So it does not matter what
// lies in pages and what in cells.
//
// Where a query adds residuals to a page (kv_residual.h), the same is done with the residuals right
// after the page itself: a second term of each score, and a second sum of the chunk with digits of
// its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "backends/cpu/kv_int8.h"
#include "backends/cpu/kv_residual.h"
#include "backends/cpu/ops.h"
#include "tensor/dtype.h"

namespace loopspec::cpu {

// `Ops`, a type of the including file, has
//   Keys(keys, hi, lo, d, blocks, ahead, hi_sums, lo_sums)     sums of 16 positions for each block
//   Values(values, hi, lo, d, blocks, ahead, hi_sums, lo_sums) sums of d dimensions over
//                                                              kValueBlock x blocks positions
//   Unpack(packed, bits, count, out)                           as UnpackResiduals
// and may fetch as much as it reads from `ahead` on, unless that is null.
template <class Ops>
class Int8AttentionKernel {
 public:
  static void Attend(const AttentionCall& call) { Int8AttentionKernel(call).Run(); }

 private:
  static constexpr int kChunk = kPageSize;
  static constexpr int kLanes = 16;
  static constexpr int kGathered = kMostResidualDims;  // dimensions of a head, mostly

  // A query on its way.
  struct State {
    float* scores;
    int8_t *hi, *lo;
    int32_t hi_offset, lo_offset;  // what storing keys plus 128 adds to every sum
    float scale;
  };

  explicit Int8AttentionKernel(const AttentionCall& call)
      : call_(call), d_(call.head_dim), count_(call.queries.size()) {
    const int64_t room = (call.positions() + kLanes - 1) / kLanes * kLanes;
    value_scales_ = call.Scratch(0) + room;
    if (!call.own.empty()) {
      for (const KvRun& run : call.runs) shared_ += run.count;
    }
    std::fill_n(own_scales_, kMostQueries, value_scales_);
    for (const OwnRuns& own : call.own)
      std::fill(own_scales_ + own.begin, own_scales_ + own.end, call.Scratch(own.begin) + room);
    for (size_t i = 0; i < count_; ++i) {
      State& state = states_[i];
      state.scores = call.Scratch(i);
      state.hi = reinterpret_cast<int8_t*>(state.scores + 2 * room);
      state.lo = state.hi + d_;
      state.scale =
          Digits(call.queries[i].q, d_, state.hi, state.lo, state.hi_offset, state.lo_offset) *
          call.scale;
      state.hi_offset *= 128;
      state.lo_offset *= 128;
    }
  }

  void Run() {
    Scores();
    float sums[kMostQueries];
    for (size_t i = 0; i < count_; ++i) {
      sums[i] = Softmax(states_[i].scores, call_.queries[i].positions);
      std::fill_n(call_.queries[i].out, d_, 0.0f);
    }
    if (!call_.own.empty()) {
      Values(call_.runs, 0, shared_, 0, count_);
      for (const OwnRuns& own : call_.own) {
        int64_t end = 0;
        for (size_t i = own.begin; i < own.end; ++i)
          end = std::max(end, call_.queries[i].positions);
        Values(own.runs, shared_, end, own.begin, own.end);
      }
    } else if (d_ <= kGathered) {
      Values(call_.runs, 0, call_.positions(), 0, count_);
    } else {
      for (size_t i = 0; i < count_; ++i) Wide(i);
    }
    for (size_t i = 0; i < count_; ++i) {
      const float inverse = 1.0f / sums[i];
      float* out = call_.queries[i].out;
      for (int j = 0; j < d_; ++j) out[j] = out[j] * inverse;
    }
  }

  // Two digits of 16-bit integers with one scale, which is returned; their sums for what was stored
  // plus 128.
  static float Digits(const float* x, int n, int8_t* hi, int8_t* lo, int32_t& hi_sum,
                      int32_t& lo_sum) {
    int32_t top = 0;
    for (int i = 0; i < n; ++i) top = std::max(top, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
    const float largest = std::bit_cast<float>(top);
    hi_sum = lo_sum = 0;
    if (top >= 0x7F800000 || largest < 1e-30f) {
      std::fill_n(hi, n, int8_t{0});
      std::fill_n(lo, n, int8_t{0});
      return top >= 0x7F800000 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    }
    const float inverse = 32512.0f / largest;
    int32_t hs = 0, ls = 0;
    for (int i = 0; i < n; ++i) {
      const int32_t v = std::bit_cast<int32_t>(x[i] * inverse + 12582912.0f) - 0x4B400000;
      const int32_t h = (v + 128) >> 8, l = v - h * 256;
      hi[i] = static_cast<int8_t>(h);
      lo[i] = static_cast<int8_t>(l);
      hs += h;
      ls += l;
    }
    hi_sum = hs;
    lo_sum = ls;
    return largest / 32512.0f;
  }

  static float Together(int32_t hi, int32_t lo) {
    return 256.0f * static_cast<float>(hi) + static_cast<float>(lo);
  }

  // Of a run whose first position is `at`, how many query i has.
  int64_t Part(size_t i, int64_t at, int64_t count) const {
    return std::clamp<int64_t>(call_.queries[i].positions - at, 0, count);
  }

  // What is read after the keys of a run: those of the next, or the first values.
  const std::byte* AfterKeys(std::span<const KvRun> runs, size_t run) const {
    return run + 1 < runs.size() ? runs[run + 1].keys : Page(runs.front()).values;
  }
  static int64_t ValueBlocks(int64_t positions) {
    return (positions + kValueBlock - 1) / kValueBlock;
  }
  const std::byte* AfterValues(std::span<const KvRun> runs, size_t run) const {
    return run + 1 < runs.size() ? Page(runs[run + 1]).values : runs.front().next;
  }
  Int8PageHead Page(const KvRun& run) const {
    return Int8PageHead(const_cast<std::byte*>(run.keys), d_);
  }

  void Scores() {
    Scores(call_.runs, 0, call_.own.empty() ? call_.positions() : shared_, 0, count_,
           value_scales_);
    for (const OwnRuns& own : call_.own) {
      Scores(own.runs, shared_, call_.positions(), own.begin, own.end, own_scales_[own.begin]);
    }
  }

  // Of queries [begin, end) over runs whose first position is `at`; `scales`: gets those of values.
  void Scores(std::span<const KvRun> runs, int64_t at, int64_t last, size_t begin, size_t end,
              float* scales) {
    alignas(64) int32_t hi_out[kChunk], lo_out[kChunk];
    for (size_t r = 0; r < runs.size() && at < last; ++r) {
      const KvRun& run = runs[r];
      if (run.cell) {
        CellScores(run, at++, begin, end, scales);
        continue;
      }
      const Int8PageHead page = Page(run);
      for (size_t i = begin; i < end; ++i) {
        const State& state = states_[i];
        const auto count = static_cast<int>(Part(i, at, run.count));
        Ops::Keys(page.keys, state.hi, state.lo, d_, (count + kKeyBlock - 1) / kKeyBlock,
                  i == begin ? AfterKeys(runs, r) : nullptr, hi_out, lo_out);
        for (int j = 0; j < count; ++j) {
          state.scores[at + j] =
              Together(hi_out[j] - state.hi_offset, lo_out[j] - state.lo_offset) *
              (page.key_scales[j] * state.scale);
        }
        AddResidualScores(i, at);
      }
      const int64_t count = Part(end - 1, at, run.count);
      std::copy_n(page.value_scales, count, scales + at);
      at += count;
    }
  }

  // Of the page whose first position is `at`; null: none.
  const std::byte* Residual(size_t query, int64_t at) const {
    const auto page = static_cast<size_t>(at / kPageSize);
    const auto& residuals = call_.queries[query].residuals;
    return page < residuals.size() ? residuals[page] : nullptr;
  }
  // The 64 d numbers at `packed`, unless they were unpacked for the query before.
  void Unpack(const std::byte* packed, int bits) {
    if (unpacked_from_ == packed) return;
    unpacked_from_ = packed;
    Ops::Unpack(packed, bits, int64_t{kPageSize} * d_, unpacked_);
  }
  // Numbers are stored plus 2^(bits - 1) where int8 ones are plus 128.
  static int32_t ResidualOffset(int32_t int8_offset, int bits) { return int8_offset >> (8 - bits); }
  static float ResidualScale(const std::byte* scales, int position) {
    uint16_t scale;
    std::memcpy(&scale, scales + 2 * position, 2);
    return BF16ToFloat(scale);
  }

  void AddResidualScores(size_t query, int64_t at) {
    const std::byte* residual = Residual(query, at);
    if (residual == nullptr) return;
    const State& state = states_[query];
    const int bits = call_.queries[query].bits;
    const ResidualPageHead page(residual, bits, d_);
    Unpack(page.keys, bits);
    alignas(64) int32_t hi_out[kChunk], lo_out[kChunk];
    Ops::Keys(unpacked_, state.hi, state.lo, d_, kChunk / kKeyBlock, nullptr, hi_out, lo_out);
    const int32_t hi_offset = ResidualOffset(state.hi_offset, bits);
    const int32_t lo_offset = ResidualOffset(state.lo_offset, bits);
    for (int j = 0; j < kChunk; ++j) {
      const float term = Together(hi_out[j] - hi_offset, lo_out[j] - lo_offset) *
                         (ResidualScale(page.key_scales, j) * state.scale);
      state.scores[at + j] = state.scores[at + j] + term;
    }
  }

  void CellScores(const KvRun& run, int64_t at, size_t begin, size_t end, float* scales) {
    const auto* key = reinterpret_cast<const uint8_t*>(run.keys);
    float key_scale;
    std::memcpy(&key_scale, run.keys + 2 * d_, 4);
    std::memcpy(scales + at, run.keys + 2 * d_ + 4, 4);
    for (size_t i = begin; i < end; ++i) {
      const State& state = states_[i];
      if (at >= call_.queries[i].positions) continue;
      int32_t h = 0, l = 0;
      for (int j = 0; j < d_; ++j) {
        h += key[j] * state.hi[j];
        l += key[j] * state.lo[j];
      }
      state.scores[at] =
          Together(h - state.hi_offset, l - state.lo_offset) * (key_scale * state.scale);
    }
  }

  // e^x for -80 <= x <= 0, from its halves 2^n e^r.
  static float Exp(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    float r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    float p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t power = (std::bit_cast<int32_t>(shifted) - 0x4B400000 + 127) << 23;
    return p * std::bit_cast<float>(power);
  }

  // scores -> e^(score - max), in place; returns their sum, by 16 partial sums. Comparisons are of
  // the floats' bits as integers, which compilers turn into vector instructions.
  static float Softmax(float* scores, int64_t n) {
    int32_t top_bits = std::numeric_limits<int32_t>::min(), largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<int32_t>(scores[i]);
      top_bits = std::max(top_bits, Ordered(bits));
      largest = std::max(largest, bits & 0x7FFFFFFF);
    }
    if (largest >= 0x7F800000) {
      std::fill_n(scores, n, std::numeric_limits<float>::quiet_NaN());
      return std::numeric_limits<float>::quiet_NaN();
    }
    const float top = std::bit_cast<float>(Ordered(top_bits));
    for (int64_t i = n; i < (n + kLanes - 1) / kLanes * kLanes; ++i) scores[i] = top - 100.0f;
    // Of negative numbers the lesser one's bits are greater.
    constexpr auto kCut = std::bit_cast<uint32_t>(-80.0f);
    float parts[kLanes] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        const auto bits = std::bit_cast<uint32_t>(scores[i + j] - top);
        const float e = Exp(std::bit_cast<float>(std::min(bits, kCut)));
        const uint32_t kept = bits < kCut ? ~0u : 0u;
        const auto weight = std::bit_cast<float>(std::bit_cast<uint32_t>(e) & kept);
        scores[i + j] = weight;
        parts[j] += weight;
      }
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) parts[j] += parts[j + half];
    }
    return parts[0];
  }
  // A float's bits as an integer of the same order, and back.
  static int32_t Ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

  // Chunk after chunk of positions [at, last), which `runs` hold, for queries [first_query,
  // last_query): where it is one page's, from there; where cells are in it, gathered first.
  void Values(std::span<const KvRun> runs, int64_t at, int64_t last, size_t first_query,
              size_t last_query) {
    size_t run = 0;
    while (at < last) {
      const int64_t end = std::min(at + kChunk, last);
      const KvRun& first = runs[run];
      if (!first.cell && first.count >= end - at) {
        AddChunk(Page(first).values, at, end, AfterValues(runs, run), first_query, last_query);
        ++run;
      } else {
        alignas(64) std::byte values[kChunk * kGathered];
        int position = 0;
        for (; position < end - at; ++run) {
          const KvRun& part = runs[run];
          if (part.cell) {
            for (int i = 0; i < d_; ++i)
              values[Int8PageHead::ValueAt(position, i, d_)] = part.keys[d_ + i];
            ++position;
          } else {
            std::memcpy(values, Page(part).values,
                        static_cast<size_t>(ValueBlocks(part.count) * kValueBlock * d_));
            position += static_cast<int>(part.count);
          }
        }
        // Places past the last position count nothing, whatever they hold.
        for (; position % kValueBlock != 0; ++position) {
          for (int i = 0; i < d_; ++i)
            values[Int8PageHead::ValueAt(position, i, d_)] = std::byte{0};
        }
        AddChunk(values, at, end, nullptr, first_query, last_query);
      }
      at = end;
    }
  }

  // Heads that no model has: the same sums, a position and dimension at a time.
  void Wide(size_t query) {
    float* out = call_.queries[query].out;
    const int64_t positions = call_.queries[query].positions;
    int64_t at = 0;
    size_t run = 0;
    int64_t in_run = 0;
    alignas(64) int8_t hi[kChunk], lo[kChunk];
    alignas(64) int32_t hi_out[kInt8MostDims], lo_out[kInt8MostDims];
    while (at < positions) {
      const int64_t end = std::min(at + kChunk, positions);
      int32_t hi_sum, lo_sum;
      const float scale = ChunkDigits(query, at, end, hi, lo, hi_sum, lo_sum);
      std::fill_n(hi_out, d_, -128 * hi_sum);
      std::fill_n(lo_out, d_, -128 * lo_sum);
      for (int64_t p = at; p < end; ++p) {
        const KvRun& part = call_.runs[run];
        for (int i = 0; i < d_; ++i) {
          const int v = static_cast<int>(
              part.cell
                  ? part.keys[d_ + i]
                  : Page(part).values[Int8PageHead::ValueAt(static_cast<int>(in_run), i, d_)]);
          hi_out[i] += v * hi[p - at];
          lo_out[i] += v * lo[p - at];
        }
        if (++in_run == part.count) {
          in_run = 0;
          ++run;
        }
      }
      for (int i = 0; i < d_; ++i) out[i] = out[i] + Together(hi_out[i], lo_out[i]) * scale;
      at = end;
    }
  }

  float ChunkDigits(size_t query, int64_t begin, int64_t end, int8_t* hi, int8_t* lo,
                    int32_t& hi_sum, int32_t& lo_sum) const {
    float weights[kChunk];
    const float* scores = states_[query].scores;
    const float* scales = begin < shared_ ? value_scales_ : own_scales_[query];
    const auto n = static_cast<int>(end - begin);
    for (int i = 0; i < n; ++i) weights[i] = scores[begin + i] * scales[begin + i];
    return Digits(weights, n, hi, lo, hi_sum, lo_sum);
  }

  void AddResidualValues(size_t query, int64_t begin) {
    const std::byte* residual = Residual(query, begin);
    if (residual == nullptr) return;
    const int bits = call_.queries[query].bits;
    const ResidualPageHead page(residual, bits, d_);
    Unpack(page.values, bits);
    float weights[kChunk];
    for (int i = 0; i < kChunk; ++i)
      weights[i] = states_[query].scores[begin + i] * ResidualScale(page.value_scales, i);
    alignas(64) int8_t hi[kChunk], lo[kChunk];
    int32_t hi_sum, lo_sum;
    const float scale = Digits(weights, kChunk, hi, lo, hi_sum, lo_sum);
    alignas(64) int32_t hi_out[kGathered], lo_out[kGathered];
    Ops::Values(unpacked_, hi, lo, d_, kChunk / kValueBlock, nullptr, hi_out, lo_out);
    const int32_t hi_offset = ResidualOffset(128 * hi_sum, bits);
    const int32_t lo_offset = ResidualOffset(128 * lo_sum, bits);
    float* out = call_.queries[query].out;
    for (int i = 0; i < d_; ++i)
      out[i] = out[i] + Together(hi_out[i] - hi_offset, lo_out[i] - lo_offset) * scale;
  }

  // Positions [begin, end) of these queries, as far as each goes.
  void AddChunk(const std::byte* values, int64_t begin, int64_t end, const std::byte* ahead,
                size_t first_query, size_t last_query) {
    alignas(64) int32_t hi_out[kGathered], lo_out[kGathered];
    for (size_t q = first_query; q < last_query; ++q) {
      const int64_t count = Part(q, begin, end - begin);
      if (count == 0) continue;
      alignas(64) int8_t hi[kChunk] = {}, lo[kChunk] = {};
      int32_t hi_sum, lo_sum;
      const float scale = ChunkDigits(q, begin, begin + count, hi, lo, hi_sum, lo_sum);
      Ops::Values(values, hi, lo, d_, static_cast<int>(ValueBlocks(count)),
                  q == first_query ? ahead : nullptr, hi_out, lo_out);
      float* out = call_.queries[q].out;
      for (int i = 0; i < d_; ++i)
        out[i] = out[i] + Together(hi_out[i] - 128 * hi_sum, lo_out[i] - 128 * lo_sum) * scale;
      AddResidualValues(q, begin);
    }
  }

  const AttentionCall& call_;
  const int d_;
  const size_t count_;
  State states_[kMostQueries];
  float* value_scales_;                   // of all positions, or of the shared ones
  float* own_scales_[kMostQueries] = {};  // of the positions after the shared ones, by query
  int64_t shared_ = 0;                    // positions that call.own come after
  const std::byte* unpacked_from_ = nullptr;
  alignas(64) std::byte unpacked_[kChunk * kGathered];
};

}  // namespace loopspec::cpu

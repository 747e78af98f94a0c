// Attention of one row over int8 keys and values, for instruction sets that give two integer sums;
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
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "backends/cpu/kv_int8.h"
#include "backends/cpu/ops.h"

namespace loopspec::cpu {

// `Ops`, a type of the including file, has
//   Keys(keys, hi, lo, d, blocks, hi_sums, lo_sums)     sums of 16 positions for each block
//   Values(values, hi, lo, d, fours, hi_sums, lo_sums)  sums of d dimensions over 4 x fours
//   positions
template <class Ops>
class Int8AttentionRow {
 public:
  static void Attend(const AttentionCall& call) {
    for (int g = 0; g < call.group; ++g) Int8AttentionRow(call).Head(g);
  }

 private:
  static constexpr int kChunk = kPageSize;
  static constexpr int kLanes = 16;
  static constexpr int kGathered = 512;  // dimensions of a head, mostly

  explicit Int8AttentionRow(const AttentionCall& call) : call_(call), d_(call.head_dim) {}

  void Head(int g) {
    scores_ = call_.scratch;
    value_scales_ = scores_ + (call_.positions + kLanes - 1) / kLanes * kLanes;
    float* out = call_.out + int64_t{g} * d_;
    Scores(call_.q + int64_t{g} * d_);
    const float sum = Softmax();
    std::fill_n(out, d_, 0.0f);
    d_ <= kGathered ? Values(out) : Wide(out);
    const float inverse = 1.0f / sum;
    for (int i = 0; i < d_; ++i) out[i] = out[i] * inverse;
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

  void Scores(const float* q) {
    alignas(64) int8_t hi[kInt8MostDims], lo[kInt8MostDims];
    int32_t hi_sum, lo_sum;
    const float scale = Digits(q, d_, hi, lo, hi_sum, lo_sum) * call_.scale;
    hi_sum *= 128;
    lo_sum *= 128;
    alignas(64) int32_t hi_out[kChunk], lo_out[kChunk];
    int64_t at = 0;
    for (const KvRun& run : call_.runs) {
      if (run.cell) {
        const auto* key = reinterpret_cast<const uint8_t*>(run.keys);
        int32_t h = 0, l = 0;
        for (int i = 0; i < d_; ++i) {
          h += key[i] * hi[i];
          l += key[i] * lo[i];
        }
        float key_scale;
        std::memcpy(&key_scale, run.keys + 2 * d_, 4);
        std::memcpy(value_scales_ + at, run.keys + 2 * d_ + 4, 4);
        scores_[at++] = Together(h - hi_sum, l - lo_sum) * (key_scale * scale);
        continue;
      }
      const Int8PageHead page(const_cast<std::byte*>(run.keys), d_);
      const auto count = static_cast<int>(run.count);
      Ops::Keys(page.keys, hi, lo, d_, (count + kKeyBlock - 1) / kKeyBlock, hi_out, lo_out);
      for (int i = 0; i < count; ++i) {
        scores_[at + i] =
            Together(hi_out[i] - hi_sum, lo_out[i] - lo_sum) * (page.key_scales[i] * scale);
      }
      std::copy_n(page.value_scales, count, value_scales_ + at);
      at += count;
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

  // scores -> e^(score - max), in place; returns their sum, by 16 partial sums.
  float Softmax() {
    const int64_t n = call_.positions;
    float top = -std::numeric_limits<float>::infinity();
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
      top = std::max(top, scores_[i]);
      finite = finite && (std::bit_cast<int32_t>(scores_[i]) & 0x7F800000) != 0x7F800000;
    }
    if (!finite) {
      std::fill_n(scores_, n, std::numeric_limits<float>::quiet_NaN());
      return std::numeric_limits<float>::quiet_NaN();
    }
    for (int64_t i = n; i < (n + kLanes - 1) / kLanes * kLanes; ++i) scores_[i] = top - 100.0f;
    float parts[kLanes] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        const float shifted = scores_[i + j] - top;
        const float e = Exp(std::max(shifted, -80.0f));
        const float weight = shifted > -80.0f ? e : 0.0f;
        scores_[i + j] = weight;
        parts[j] += weight;
      }
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) parts[j] += parts[j + half];
    }
    return parts[0];
  }

  // Chunk after chunk: where it is one page's, from there; where cells are in it, gathered first.
  void Values(float* out) {
    int64_t at = 0;
    size_t run = 0;
    while (at < call_.positions) {
      const int64_t end = std::min(at + kChunk, call_.positions);
      const KvRun& first = call_.runs[run];
      if (!first.cell && first.count == end - at) {
        AddChunk(Int8PageHead(const_cast<std::byte*>(first.keys), d_).values, at, end, out);
        ++run;
      } else {
        alignas(64) std::byte values[kChunk * kGathered];
        int position = 0;
        for (; position < end - at; ++run) {
          const KvRun& part = call_.runs[run];
          if (part.cell) {
            for (int i = 0; i < d_; ++i)
              values[Int8PageHead::ValueAt(position, i, d_)] = part.keys[d_ + i];
            ++position;
          } else {
            std::memcpy(values, Int8PageHead(const_cast<std::byte*>(part.keys), d_).values,
                        static_cast<size_t>((part.count + 3) / 4 * 4 * d_));
            position += static_cast<int>(part.count);
          }
        }
        // Places past the last position count nothing, whatever they hold.
        for (; position % kValueBlock != 0; ++position) {
          for (int i = 0; i < d_; ++i)
            values[Int8PageHead::ValueAt(position, i, d_)] = std::byte{0};
        }
        AddChunk(values, at, end, out);
      }
      at = end;
    }
  }

  // Heads that no model has: the same sums, a position and dimension at a time.
  void Wide(float* out) {
    int64_t at = 0;
    size_t run = 0;
    int64_t in_run = 0;
    alignas(64) int8_t hi[kChunk], lo[kChunk];
    alignas(64) int32_t hi_out[kInt8MostDims], lo_out[kInt8MostDims];
    while (at < call_.positions) {
      const int64_t end = std::min(at + kChunk, call_.positions);
      int32_t hi_sum, lo_sum;
      const float scale = ChunkDigits(at, end, hi, lo, hi_sum, lo_sum);
      std::fill_n(hi_out, d_, -128 * hi_sum);
      std::fill_n(lo_out, d_, -128 * lo_sum);
      for (int64_t p = at; p < end; ++p) {
        const KvRun& part = call_.runs[run];
        for (int i = 0; i < d_; ++i) {
          const int v = static_cast<int>(
              part.cell ? part.keys[d_ + i]
                        : Int8PageHead(const_cast<std::byte*>(part.keys), d_)
                              .values[Int8PageHead::ValueAt(static_cast<int>(in_run), i, d_)]);
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

  float ChunkDigits(int64_t begin, int64_t end, int8_t* hi, int8_t* lo, int32_t& hi_sum,
                    int32_t& lo_sum) {
    float weights[kChunk];
    const auto n = static_cast<int>(end - begin);
    for (int i = 0; i < n; ++i) weights[i] = scores_[begin + i] * value_scales_[begin + i];
    return Digits(weights, n, hi, lo, hi_sum, lo_sum);
  }

  void AddChunk(const std::byte* values, int64_t begin, int64_t end, float* out) {
    alignas(64) int8_t hi[kChunk] = {}, lo[kChunk] = {};
    alignas(64) int32_t hi_out[kGathered], lo_out[kGathered];
    int32_t hi_sum, lo_sum;
    const float scale = ChunkDigits(begin, end, hi, lo, hi_sum, lo_sum);
    Ops::Values(values, hi, lo, d_, static_cast<int>((end - begin + 3) / kValueBlock), hi_out,
                lo_out);
    for (int i = 0; i < d_; ++i) {
      out[i] = out[i] + Together(hi_out[i] - 128 * hi_sum, lo_out[i] - 128 * lo_sum) * scale;
    }
  }

  const AttentionCall& call_;
  const int d_;
  float *scores_ = nullptr, *value_scales_ = nullptr;
};

}  // namespace loopspec::cpu

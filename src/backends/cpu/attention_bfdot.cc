// Attention of one row over bf16 keys and values with Arm's bf16 instructions: BFDOT for q k^T,
// BFMLAL for the values. Positions four at a time where they lie together; each position's
// arithmetic is the same alone or among others.
#include "backends/cpu/ops.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace loopspec::cpu {
namespace {

constexpr int64_t kFetchLimit = 64 << 10;  // elements of one head

inline bfloat16x8_t Load(const uint16_t* at) {
  return vreinterpretq_bf16_u16(vld1q_u16(at));
}

// Asks for `bytes` of memory at `at`.
inline void Fetch(const std::byte* at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// Dot products of four positions with one query; head_dim is a multiple of 16.
[[gnu::always_inline]] inline float32x4_t Dots(const uint16_t* q, const uint16_t* const (&keys)[4],
                                               int n) {
  float32x4_t a[4], b[4];
  for (int j = 0; j < 4; ++j) a[j] = b[j] = vdupq_n_f32(0.0f);
  for (int d = 0; d < n; d += 16) {
    const bfloat16x8_t q0 = Load(q + d), q1 = Load(q + d + 8);
    for (int j = 0; j < 4; ++j) {
      a[j] = vbfdotq_f32(a[j], q0, Load(keys[j] + d));
      b[j] = vbfdotq_f32(b[j], q1, Load(keys[j] + d + 8));
    }
  }
  const float32x4_t low = vpaddq_f32(vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]));
  const float32x4_t high = vpaddq_f32(vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3]));
  return vpaddq_f32(low, high);
}

// Scores of all positions, four at a time wherever they lie; the last four may repeat a position.
// The values are fetched meanwhile. kDim: head_dim where it is known to the compiler, else 0.
template <int kDim>
void Scores(const AttentionCall& call, const uint16_t* q, bool fetch, float* scores) {
  const int n = kDim > 0 ? kDim : call.head_dim;
  const uint16_t* keys[4];
  int pending = 0;
  for (const KvRun& run : call.runs) {
    const auto* key = reinterpret_cast<const uint16_t*>(run.keys);
    int64_t j = 0;
    while (j < run.count) {
      if (pending == 0 && run.count - j >= 4) {
        if (fetch) Fetch(run.values + j * n * 2, 8 * n);
        const uint16_t* const four[4] = {key, key + n, key + 2 * n, key + 3 * n};
        vst1q_f32(scores, vmulq_n_f32(Dots(q, four, n), call.scale));
        scores += 4;
        key += 4 * n;
        j += 4;
        continue;
      }
      keys[pending++] = key;
      key += n;
      ++j;
      if (pending < 4) continue;
      vst1q_f32(scores, vmulq_n_f32(Dots(q, keys, n), call.scale));
      scores += 4;
      pending = 0;
    }
  }
  if (pending == 0) return;
  for (int j = pending; j < 4; ++j) keys[j] = keys[0];
  float last[4];
  vst1q_f32(last, vmulq_n_f32(Dots(q, keys, n), call.scale));
  std::copy_n(last, pending, scores);
}

inline float32x4_t Exp(float32x4_t x) {
  // e^x = 2^n e^r, |r| <= ln(2) / 2, for -80 <= x <= 0.
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
  float32x4_t r = vfmsq_n_f32(x, n, 0.693145752f);
  r = vfmsq_n_f32(r, n, 1.42860677e-6f);
  float32x4_t p = vdupq_n_f32(1.0f / 5040.0f);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 720.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 120.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 24.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 6.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
  return vmulq_f32(p, vreinterpretq_f32_s32(power));
}

// scores -> bf16 weights exp(score - max) beside them; returns their sum before rounding, which is
// what the GPU divides by.
float Softmax(float* scores, int64_t n, uint16_t* weights) {
  const float least = -std::numeric_limits<float>::infinity();
  for (int64_t i = n; i < (n + 3) / 4 * 4; ++i) scores[i] = least;
  float32x4_t top = vdupq_n_f32(least);
  for (int64_t i = 0; i < n; i += 4) top = vmaxq_f32(top, vld1q_f32(scores + i));
  const float32x4_t peak = vdupq_n_f32(vmaxvq_f32(top));
  const float32x4_t cut = vdupq_n_f32(-80.0f);
  float32x4_t sum = vdupq_n_f32(0.0f);
  for (int64_t i = 0; i < n; i += 4) {
    const float32x4_t shifted = vsubq_f32(vld1q_f32(scores + i), peak);
    const uint32x4_t kept = vcgtq_f32(shifted, cut);
    const float32x4_t weight =
        vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_f32(Exp(vmaxq_f32(shifted, cut)))));
    vst1_u16(weights + i, vreinterpret_u16_bf16(vcvt_bf16_f32(weight)));
    sum = vaddq_f32(sum, weight);
  }
  return vaddvq_f32(sum);
}

// out[0, 8 kBlocks) = sum of weight * value over positions in order, for dimensions from d.
template <int kBlocks>
inline void WeightedValues(const AttentionCall& call, const uint16_t* weights, int d, float scale,
                           bool fetch, float* out) {
  float32x4_t even[kBlocks], odd[kBlocks];
  for (int i = 0; i < kBlocks; ++i) even[i] = odd[i] = vdupq_n_f32(0.0f);
  for (const KvRun& run : call.runs) {
    const auto* value = reinterpret_cast<const uint16_t*>(run.values) + d;
    const std::byte* next = fetch ? run.next : nullptr;
    for (int64_t j = 0; j < run.count; ++j, value += call.head_dim) {
      if (next != nullptr) Fetch(next + (j * call.head_dim + d) * 2, 16 * kBlocks);
      const bfloat16x8_t weight = vreinterpretq_bf16_u16(vdupq_n_u16(*weights++));
      for (int i = 0; i < kBlocks; ++i) {
        const bfloat16x8_t v = Load(value + 8 * i);
        even[i] = vbfmlalbq_f32(even[i], v, weight);
        odd[i] = vbfmlaltq_f32(odd[i], v, weight);
      }
    }
  }
  for (int i = 0; i < kBlocks; ++i) {
    const float32x4_t e = vmulq_n_f32(even[i], scale), o = vmulq_n_f32(odd[i], scale);
    vst1q_f32(out + 8 * i, vzip1q_f32(e, o));
    vst1q_f32(out + 8 * i + 4, vzip2q_f32(e, o));
  }
}

void Attention(const AttentionCall& call) {
  const int n = call.head_dim;
  if (n % 16 != 0) return HighwayAttention(DType::kBF16)(call);
  float* scores = call.scratch;
  auto* weights = reinterpret_cast<uint16_t*>(scores + (call.positions + 3) / 4 * 4);
  auto* query = weights + (call.positions + 3) / 4 * 4;
  for (int g = 0; g < call.group; ++g) {
    for (int d = 0; d < n; d += 4) {
      vst1_u16(query + d, vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(call.q + g * n + d))));
    }
    // What is fetched must still be there when it is wanted: not with thousands of positions.
    const bool fetch = call.positions * n <= kFetchLimit;
    (n == 64    ? Scores<64>
     : n == 96  ? Scores<96>
     : n == 128 ? Scores<128>
                : Scores<0>)(call, query, fetch && g == 0, scores);
    const float scale = 1.0f / Softmax(scores, call.positions, weights);
    const bool last = fetch && g + 1 == call.group;
    float* out = call.out + g * n;
    int d = 0;
    for (; d + 64 <= n; d += 64) WeightedValues<8>(call, weights, d, scale, last, out + d);
    for (; d + 32 <= n; d += 32) WeightedValues<4>(call, weights, d, scale, last, out + d);
    for (; d < n; d += 16) WeightedValues<2>(call, weights, d, scale, last, out + d);
  }
}

}  // namespace

AttentionFunction BfdotAttention() {
  constexpr unsigned long kHwcap2Bf16 = 1UL << 14;
  return (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0 ? Attention : nullptr;
}

}  // namespace loopspec::cpu

#else

namespace loopspec::cpu {
AttentionFunction BfdotAttention() {
  return nullptr;
}
}  // namespace loopspec::cpu

#endif

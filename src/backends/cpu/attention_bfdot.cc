// Attention over bf16 keys and values with Arm's bf16 instructions: BFDOT for q k^T, BFMLAL for the
// values. Positions four at a time where they lie together, queries two at a time; the arithmetic
// of each query and position is the same alone or among others.
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

// Dot products of four positions with each of kQueries queries; head_dim is a multiple of 16.
template <int kQueries>
[[gnu::always_inline]] inline void Dots(const uint16_t* const (&q)[kQueries],
                                        const uint16_t* const (&keys)[4], int n,
                                        float32x4_t (&dots)[kQueries]) {
  float32x4_t a[kQueries][4], b[kQueries][4];
  for (int i = 0; i < kQueries; ++i) {
    for (int j = 0; j < 4; ++j) a[i][j] = b[i][j] = vdupq_n_f32(0.0f);
  }
  for (int d = 0; d < n; d += 16) {
    bfloat16x8_t q0[kQueries], q1[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      q0[i] = Load(q[i] + d);
      q1[i] = Load(q[i] + d + 8);
    }
    for (int j = 0; j < 4; ++j) {
      const bfloat16x8_t k0 = Load(keys[j] + d), k1 = Load(keys[j] + d + 8);
      for (int i = 0; i < kQueries; ++i) {
        a[i][j] = vbfdotq_f32(a[i][j], q0[i], k0);
        b[i][j] = vbfdotq_f32(b[i][j], q1[i], k1);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    const float32x4_t low = vpaddq_f32(vaddq_f32(a[i][0], b[i][0]), vaddq_f32(a[i][1], b[i][1]));
    const float32x4_t high = vpaddq_f32(vaddq_f32(a[i][2], b[i][2]), vaddq_f32(a[i][3], b[i][3]));
    dots[i] = vpaddq_f32(low, high);
  }
}

// A query on its way.
struct QueryState {
  float* scores;
  uint16_t *weights, *q;  // bf16
  float* mixed;           // sums of values: of eight dimensions the even ones, then the odd ones

  void Begin(const AttentionCall& call, size_t index) {
    const int64_t room = (call.positions() + 3) / 4 * 4;
    scores = call.Scratch(index);
    weights = reinterpret_cast<uint16_t*>(scores + room);
    q = weights + room;
    mixed = scores + 2 * room + call.head_dim;
    for (int d = 0; d < call.head_dim; d += 4) {
      const float32x4_t four = vld1q_f32(call.queries[index].q + d);
      vst1_u16(q + d, vreinterpret_u16_bf16(vcvt_bf16_f32(four)));
    }
    std::fill_n(mixed, call.head_dim, 0.0f);
  }
  void End(float scale, int n, float* out) const {
    for (int d = 0; d < n; d += 8) {
      const float32x4_t even = vmulq_n_f32(vld1q_f32(mixed + d), scale);
      const float32x4_t odd = vmulq_n_f32(vld1q_f32(mixed + d + 4), scale);
      vst1q_f32(out + d, vzip1q_f32(even, odd));
      vst1q_f32(out + d + 4, vzip2q_f32(even, odd));
    }
  }
};

// Scores of the first `count` positions of the runs, four at a time wherever they lie; the last
// four may repeat a position. Meanwhile the values are fetched, or what lies from `ahead` on. kDim:
// head_dim where it is known to the compiler, else 0.
template <int kDim>
void Scores(std::span<const KvRun> runs, int64_t count, const uint16_t* q, int head_dim,
            float scale, bool fetch, const std::byte* ahead, float* scores) {
  const int n = kDim > 0 ? kDim : head_dim;
  const uint16_t* const query[1] = {q};
  const uint16_t* keys[4];
  float32x4_t dots[1];
  int pending = 0;
  for (const KvRun& run : runs) {
    const auto* key = reinterpret_cast<const uint16_t*>(run.keys);
    const int64_t in_run = std::min(run.count, count);
    count -= in_run;
    if (fetch) ahead = run.values;
    int64_t j = 0;
    while (j < in_run) {
      if (pending == 0 && in_run - j >= 4) {
        if (ahead != nullptr) Fetch(ahead + j * n * 2, 8 * n);
        const uint16_t* const four[4] = {key, key + n, key + 2 * n, key + 3 * n};
        Dots<1>(query, four, n, dots);
        vst1q_f32(scores, vmulq_n_f32(dots[0], scale));
        scores += 4;
        key += 4 * n;
        j += 4;
        continue;
      }
      keys[pending++] = key;
      key += n;
      ++j;
      if (pending < 4) continue;
      Dots<1>(query, keys, n, dots);
      vst1q_f32(scores, vmulq_n_f32(dots[0], scale));
      scores += 4;
      pending = 0;
    }
  }
  if (pending == 0) return;
  for (int j = pending; j < 4; ++j) keys[j] = keys[0];
  float last[4];
  Dots<1>(query, keys, n, dots);
  vst1q_f32(last, vmulq_n_f32(dots[0], scale));
  std::copy_n(last, pending, scores);
}

// Scores of `count` positions of a run, whole fours, with two queries.
template <int kDim>
void PairScores(const KvRun& run, int64_t count, const QueryState* pair, int head_dim, float scale,
                const std::byte* ahead, int64_t begin) {
  const int n = kDim > 0 ? kDim : head_dim;
  const uint16_t* const q[2] = {pair[0].q, pair[1].q};
  const auto* key = reinterpret_cast<const uint16_t*>(run.keys);
  for (int64_t j = 0; j < count; j += 4, key += 4 * n) {
    const uint16_t* const four[4] = {key, key + n, key + 2 * n, key + 3 * n};
    float32x4_t dots[2];
    if (ahead != nullptr) Fetch(ahead + j * n * 2, 8 * n);
    Dots<2>(q, four, n, dots);
    for (int i = 0; i < 2; ++i) vst1q_f32(pair[i].scores + begin + j, vmulq_n_f32(dots[i], scale));
  }
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

// Adds weight * value of the first `count` positions of the runs, in order, to dimensions
// [d, d + 8 kBlocks) of kQueries queries. Meanwhile fetches a part of what the thread reads after
// all this, or of what lies from `ahead` on.
template <int kBlocks, int kQueries>
[[gnu::always_inline]] inline void WeightedValues(std::span<const KvRun> runs, int64_t begin,
                                                  int64_t count, const QueryState* queries,
                                                  int head_dim, int d, bool fetch,
                                                  const std::byte* ahead) {
  float32x4_t even[kQueries][kBlocks], odd[kQueries][kBlocks];
  const uint16_t* weights[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    weights[i] = queries[i].weights + begin;
    for (int b = 0; b < kBlocks; ++b) {
      even[i][b] = vld1q_f32(queries[i].mixed + d + 8 * b);
      odd[i][b] = vld1q_f32(queries[i].mixed + d + 8 * b + 4);
    }
  }
  for (const KvRun& run : runs) {
    const auto* value = reinterpret_cast<const uint16_t*>(run.values) + d;
    if (fetch) ahead = run.next;
    const int64_t in_run = std::min(run.count, count);
    count -= in_run;
    for (int64_t j = 0; j < in_run; ++j, value += head_dim) {
      if (ahead != nullptr) Fetch(ahead + run.count * d * 2 + j * 16 * kBlocks, 16 * kBlocks);
      bfloat16x8_t weight[kQueries];
      for (int i = 0; i < kQueries; ++i)
        weight[i] = vreinterpretq_bf16_u16(vdupq_n_u16(*weights[i]++));
      for (int b = 0; b < kBlocks; ++b) {
        const bfloat16x8_t v = Load(value + 8 * b);
        for (int i = 0; i < kQueries; ++i) {
          even[i][b] = vbfmlalbq_f32(even[i][b], v, weight[i]);
          odd[i][b] = vbfmlaltq_f32(odd[i][b], v, weight[i]);
        }
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int b = 0; b < kBlocks; ++b) {
      vst1q_f32(queries[i].mixed + d + 8 * b, even[i][b]);
      vst1q_f32(queries[i].mixed + d + 8 * b + 4, odd[i][b]);
    }
  }
}

// All dimensions; kQueries queries at a time, so that 16 of 32 registers hold sums.
template <int kQueries>
void Values(std::span<const KvRun> runs, int64_t begin, int64_t count, const QueryState* queries,
            int n, bool fetch, const std::byte* ahead) {
  constexpr int kBlocks = 8 / kQueries;
  int d = 0;
  for (; d + 8 * kBlocks <= n; d += 8 * kBlocks)
    WeightedValues<kBlocks, kQueries>(runs, begin, count, queries, n, d, fetch, ahead);
  for (; kBlocks > 4 && d + 32 <= n; d += 32)
    WeightedValues<4, kQueries>(runs, begin, count, queries, n, d, fetch, ahead);
  for (; d < n; d += 16)
    WeightedValues<2, kQueries>(runs, begin, count, queries, n, d, fetch, ahead);
}

// What is left of a run after its first positions.
inline KvRun Rest(const KvRun& run, int64_t done, int n) {
  return {run.keys + done * n * 2, run.values + done * n * 2, run.count - done};
}

// Two queries at a time, where positions lie together: the keys and values are loaded once.
template <int kDim>
void Attend(const AttentionCall& call) {
  const int n = call.head_dim;
  const size_t count = call.queries.size();
  QueryState states[kMostQueries];
  for (size_t i = 0; i < count; ++i) states[i].Begin(call, i);
  const auto left = [&](size_t i, int64_t begin) {
    return std::max<int64_t>(call.queries[i].positions - begin, 0);
  };
  // The values are fetched while scores are made, and the next keys while values are added up, if
  // they will still be there when they are wanted: not with thousands of positions. Then it is the
  // same part of the next span.
  const bool fetch = call.positions() * n <= kFetchLimit;

  call.ForSpans([&](std::span<const KvRun> runs, int64_t begin, const KvRun* next) {
    const std::byte* ahead = !fetch && next != nullptr ? next->keys : nullptr;
    size_t i = 0;
    for (; runs.size() == 1 && i + 2 <= count; i += 2) {
      const int64_t both = std::min({left(i, begin), left(i + 1, begin), runs[0].count}) / 4 * 4;
      PairScores<kDim>(runs[0], both, states + i, n, call.scale,
                       i > 0   ? nullptr
                       : fetch ? runs[0].values
                               : ahead,
                       begin);
      const KvRun rest = Rest(runs[0], both, n);
      for (size_t k = i; k < i + 2; ++k) {
        Scores<kDim>({&rest, 1}, left(k, begin + both), states[k].q, n, call.scale, false, nullptr,
                     states[k].scores + begin + both);
      }
    }
    for (; i < count; ++i) {
      Scores<kDim>(runs, left(i, begin), states[i].q, n, call.scale, fetch && i == 0,
                   i == 0 ? ahead : nullptr, states[i].scores + begin);
    }
  });

  float sums[kMostQueries];
  for (size_t i = 0; i < count; ++i)
    sums[i] = Softmax(states[i].scores, call.queries[i].positions, states[i].weights);

  call.ForSpans([&](std::span<const KvRun> runs, int64_t begin, const KvRun* next) {
    const std::byte* ahead = !fetch && next != nullptr ? next->values : nullptr;
    size_t i = 0;
    for (; runs.size() == 1 && i + 2 <= count; i += 2) {
      const int64_t both = std::min({left(i, begin), left(i + 1, begin), runs[0].count});
      Values<2>(runs, begin, both, states + i, n, fetch && i + 2 == count,
                i == 0 ? ahead : nullptr);
      const KvRun rest = Rest(runs[0], both, n);
      for (size_t k = i; k < i + 2; ++k)
        Values<1>({&rest, 1}, begin + both, left(k, begin + both), states + k, n, false, nullptr);
    }
    for (; i < count; ++i) {
      Values<1>(runs, begin, left(i, begin), states + i, n, fetch && i + 1 == count,
                i == 0 ? ahead : nullptr);
    }
  });
  for (size_t i = 0; i < count; ++i) states[i].End(1.0f / sums[i], n, call.queries[i].out);
}

void Attention(const AttentionCall& call) {
  switch (call.head_dim) {
    case 64:
      return Attend<64>(call);
    case 96:
      return Attend<96>(call);
    case 128:
      return Attend<128>(call);
    default:
      return call.head_dim % 16 == 0 ? Attend<0>(call) : HighwayAttention(DType::kBF16)(call);
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

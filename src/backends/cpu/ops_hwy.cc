#include "backends/cpu/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/ops_hwy.cc"
// foreach_target.h comes first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace loopspec::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using VF = hn::Vec<D>;
constexpr D kD;
constexpr int kLanes = HWY_LANES(float);

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  VF sum0 = hn::Zero(kD), sum1 = hn::Zero(kD);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF a = hn::LoadU(kD, x + i), b = hn::LoadU(kD, x + i + kLanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(kD, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  const VF wide = hn::Set(kD, scale);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(kD, x + i), wide), hn::LoadU(kD, weight + i)), kD,
               out + i);
  }
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void AddTo(float* x, const float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(kD, x + i), hn::LoadU(kD, y + i)), kD, x + i);
  }
  for (; i < n; ++i) x[i] += y[i];
}

void InjectDiagonal(float* s, const float* decay, const float* u, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF k = hn::Mul(hn::LoadU(kD, decay + i), hn::LoadU(kD, s + i));
    hn::StoreU(hn::Add(k, hn::LoadU(kD, u + i)), kD, s + i);
  }
  for (; i < n; ++i) s[i] = decay[i] * s[i] + u[i];
}

void InjectOrthogonal(float* s, const float* decay, const float* u, float eps, int64_t n) {
  VF along = hn::Zero(kD), squares = hn::Zero(kD);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF k = hn::Mul(hn::LoadU(kD, decay + i), hn::LoadU(kD, s + i));
    const VF v = hn::LoadU(kD, u + i);
    hn::StoreU(k, kD, s + i);
    along = hn::MulAdd(k, v, along);
    squares = hn::MulAdd(v, v, squares);
  }
  float ku = hn::GetLane(hn::SumOfLanes(kD, along)), uu = hn::GetLane(hn::SumOfLanes(kD, squares));
  for (; i < n; ++i) {
    s[i] *= decay[i];
    ku += s[i] * u[i];
    uu += u[i] * u[i];
  }
  const float part = ku / (uu + eps);
  const VF wide = hn::Set(kD, part);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const VF v = hn::LoadU(kD, u + i);
    hn::StoreU(hn::Add(hn::NegMulAdd(wide, v, hn::LoadU(kD, s + i)), v), kD, s + i);
  }
  for (; i < n; ++i) s[i] = s[i] - part * u[i] + u[i];
}

// e^x = 2^n e^r, |r| <= ln(2) / 2, to the last bit or two; beyond +-87 the value of +-87.
HWY_INLINE VF Exponential(VF x) {
  const hn::RebindToSigned<D> di;
  x = hn::Min(hn::Max(x, hn::Set(kD, -87.0f)), hn::Set(kD, 87.0f));
  const VF n = hn::Round(hn::Mul(x, hn::Set(kD, 1.44269504f)));
  VF r = hn::NegMulAdd(n, hn::Set(kD, 0.693145752f), x);
  r = hn::NegMulAdd(n, hn::Set(kD, 1.42860677e-6f), r);
  VF p = hn::MulAdd(hn::Set(kD, 1.0f / 720.0f), r, hn::Set(kD, 1.0f / 120.0f));
  p = hn::MulAdd(p, r, hn::Set(kD, 1.0f / 24.0f));
  p = hn::MulAdd(p, r, hn::Set(kD, 1.0f / 6.0f));
  p = hn::MulAdd(p, r, hn::Set(kD, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(kD, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(kD, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(kD, power));
}

HWY_INLINE VF SwiGluVector(VF gate, VF up) {
  const VF one = hn::Set(kD, 1.0f);
  return hn::Mul(hn::Div(gate, hn::Add(one, Exponential(hn::Neg(gate)))), up);
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {  // two chains hide each other's latency
    const VF a = SwiGluVector(hn::LoadU(kD, gate + i), hn::LoadU(kD, up + i));
    const VF b = SwiGluVector(hn::LoadU(kD, gate + i + kLanes), hn::LoadU(kD, up + i + kLanes));
    hn::StoreU(a, kD, out + i);
    hn::StoreU(b, kD, out + i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(SwiGluVector(hn::LoadU(kD, gate + i), hn::LoadU(kD, up + i)), kD, out + i);
  }
  if (i < n) {  // the same arithmetic for the last few
    float g[kLanes] = {}, u[kLanes] = {}, o[kLanes];
    std::copy(gate + i, gate + n, g);
    std::copy(up + i, up + n, u);
    hn::StoreU(SwiGluVector(hn::LoadU(kD, g), hn::LoadU(kD, u)), kD, o);
    std::copy(o, o + (n - i), out + i);
  }
}

void Rotate(float* head, const float* cos, const float* sin, int n) {
  const int half = n / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF a = hn::LoadU(kD, head + i), b = hn::LoadU(kD, head + half + i);
    const VF c = hn::LoadU(kD, cos + i), s = hn::LoadU(kD, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), kD, head + i);
    hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), kD, head + half + i);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

void RotateInterleaved(float* head, const float* cos, const float* sin, int n) {
  const int half = n / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    VF a, b;
    hn::LoadInterleaved2(kD, head + 2 * i, a, b);
    const VF c = hn::LoadU(kD, cos + i), s = hn::LoadU(kD, sin + i);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)),
                          hn::Add(hn::Mul(b, c), hn::Mul(a, s)), kD, head + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cos[i] - b * sin[i];
    head[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// ---- Attention ----

// How keys and values are stored. Load gives two vectors of a row's elements; the element order
// within a pair of vectors is Slot's, the same for queries, keys and values, so only the ends of
// the computation see it.
struct F32Kv {
  using Element = float;
  static constexpr bool kRound = false;
  static HWY_INLINE void Load(const float* at, VF& first, VF& second) {
    first = hn::LoadU(kD, at);
    second = hn::LoadU(kD, at + kLanes);
  }
  static float Widen(float value) { return value; }
  static int Slot(int i) { return i; }
};
struct BF16Kv {
  using Element = uint16_t;
  static constexpr bool kRound = true;
  static HWY_INLINE void Load(const uint16_t* at, VF& first, VF& second) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, D> d16;
    const auto words = hn::BitCast(du, hn::LoadU(d16, at));
    first = hn::BitCast(kD, hn::ShiftLeft<16>(words));
    second = hn::BitCast(kD, hn::And(words, hn::Set(du, 0xFFFF0000u)));
  }
  static float Widen(uint16_t value) { return BF16ToFloat(value); }
  static int Slot(int i) { return i % 2 == 0 ? i / 2 : kLanes + i / 2; }
};
constexpr int kStep = 2 * kLanes;

template <class Kv>
HWY_INLINE float Dot(const float* q, const typename Kv::Element* key, int head_dim) {
  VF sum0 = hn::Zero(kD), sum1 = hn::Zero(kD);
  int d = 0;
  for (; d + kStep <= head_dim; d += kStep) {
    VF k0, k1;
    Kv::Load(key + d, k0, k1);
    sum0 = hn::MulAdd(hn::LoadU(kD, q + d), k0, sum0);
    sum1 = hn::MulAdd(hn::LoadU(kD, q + d + kLanes), k1, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(kD, hn::Add(sum0, sum1)));
  for (; d < head_dim; ++d) sum += q[d] * Kv::Widen(key[d]);
  return sum;
}

// out[d .. d + width) += sum of weight * value over the first `count` positions of the runs, in
// order; width is kVectors vectors.
template <class Kv, int kVectors>
HWY_INLINE void WeightedValues(std::span<const KvRun> runs, int64_t count, const float* weights,
                               int head_dim, int d, float* out) {
  VF acc[kVectors];
  for (int i = 0; i < kVectors; ++i) acc[i] = hn::LoadU(kD, out + d + i * kLanes);
  for (const KvRun& run : runs) {
    const auto* value = reinterpret_cast<const typename Kv::Element*>(run.values) + d;
    const int64_t in_run = std::min(run.count, count);
    count -= in_run;
    for (int64_t j = 0; j < in_run; ++j, value += head_dim) {
      const VF weight = hn::Set(kD, *weights++);
      for (int i = 0; i < kVectors; i += 2) {
        VF v0, v1;
        Kv::Load(value + i * kLanes, v0, v1);
        acc[i] = hn::MulAdd(weight, v0, acc[i]);
        acc[i + 1] = hn::MulAdd(weight, v1, acc[i + 1]);
      }
    }
  }
  for (int i = 0; i < kVectors; ++i) hn::StoreU(acc[i], kD, out + d + i * kLanes);
}

// scores -> exp(score - max), in place, rounded like a matrix input; returns their sum before
// rounding, which is what the GPU divides by.
template <class Kv>
float Softmax(float* scores, int64_t n) {
  VF top = hn::Set(kD, -std::numeric_limits<float>::infinity());
  for (int64_t i = n; i < (n + kLanes - 1) / kLanes * kLanes; ++i)
    scores[i] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; i += kLanes) top = hn::Max(top, hn::LoadU(kD, scores + i));
  const VF peak = hn::MaxOfLanes(kD, top);
  const hn::RebindToUnsigned<D> du;
  VF sum = hn::Zero(kD);
  for (int64_t i = 0; i < n; i += kLanes) {
    const VF shifted = hn::Sub(hn::LoadU(kD, scores + i), peak);
    VF weight = hn::IfThenElseZero(hn::Gt(shifted, hn::Set(kD, -80.0f)),
                                   hn::Exp(kD, hn::Max(shifted, hn::Set(kD, -80.0f))));
    sum = hn::Add(sum, weight);
    if constexpr (Kv::kRound) {
      const auto bits = hn::BitCast(du, weight);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
      const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
      weight = hn::BitCast(kD, hn::And(rounded, hn::Set(du, 0xFFFF0000u)));
    }
    hn::StoreU(weight, kD, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(kD, sum));
}

// One query on its way: where its scores, its own form of q and the sum of its values are kept.
template <class Kv>
struct QueryState {
  const int n, whole;  // dimensions; those of whole steps, which lie as Slot says
  float *scores, *query, *mixed;

  QueryState(const AttentionCall& call, size_t index)
      : n(call.head_dim), whole(n / kStep * kStep), scores(call.Scratch(index)) {
    query = scores + (call.positions() + kLanes - 1) / kLanes * kLanes;
    mixed = query + n;
  }
  int Slot(int d) const { return d < whole ? d / kStep * kStep + Kv::Slot(d % kStep) : d; }

  void Begin(const float* q) const {
    for (int d = 0; d < n; ++d) query[Slot(d)] = Kv::kRound ? BF16ToFloat(FloatToBF16(q[d])) : q[d];
    std::fill_n(mixed, n, 0.0f);
  }
  void Scores(std::span<const KvRun> runs, int64_t begin, int64_t count, float scale) const {
    float* to = scores + begin;
    for (const KvRun& run : runs) {
      const auto* key = reinterpret_cast<const typename Kv::Element*>(run.keys);
      const int64_t in_run = std::min(run.count, count);
      count -= in_run;
      for (int64_t j = 0; j < in_run; ++j, key += n) *to++ = Dot<Kv>(query, key, n) * scale;
    }
  }
  void Values(std::span<const KvRun> runs, int64_t begin, int64_t count) const {
    const float* weights = scores + begin;
    int d = 0;
    for (; d + 16 * kLanes <= whole; d += 16 * kLanes)
      WeightedValues<Kv, 16>(runs, count, weights, n, d, mixed);
    for (; d + 8 * kLanes <= whole; d += 8 * kLanes)
      WeightedValues<Kv, 8>(runs, count, weights, n, d, mixed);
    for (; d + 4 * kLanes <= whole; d += 4 * kLanes)
      WeightedValues<Kv, 4>(runs, count, weights, n, d, mixed);
    for (; d < whole; d += kStep) WeightedValues<Kv, 2>(runs, count, weights, n, d, mixed);
    for (; d < n; ++d) {
      const float* weight = weights;
      for (const KvRun& run : runs) {
        const auto* value = reinterpret_cast<const typename Kv::Element*>(run.values) + d;
        const int64_t in_run = std::min<int64_t>(run.count, count - (weight - weights));
        for (int64_t j = 0; j < in_run; ++j, value += n) mixed[d] += *weight++ * Kv::Widen(*value);
      }
    }
  }
};

template <class Kv>
void Attention(const AttentionCall& call) {
  const auto each = [&](auto body) {
    for (size_t i = 0; i < call.queries.size(); ++i)
      body(call.queries[i], QueryState<Kv>(call, i), i);
  };
  each([](const AttentionQuery& query, const QueryState<Kv>& state, size_t) {
    state.Begin(query.q);
  });
  call.ForSpans([&](std::span<const KvRun> runs, int64_t begin, const KvRun*) {
    each([&](const AttentionQuery& query, const QueryState<Kv>& state, size_t) {
      state.Scores(runs, begin, std::max<int64_t>(query.positions - begin, 0), call.scale);
    });
  });
  float scale[kMostQueries];
  each([&](const AttentionQuery& query, const QueryState<Kv>& state, size_t i) {
    scale[i] = 1.0f / Softmax<Kv>(state.scores, query.positions);
  });
  call.ForSpans([&](std::span<const KvRun> runs, int64_t begin, const KvRun*) {
    each([&](const AttentionQuery& query, const QueryState<Kv>& state, size_t) {
      state.Values(runs, begin, std::max<int64_t>(query.positions - begin, 0));
    });
  });
  each([&](const AttentionQuery& query, const QueryState<Kv>& state, size_t i) {
    for (int d = 0; d < state.n; ++d) query.out[d] = state.mixed[state.Slot(d)] * scale[i];
  });
}

void AttentionF32(const AttentionCall& call) {
  Attention<F32Kv>(call);
}
void AttentionBF16(const AttentionCall& call) {
  Attention<BF16Kv>(call);
}

}  // namespace HWY_NAMESPACE
}  // namespace loopspec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace loopspec::cpu {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(AddTo);
HWY_EXPORT(InjectDiagonal);
HWY_EXPORT(InjectOrthogonal);
HWY_EXPORT(SwiGlu);
HWY_EXPORT(Rotate);
HWY_EXPORT(RotateInterleaved);
HWY_EXPORT(AttentionF32);
HWY_EXPORT(AttentionBF16);

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, eps, n, out);
}
void AddTo(float* x, const float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddTo)(x, y, n);
}
void InjectDiagonal(float* s, const float* decay, const float* u, int64_t n) {
  HWY_DYNAMIC_DISPATCH(InjectDiagonal)(s, decay, u, n);
}
void InjectOrthogonal(float* s, const float* decay, const float* u, float eps, int64_t n) {
  HWY_DYNAMIC_DISPATCH(InjectOrthogonal)(s, decay, u, eps, n);
}
void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(SwiGlu)(gate, up, n, out);
}
void Rotate(float* head, const float* cos, const float* sin, int n) {
  HWY_DYNAMIC_DISPATCH(Rotate)(head, cos, sin, n);
}
void RotateInterleaved(float* head, const float* cos, const float* sin, int n) {
  HWY_DYNAMIC_DISPATCH(RotateInterleaved)(head, cos, sin, n);
}
void ToBF16(const float* values, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = FloatToBF16(values[i]);
}

AttentionFunction HighwayAttention(DType kv) {
  if (kv == DType::kF32)
    return [](const AttentionCall& call) { HWY_DYNAMIC_DISPATCH(AttentionF32)(call); };
  return [](const AttentionCall& call) { HWY_DYNAMIC_DISPATCH(AttentionBF16)(call); };
}

AttentionFunction ChooseAttention(DType kv) {
  if (kv == DType::kBF16 && BfdotAttention() != nullptr) return BfdotAttention();
  return HighwayAttention(kv);
}

}  // namespace loopspec::cpu
#endif

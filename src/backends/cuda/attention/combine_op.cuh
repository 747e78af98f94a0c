// Combines the partial results of attention's splits, and rounds to the next matrix's input.
//
// A warp takes 4 kLanes elements of one head of one row: kLanes neighbouring lanes have four
// elements each, and 32 / kLanes such groups of lanes share the splits. A group's splits and then
// the groups' sums are added in a tree that is the same for every kLanes. Few lanes suit few rows,
// so that all warps have work; more lanes suit many rows, so that loads are contiguous.
#pragma once

#include "backends/cuda/attention/attention_op.cuh"
#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"

namespace loopspec::cuda {

__device__ __forceinline__ float4 Scaled(const float4& v, float by) {
  return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}
__device__ __forceinline__ float4 Plus(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}
__device__ __forceinline__ float4 FromLane(const float4& v, int mask) {
  return make_float4(
      __shfl_xor_sync(0xFFFFFFFFu, v.x, mask), __shfl_xor_sync(0xFFFFFFFFu, v.y, mask),
      __shfl_xor_sync(0xFFFFFFFFu, v.z, mask), __shfl_xor_sync(0xFFFFFFFFu, v.w, mask));
}

// Partial results of up to 32 splits.
template <int kLanes>
struct Splits {
  static constexpr int kGroups = 32 / kLanes;
  float4 v[kLanes];  // of splits group + kGroups j
  float2 weight;     // maximum and sum of split `lane`

  // Each split's values times `scale` of the lane of its number, added up; the same in every group.
  __device__ __forceinline__ float4 Sum(float scale) {
    const int group = threadIdx.x % 32 / kLanes;
#pragma unroll
    for (int j = 0; j < kLanes; ++j)
      v[j] = Scaled(v[j], __shfl_sync(0xFFFFFFFFu, scale, group + kGroups * j));
    AddHalves<kLanes / 2>();
#pragma unroll
    for (int mask = 16; mask >= kLanes; mask /= 2) v[0] = Plus(v[0], FromLane(v[0], mask));
    return v[0];
  }

 private:
  // Adds the second half of the first 2 kHalf values to the first half, and so on down to v[0]. A
  // loop over the halves would make the compiler keep v in memory.
  template <int kHalf>
  __device__ __forceinline__ void AddHalves() {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) v[j] = Plus(v[j], v[j + kHalf]);
    if constexpr (kHalf > 1) AddHalves<kHalf / 2>();
  }
};

// Where a lane finds its parts of `count` splits from slot `first` on. Past the end it reads the
// last one again, with weight zero.
template <int kLanes>
struct SplitPlaces {
  size_t first;
  int count;
  int element;

  __device__ __forceinline__ size_t Slot(int split) const {
    return first + static_cast<size_t>(min(split, count - 1)) * Context().p.shapes.heads;
  }
  // Values j of round r, of 32 splits each.
  __device__ __forceinline__ size_t Value(int r, int j) const {
    return Slot(32 * r + static_cast<int>(threadIdx.x % 32) / kLanes + 32 / kLanes * j);
  }
  __device__ __forceinline__ size_t Weight(int r) const {
    return Slot(32 * r + static_cast<int>(threadIdx.x % 32));
  }
};

template <int kLanes, int kRounds>
__device__ __forceinline__ void ReceiveSplits(const SplitPlaces<kLanes>& at, uint32_t epoch,
                                              Splits<kLanes> (&to)[kRounds]) {
  const DecodeParams& p = Context().p;
  const auto place = [&](int i) {
    return p.exchange.o + at.Value(i / kLanes, i % kLanes) * p.shapes.head_dim + at.element;
  };
  Receiver<kLanes * kRounds> receiver;
  uint4 weights[kRounds];
  uint32_t missing;
  bool give_up;
  do {
    receiver.Request(place);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) weights[r] = Poll(p.exchange.ml + at.Weight(r) * 2);
    give_up = MustGiveUp();  // while the loads are on their way
    missing = receiver.StillMissing(epoch);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) missing |= Missing(weights[r], epoch);
  } while (missing != 0 && !give_up);
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const uint4 x = receiver.Values(r * kLanes + j);
      to[r].v[j] = make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                               __uint_as_float(x.w));
    }
    to[r].weight = make_float2(__uint_as_float(weights[r].x), __uint_as_float(weights[r].z));
  }
}
template <int kLanes, int kRounds>
__device__ __forceinline__ void LoadSplits(const SplitPlaces<kLanes>& at,
                                           Splits<kLanes> (&to)[kRounds]) {
  const DecodeParams& p = Context().p;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    to[r].weight = __ldcg(p.buffers.attention_ml + at.Weight(r));
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      to[r].v[j] = __ldcg(reinterpret_cast<const float4*>(
          p.buffers.attention_o + at.Value(r, j) * p.shapes.head_stride + at.element));
    }
  }
}

// What a lane has of its four elements after some rounds of 32 splits each.
struct Combined {
  float top, sum;
  float4 value;
};

// Adds the next kRounds rounds, from split `base` on; their loads are in flight together.
template <int kLanes, int kRounds, bool kExchange>
__device__ __forceinline__ void AddRounds(const Run& run, const RowInfo& row, int head, int element,
                                          int base, Combined& to) {
  const SplitPlaces<kLanes> at{
      static_cast<size_t>(row.partial + base) * Context().p.shapes.heads + head,
      row.partials - base, element};
  Splits<kLanes> splits[kRounds];
  bool receives = false;
  if constexpr (kExchange && kLanes <= 8)  // see CombineLanes
    receives = run.flags.Has(RunFlag::kReceives);
  if (receives) {
    if constexpr (kExchange) ReceiveSplits(at, run.epoch - 1, splits);
  } else {
    LoadSplits(at, splits);
  }
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (base + 32 * r >= row.partials) break;
    const bool there = base + 32 * r + static_cast<int>(threadIdx.x % 32) < row.partials;
    float larger = splits[r].weight.x;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
      larger = fmaxf(larger, __shfl_xor_sync(0xFFFFFFFFu, larger, mask));
    larger = fmaxf(larger, to.top);
    const float shrink = Exp2(to.top - larger);
    const float scale = there ? Exp2(splits[r].weight.x - larger) : 0.0f;
    to.top = larger;
    to.value = Plus(Scaled(to.value, shrink), splits[r].Sum(scale));
    to.sum = fmaf(to.sum, shrink, WarpSum(__fmul_rn(splits[r].weight.y, scale)));
  }
}

// The lane's four elements, from `element` on, of one head of a row. A round takes as long as its
// loads, so after long prefixes as many as registers allow are in flight together.
template <int kLanes, int kFew, bool kExchange>
__device__ __forceinline__ float4 CombineSplits(const Run& run, const RowInfo& row, int head,
                                                int element) {
  constexpr int kMany = kLanes == 1 ? 8 : kLanes == 2 ? 4 : kFew;
  Combined all{__int_as_float(0xFF800000), 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
  int base = 0;
  if constexpr (kMany > kFew) {
#pragma unroll 1
    for (; row.partials - base > 32 * kFew; base += 32 * kMany)
      AddRounds<kLanes, kMany, kExchange>(run, row, head, element, base, all);
  }
#pragma unroll 1
  for (; base < row.partials; base += 32 * kFew)
    AddRounds<kLanes, kFew, kExchange>(run, row, head, element, base, all);
  return Scaled(all.value, __fdividef(1.0f, all.sum));
}

// kFew: rounds whose loads are in flight together where there are few. kExchange: partial results
// may come through the exchange; otherwise the phase has many rows, and its inputs their layout.
template <int kLanes, int kFew = kLanes <= 4 ? 2 : 1, bool kExchange = true>
__device__ __forceinline__ void CombinePieces() {
  const Run run = CurrentRun();
  const DecodeParams& p = Context().p;
  const RowInfo* infos = Context().phase.infos;
  const int lane = threadIdx.x % 32;
  const int parts = (p.shapes.head_dim + 4 * kLanes - 1) / (4 * kLanes),
            per_row = p.shapes.heads * parts;
  const int total = Context().phase.rows * per_row;
#pragma unroll 1
  for (int i = FirstPiece(); i < total; i += PieceStride()) {
    const int row = i < per_row ? 0 : i / per_row, part = i - row * per_row,
              head = Quotient(part, parts),
              element = ((part - head * parts) * kLanes + lane % kLanes) * 4;
    const float4 v = CombineSplits<kLanes, kFew, kExchange>(run, infos[row], head, element);
    if (lane >= kLanes) continue;
    const int at = head * p.shapes.head_dim + element;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (element + k >= p.shapes.head_dim) continue;
      const uint32_t pair = k == 0 ? PackBF16(v.x, v.y) : PackBF16(v.z, v.w);
      if constexpr (!kExchange) {
        *reinterpret_cast<uint32_t*>(
            p.buffers.act_attention +
            WideInputAt(row, at + k, p.shapes.row_stride, p.shapes.ld_attention)) = pair;
      } else if (run.flags.Has(RunFlag::kSends)) {
        const size_t place = static_cast<size_t>(row) * p.shapes.ld_attention + InputPlace(at + k);
        Send(p.exchange.attention + place / 2, pair, run.epoch);
      } else {
        *reinterpret_cast<uint32_t*>(p.buffers.act_attention +
                                     InputAt(row, at + k, p.shapes.ld_attention)) = pair;
      }
    }
  }
}

// By a plan of keys: whether the operation is in the last layer of a recurrence, so that the next
// one's keys do not follow. Whatever else ends a stack may say so too.
__device__ __forceinline__ bool EndsRecurrenceByPlan() {
  const ShapeParams& shapes = Context().p.shapes;
  return shapes.recurrence_planes == 0 && OpOf(CurrentRun()).layer + 1 == shapes.core_layers;
}

template <int kLanes, bool kInt8Keys>
__device__ __noinline__ void CombineRows() {
  CombinePieces<kLanes>();
  // The next layer's keys and values, as far as the producer warp does not fetch them: memory has
  // little to do now.
  if constexpr (kInt8Keys) {
    if (!EndsRecurrenceByPlan()) PrefetchKeys<kInt8Keys>(PageOffset(CurrentRun()) + 1);
  } else {
    PrefetchKeys<kInt8Keys>(PlaneOffset(CurrentRun()) + 1);
  }
}

// By a plan of keys the warp's pieces are elsewhere in the next recurrence.
template <bool kInt8Keys>
__device__ __noinline__ void TurnPieces() {
  const int next = CurrentRun().recurrence + 1;
  if (next >= Context().phase.times) return;
  CachePieces(next);
  PrefetchKeys<kInt8Keys>(0);
}

template <bool kInt8Keys>
__device__ __forceinline__ void CombineOp() {
  switch (Context().phase.combine_lanes) {
    case 1:
      CombineRows<1, kInt8Keys>();
      break;
    case 2:
      CombineRows<2, kInt8Keys>();
      break;
    case 4:
      CombineRows<4, kInt8Keys>();
      break;
    case 8:
      CombineRows<8, kInt8Keys>();
      break;
    default:
      CombineRows<16, kInt8Keys>();
      break;
  }
  if constexpr (kInt8Keys) {
    if (EndsRecurrenceByPlan()) TurnPieces<kInt8Keys>();
  }
}

}  // namespace loopspec::cuda

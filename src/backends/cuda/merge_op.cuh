// Adds up what attention left of each split, and rounds to the next matrix's input.
//
// A warp takes 4 kLanes elements of one head of one row: kLanes lanes beside each other have four
// elements each, and 32 / kLanes such groups of lanes share the splits. A group's own splits and
// then the groups' sums meet in a tree that is the same for every kLanes: few lanes for few rows,
// so that all warps have work; more for many, so that what is loaded lies together.
#pragma once

#include "backends/cuda/attention_op.cuh"
#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/mail.cuh"
#include "backends/cuda/step_types.h"

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

  // `first`: slot of split 0; `count` of 32 are there. Lanes past the end ask for the last one.
  __device__ __forceinline__ void Receive(const DecodeParams& p, uint32_t stamp, size_t first,
                                          int count, int element) {
    const int lane = threadIdx.x % 32;
    const Mail* from = p.mail_o + first * p.head_dim + element;
    const int stride = p.heads * p.head_dim;
    const auto place = [&](int j) {
      return from + static_cast<size_t>(min(lane / kLanes + kGroups * j, count - 1)) * stride;
    };
    const Mail* both =
        p.mail_ml + (first + static_cast<size_t>(min(lane, count - 1)) * p.heads) * 2;
    MailBox<kLanes> box;
    box.Ask(place);
    uint4 ml = Peek(both);
    box.Wait(stamp, place);
    while (Missing(ml, stamp) != 0) ml = Peek(both);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const uint4 x = box.Values(j);
      v[j] = make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                         __uint_as_float(x.w));
    }
    weight = make_float2(__uint_as_float(ml.x), __uint_as_float(ml.z));
  }
  __device__ __forceinline__ void Load(const DecodeParams& p, size_t first, int count,
                                       int element) {
    const int lane = threadIdx.x % 32;
    const float* from = p.attention_o + first * p.head_stride + element;
    const int stride = p.heads * p.head_stride;
    weight = __ldcg(p.attention_ml + first + static_cast<size_t>(min(lane, count - 1)) * p.heads);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      v[j] = __ldcg(reinterpret_cast<const float4*>(
          from + static_cast<size_t>(min(lane / kLanes + kGroups * j, count - 1)) * stride));
    }
  }

  // Each split's values times `scale` of the lane of its number, added up; the same in every group.
  __device__ __forceinline__ float4 Sum(float scale) {
    const int group = threadIdx.x % 32 / kLanes;
#pragma unroll
    for (int j = 0; j < kLanes; ++j)
      v[j] = Scaled(v[j], __shfl_sync(0xFFFFFFFFu, scale, group + kGroups * j));
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < half; ++j) v[j] = Plus(v[j], v[j + half]);
    }
#pragma unroll
    for (int mask = 16; mask >= kLanes; mask /= 2) v[0] = Plus(v[0], FromLane(v[0], mask));
    return v[0];
  }
};

// The lane's four elements, from `element` on, of one head of a row.
template <int kLanes>
__device__ __forceinline__ float4 MergeSplits(const Run& run, const RowInfo& row, int head,
                                              int element) {
  const DecodeParams& p = Context().p;
  float top = __int_as_float(0xFF800000), sum = 0.0f;
  float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int base = 0; base < row.splits; base += 32) {
    const int count = min(32, row.splits - base);
    const size_t first = static_cast<size_t>(row.partial + base) * p.heads + head;
    Splits<kLanes> splits;
    if ((run.flags & kRunMailIn) != 0) {
      splits.Receive(p, run.stamp - 1, first, count, element);
    } else {
      splits.Load(p, first, count, element);
    }
    const bool there = static_cast<int>(threadIdx.x % 32) < count;
    float larger = splits.weight.x;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
      larger = fmaxf(larger, __shfl_xor_sync(0xFFFFFFFFu, larger, mask));
    larger = fmaxf(larger, top);
    const float shrink = Exp2(top - larger);
    const float scale = there ? Exp2(splits.weight.x - larger) : 0.0f;
    top = larger;
    value = Plus(Scaled(value, shrink), splits.Sum(scale));
    sum = fmaf(sum, shrink, WarpSum(__fmul_rn(splits.weight.y, scale)));
  }
  return Scaled(value, __fdividef(1.0f, sum));
}

template <int kLanes>
__device__ __noinline__ void MergeRows() {
  const Run run = CurrentRun();
  const DecodeParams& p = Context().p;
  const RowInfo* infos = Context().set.infos;
  const int lane = threadIdx.x % 32;
  const int parts = (p.head_dim + 4 * kLanes - 1) / (4 * kLanes), per_row = p.heads * parts;
  const int total = Context().set.rows * per_row;
  // The next layer's keys have the time until its attention to come; memory has little to do now.
  PrefetchKeys(PlaneOffset(run) + 1);
#pragma unroll 1
  for (int i = FirstPiece(); i < total; i += PieceStride()) {
    const int row = i < per_row ? 0 : i / per_row, part = i - row * per_row,
              head = Quotient(part, parts),
              element = ((part - head * parts) * kLanes + lane % kLanes) * 4;
    const float4 v = MergeSplits<kLanes>(run, infos[row], head, element);
    if (lane >= kLanes) continue;
    const size_t to = static_cast<size_t>(row) * p.ld_attention;
    const int at = head * p.head_dim + element;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (element + k >= p.head_dim) continue;
      const uint32_t pair = k == 0 ? PackBF16(v.x, v.y) : PackBF16(v.z, v.w);
      const size_t place = to + static_cast<size_t>(InputPlace(at + k));
      if ((run.flags & kRunMailOut) != 0) {
        Post(p.mail_attention + place / 2, pair, run.stamp);
      } else {
        *reinterpret_cast<uint32_t*>(p.act_attention + place) = pair;
      }
    }
  }
}

// As few lanes as give every warp at most one piece.
__device__ __forceinline__ int MergeLanes(int rows) {
  const int elements = rows * Context().p.heads * Context().p.head_dim;
  return elements <= 4 * PieceStride() ? 1 : elements <= 8 * PieceStride() ? 2 : 8;
}
__device__ __forceinline__ void MergeOp() {
  switch (Context().set.merge_lanes) {
    case 1:
      MergeRows<1>();
      break;
    case 2:
      MergeRows<2>();
      break;
    default:
      MergeRows<8>();
      break;
  }
}

}  // namespace loopspec::cuda

// Attention of a few queries to many positions, one warp at a time, on matrix instructions.
//
// Up to 16 queries are the long side of the instruction (with 8, half of it stays empty, and the
// arithmetic between the products is halved), positions are the short side: S = Q K^T in groups of
// 8 positions. The fragment of S that a thread holds is, rounded to bf16, the fragment of P that P
// V needs; values are loaded by rows like keys and transposed in registers. The result is the same
// bit for bit whether a position lies in a page or in a cell, and whether a compute warp or the
// producer warp loads it.
#pragma once

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

// Online softmax of up to 16 queries, and what it weighs.
template <int kHead, int kQueries>  // 8 or 16
struct SoftmaxState {
  static constexpr int kParts = kHead / 32;
  static constexpr int kHalves = kQueries / 8;
  float o[kParts][4]
         [2 * kHalves];  // [c][r]: columns 32 c + 8 t' + 2 r ... of queries g (and g + 8)
  float maximum[kHalves], sum[kHalves];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < 2 * kHalves; ++e) o[c][r][e] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      maximum[i] = __int_as_float(0xFF800000);
      sum[i] = 0.0f;
    }
  }

  // Turns the scores s of positions base ... base + 8 kGroups - 1 into weights, and rescales what
  // was added before; kFirst: nothing was. A query sees positions up to its own (last); `whole`:
  // all queries see all of these.
  template <bool kFirst, int kGroups>
  __device__ __forceinline__ void Soften(int base, const int (&last)[kHalves], bool whole,
                                         float (&s)[kGroups][4]) {
    const int t = threadIdx.x % 4;
    if (!whole) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int position = base + 8 * j + 2 * t;
#pragma unroll
        for (int e = 0; e < 2 * kHalves; ++e) {
          if (position + (e & 1) > last[e / 2]) s[j][e] = __int_as_float(0xFF800000);
        }
      }
    }
    float top[kHalves], shrink[kHalves], added[kHalves];
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      top[i] = maximum[i];
      added[i] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 2 * kHalves; ++e) top[e / 2] = fmaxf(top[e / 2], s[j][e]);
    }
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], 2));
      // A query with no position yet (padding of the tile) must not turn into NaN.
      const float finite = top[i] == __int_as_float(0xFF800000) ? 0.0f : top[i];
      shrink[i] = Exp2(maximum[i] - finite);
      maximum[i] = top[i];
      top[i] = finite;
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 2 * kHalves; ++e) {
        s[j][e] = Exp2(s[j][e] - top[e / 2]);
        added[e / 2] += s[j][e];
      }
    }
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 1);
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 2);
      sum[i] = kFirst ? added[i] : sum[i] * shrink[i] + added[i];
    }
    if constexpr (!kFirst) {
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int e = 0; e < 2 * kHalves; ++e) o[c][r][e] *= shrink[e / 2];
        }
      }
    }
  }
};

template <int kHead, int kQueries>
struct AttentionState : SoftmaxState<kHead, kQueries> {
  using Base = SoftmaxState<kHead, kQueries>;
  using Base::kHalves;
  using Base::kParts;
  using Base::o;
  uint4 q[kParts][2];  // queries g and g + 8: elements 32 c + 8 t ... + 7; zeros past kQueries

  // Computes the weights s of positions base ... base + 8 kGroups - 1, whose keys LoadGroups left
  // in `keys`.
  template <bool kFirst, int kGroups>
  __device__ __forceinline__ void Weigh(const uint4 (&keys)[kGroups][kParts], int base,
                                        const int (&last)[kHalves], bool whole, float scale,
                                        float (&s)[kGroups][4]) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int c = 0; c < kParts; ++c) Mma32(s[j], q[c][0], q[c][1], keys[j][c]);
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 2 * kHalves; ++e) s[j][e] = __fmul_rn(s[j][e], scale);
    }
    this->template Soften<kFirst>(base, last, whole, s);
  }

  // Adds part c of the positions' values with these weights, packed: those of queries g in a, of g
  // + 8 in b.
  template <int kGroups>
  __device__ __forceinline__ void Add(int c, const uint4 (&v)[kGroups],
                                      const uint32_t (&a)[kGroups], const uint32_t (&b)[kGroups]) {
#pragma unroll
    for (int j = 0; j < kGroups; j += 2) {
      Mma(o[c][0], a[j], b[j], a[j + 1], b[j + 1], Transpose(v[j].x), Transpose(v[j + 1].x));
      Mma(o[c][1], a[j], b[j], a[j + 1], b[j + 1], Transpose(v[j].y), Transpose(v[j + 1].y));
      Mma(o[c][2], a[j], b[j], a[j + 1], b[j + 1], Transpose(v[j].z), Transpose(v[j + 1].z));
      Mma(o[c][3], a[j], b[j], a[j + 1], b[j + 1], Transpose(v[j].w), Transpose(v[j + 1].w));
    }
  }
  // All parts, of weights as Weigh left them.
  template <int kGroups>
  __device__ __forceinline__ void Add(const uint4 (&values)[kGroups][kParts],
                                      const float (&s)[kGroups][4]) {
    uint32_t a[kGroups], b[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      a[j] = PackBF16(s[j][0], s[j][1]);
      b[j] = PackBF16(s[j][2], s[j][3]);
    }
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      uint4 v[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) v[j] = values[j][c];
      Add(c, v, a, b);
    }
  }
  template <int kGroups>
  __device__ __forceinline__ void Add(int c, const uint4 (&v)[kGroups],
                                      const uint32_t (&a)[kGroups]) {
#pragma unroll
    for (int j = 0; j < kGroups; j += 2) {
      MmaEight(o[c][0], a[j], a[j + 1], Transpose(v[j].x), Transpose(v[j + 1].x));
      MmaEight(o[c][1], a[j], a[j + 1], Transpose(v[j].y), Transpose(v[j + 1].y));
      MmaEight(o[c][2], a[j], a[j + 1], Transpose(v[j].z), Transpose(v[j + 1].z));
      MmaEight(o[c][3], a[j], a[j + 1], Transpose(v[j].w), Transpose(v[j + 1].w));
    }
  }

  // This thread's 8 contiguous outputs of part c for query g (i = 0) or g + 8 (i = 1): elements 32
  // c + 8 t ...
  __device__ __forceinline__ float Output(int c, int i, int k) const {
    return o[c][k / 2][2 * i + k % 2];
  }
};

// Keys or values of 8 kGroups positions; at(j) points to position 8 j + g.
template <int kGroups, int kParts, typename F>
__device__ __forceinline__ void LoadGroups(uint4 (&to)[kGroups][kParts], F at) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const bf16* from = at(j) + threadIdx.x % 4 * 8;
#pragma unroll
    for (int c = 0; c < kParts; ++c) to[j][c] = LoadCoherent16(from + c * 32);
  }
}

}  // namespace loopspec::cuda

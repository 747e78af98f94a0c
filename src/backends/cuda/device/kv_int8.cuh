// Where int8 keys and values lie in a page, and how they are loaded and stored.
//
// A head of a page has the codes of each split of attention, then the scales of each:
//   codes [64 / split][2][split][head_stride] int8 | scales [64 / split][2][split] float32
// with keys, then values in each [2]. So a split's keys and values are one contiguous copy, as
// large as its keys alone in bf16. A position's codes are in the order in which the four lanes that
// hold a key take them: each lane has 16 bytes of every 64 elements, which are its eight of the
// first and its eight of the second 32 (attention_math.cuh). Where a key is 128 bytes or more, the
// 64-byte halves of odd positions are swapped, so that lanes that read neighbouring positions from
// shared memory have no bank conflicts.
//
// Cells have keys and values as bf16; who attends to them rounds them. That is a function of the
// key alone, so it does not matter whether it is done before or after a commit.
#pragma once

#include "backends/cuda/device/int8_math.cuh"
#include "backends/cuda/program/geometry.h"
#include "kv/ledger.h"

namespace loopspec::cuda {

template <int kHead>
struct Int8Block {
  static constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  static constexpr int kRegisters = kHead / 16;       // of a lane, for the codes of one position
  static constexpr int kCodeBytes = kSplit * kHead;   // of a split's keys, or of its values
  static constexpr int kScaleBytes = 2 * kSplit * 4;  // of both
  static constexpr int kHeadBytes = 2 * kPageSize * (kHead + 4);
  static_assert(kHeadBytes == 2 * kPageSize * KeyWords(kHead, true) * 2);

  // A lane's codes of position 8 j + g of a split.
  using Codes = uint32_t[kGroups][kRegisters];
  // Scales of positions 8 j + 2 t and the next one.
  using Scales = float2[kGroups];

  // Of a page's head: where the split of position `slot` has its codes and its scales.
  static __device__ __forceinline__ int CodesOf(int slot) {
    return slot / kSplit * (2 * kCodeBytes);
  }
  static __device__ __forceinline__ int ScalesOf(int slot) {
    return 2 * kPageSize * kHead + slot / kSplit * kScaleBytes;
  }
  // Of a split, for keys (which 0) or values (1): where lane t's codes number v of a position
  // begin, which are 16 bytes, or all 8 of a head of 32; and where its scale is.
  static constexpr int kVectors = kHead < 64 ? 1 : kHead / 64;
  static __device__ __forceinline__ int CodesAt(int which, int position, int v, int t) {
    const int half = kHead >= 128 ? v ^ (position & 1) : v;
    return which * kCodeBytes + position * kHead + half * 64 + t * (kHead < 64 ? 8 : 16);
  }
  static __device__ __forceinline__ int ScaleAt(int which, int position) {
    return (which * kSplit + position) * 4;
  }

  // By the four lanes that rounded a key or value: stores it as a position of a split.
  static __device__ __forceinline__ void Store(std::byte* split_codes, std::byte* split_scales,
                                               int which, int position,
                                               const uint32_t (&codes)[kRegisters], float scale) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    if constexpr (kHead < 64) {
      *reinterpret_cast<uint2*>(split_codes + CodesAt(which, position, 0, t)) =
          make_uint2(codes[0], codes[1]);
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        *reinterpret_cast<uint4*>(split_codes + CodesAt(which, position, v, t)) =
            make_uint4(codes[4 * v], codes[4 * v + 1], codes[4 * v + 2], codes[4 * v + 3]);
    }
    if (t == 0) *reinterpret_cast<float*>(split_scales + ScaleAt(which, position)) = scale;
  }
  // What Store stored.
  static __device__ __forceinline__ float Load(const std::byte* split_codes,
                                               const std::byte* split_scales, int which,
                                               int position, uint32_t (&codes)[kRegisters]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    if constexpr (kHead < 64) {
      const uint2 v =
          __ldcg(reinterpret_cast<const uint2*>(split_codes + CodesAt(which, position, 0, t)));
      codes[0] = v.x;
      codes[1] = v.y;
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint4 from = LoadCoherent16(split_codes + CodesAt(which, position, v, t));
        codes[4 * v] = from.x;
        codes[4 * v + 1] = from.y;
        codes[4 * v + 2] = from.z;
        codes[4 * v + 3] = from.w;
      }
    }
    return __ldcg(reinterpret_cast<const float*>(split_scales + ScaleAt(which, position)));
  }

  // A lane's codes of position 8 j + g of a split in shared memory; returns something that depends
  // on what was loaded.
  static __device__ __forceinline__ uint32_t LoadShared(uint32_t split_codes, int which, int j,
                                                        uint32_t (&codes)[kRegisters]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const int position = 8 * j + static_cast<int>(threadIdx.x) % 32 / 4;
    uint32_t read = 0;
    if constexpr (kHead < 64) {
      const uint2 from =
          LoadShared8(split_codes + static_cast<uint32_t>(CodesAt(which, position, 0, t)));
      codes[0] = from.x;
      codes[1] = from.y;
      read = from.x;
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint4 from =
            LoadShared16(split_codes + static_cast<uint32_t>(CodesAt(which, position, v, t)));
        codes[4 * v] = from.x;
        codes[4 * v + 1] = from.y;
        codes[4 * v + 2] = from.z;
        codes[4 * v + 3] = from.w;
        read |= from.x;
      }
    }
    return read;
  }
};

}  // namespace loopspec::cuda

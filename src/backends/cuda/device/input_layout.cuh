// The layouts of a matrix's bf16 inputs. In the persistent kernel a lane's parts of an
// instruction's operand are contiguous, and so is what a warp loads with one instruction. In phases
// of many rows (decode/wide) a tile's rows of one stage are contiguous.
#pragma once

#include "backends/cuda/program/plan.h"

namespace loopspec::cuda {

inline constexpr int kInputGroup = 32;  // elements of a row that lie together

// Where element i of a row is stored: the pairs of each group are permuted so that 16 contiguous
// bytes are a lane's parts of operand `b` for two products over 16 elements.
__host__ __device__ constexpr int InputPlace(int i) {
  return (i & ~30) | (i >> 1 & 3) << 3 | (i >> 3 & 3) << 1;
}

// The rows of one pass over the weights are interleaved group by group: [row / kPassRows]
// [i / kInputGroup][row % kPassRows][kInputGroup]. `ld`: elements of a row.
inline constexpr int kInputGroupStride = kInputGroup * kPassRows;
__host__ __device__ constexpr size_t InputAt(int row, int i, int ld) {
  return static_cast<size_t>(row / kPassRows) * kPassRows * static_cast<size_t>(ld) +
         static_cast<size_t>(i / kInputGroup * kInputGroupStride + row % kPassRows * kInputGroup +
                             InputPlace(i) % kInputGroup);
}

// ---- Phases of many rows ----

// The rows that a buffer of inputs has room for in each layout, if a step has up to `row_stride`.
__host__ __device__ constexpr int InputRows(int row_stride) {
  return (row_stride + kPassRows - 1) / kPassRows * kPassRows;
}
__host__ __device__ constexpr int WideInputRows(int row_stride) {
  return (row_stride + 7) / 8 * 8;
}
// Inputs of phases of many rows stand after those of others, not in their place: elements that pad
// a row are zeroed once, and are not the same ones in both layouts.
__host__ __device__ constexpr size_t WideInputsBegin(int row_stride, int ld) {
  return static_cast<size_t>(InputRows(row_stride)) * static_cast<size_t>(ld);
}
// Where element i of a row is stored: [i / 64][row][64], each row's 16-byte part c at c ^ row % 8.
// So a tile's rows of 64 elements of k are one copy, and lie in shared memory as TMA's 128-byte
// swizzle would put them, which the matrix instructions read without conflicts.
inline constexpr int kWideInputGroup = 64;
__host__ __device__ constexpr size_t WideInputAt(int row, int i, int row_stride, int ld) {
  const int part = i % kWideInputGroup / 8 ^ row % 8;
  return WideInputsBegin(row_stride, ld) +
         (static_cast<size_t>(i / kWideInputGroup) *
              static_cast<size_t>(WideInputRows(row_stride)) +
          static_cast<size_t>(row)) *
             kWideInputGroup +
         static_cast<size_t>(part * 8 + i % 8);
}

}  // namespace loopspec::cuda

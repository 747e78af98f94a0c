// The layout of a matrix's bf16 inputs: a lane's parts of an instruction's operand are contiguous,
// and so is what a warp loads with one instruction.
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

}  // namespace loopspec::cuda

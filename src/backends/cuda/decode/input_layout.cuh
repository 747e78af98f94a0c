// How the bf16 inputs of a matrix lie: a lane's parts of an instruction's operand in one piece, and
// what a warp loads with one instruction in one piece too.
#pragma once

#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

inline constexpr int kInputGroup = 32;  // elements of a row that lie together

// Where element i of a row is kept: the pairs of each group change places so that the 16 contiguous
// bytes of a lane are its parts of operand `b` for two products over 16 elements.
__host__ __device__ constexpr int InputPlace(int i) {
  return (i & ~30) | (i >> 1 & 3) << 3 | (i >> 3 & 3) << 1;
}

// The rows of a pass over the weights lie beside each other, group by group: [row / kPassRows]
// [i / kInputGroup][row % kPassRows][kInputGroup]. `ld`: elements of a row.
inline constexpr int kInputGroupStride = kInputGroup * kPassRows;
__host__ __device__ constexpr size_t InputAt(int row, int i, int ld) {
  return static_cast<size_t>(row / kPassRows) * kPassRows * static_cast<size_t>(ld) +
         static_cast<size_t>(i / kInputGroup * kInputGroupStride + row % kPassRows * kInputGroup +
                             InputPlace(i) % kInputGroup);
}

}  // namespace loopspec::cuda

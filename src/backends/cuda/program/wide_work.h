// How a matrix product of many rows is divided among CTAs: into items, each a tile of outputs by
// rows, for all of k or for the chunk of a partial sum. Weights and inputs of an item go through
// shared memory in stages of kWideStageK elements of k.
#pragma once

#include "backends/cuda/program/op.h"

namespace loopspec::cuda {

// Tiles of outputs by rows that there are kernels for.
struct WideShape {
  int outputs, rows;
  int box;      // rows of weights that one TMA copy brings
  int at_once;  // CTAs that a multiprocessor has room for
  bool hopper;  // multiplied by wgmma, which compute capability 9.0 alone has
  bool chunks;  // there are registers for whole sums over several chunks of k
  bool packed;  // and for weights of few bits, which become bf16 there
};
inline constexpr WideShape kWideShapes[] = {
    // decode/wide/wide_products.cu
    {32, 32, 32, 2, false, true, false},
    {48, 64, 48, 2, false, true, false},
    {96, 64, 48, 1, false, true, false},
    {64, 64, 32, 2, false, false, false},
    {128, 64, 32, 1, false, false, false},
    // decode/wide/wide_hopper.cuh
    {64, 32, 64, 2, true, true, true},
    {64, 64, 64, 2, true, true, true},
    {128, 88, 64, 1, true, true, true},
    {128, 128, 64, 1, true, false, false},
};
inline constexpr int kWideShapeCount = static_cast<int>(sizeof(kWideShapes) / sizeof(WideShape));

// Blocks of k that an item has at most.
inline constexpr __host__ __device__ int BlocksOfItem(const WideMatrix& matrix) {
  return matrix.chunks == 1 || matrix.k_blocks < kWarps ? matrix.k_blocks : kWarps;
}
// Whether such tiles can be used for a matrix.
inline constexpr bool TakesMatrix(const WideShape& shape, const WideMatrix& matrix) {
  return (shape.chunks || BlocksOfItem(matrix) <= kWarps) &&
         (shape.packed || matrix.form == WeightForm::kBF16);
}

inline constexpr int kWideStageK = 64;             // 128 bytes of a row: the span of TMA's swizzle
inline constexpr int kWideBoxes[] = {32, 48, 64};  // the sizes of box that shapes have
inline constexpr int kWideBoxSizes = static_cast<int>(sizeof(kWideBoxes) / sizeof(int));
// The index in kWideBoxes of a shape's box.
inline constexpr int WideBoxIndex(const WideShape& shape) {
  int i = 0;
  while (kWideBoxes[i] != shape.box) ++i;
  return i;
}

// The items of one matrix for `rows` rows; items that share weights are neighbours.
struct WideWork {
  int across;  // tiles of rows
  int down;    // tiles of outputs
  int items;

  static __host__ __device__ constexpr WideWork Of(const WideMatrix& matrix, const WideShape& shape,
                                                   int rows) {
    WideWork work{};
    work.across = (rows + shape.rows - 1) / shape.rows;
    work.down = (matrix.tiles * kTileRows + shape.outputs - 1) / shape.outputs;
    work.items = work.across * work.down * matrix.chunks;
    return work;
  }
};

// One item: its place in rows, outputs and partial sums.
struct WideItem {
  int row_tile, output_tile, chunk;

  static __host__ __device__ constexpr WideItem Of(const WideWork& work, int index) {
    const int column = index / work.across;
    return {index - column * work.across, column % work.down, column / work.down};
  }
};

// The index in kWideShapes of the tile that should take least time for `rows` rows. `hopper`:
// choose among the tiles of wgmma, else among those of mma.
int ChooseWideShape(const WideMatrix& matrix, int rows, int multiprocessors, bool hopper);

}  // namespace loopspec::cuda

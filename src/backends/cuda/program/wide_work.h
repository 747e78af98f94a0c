// How a matrix product of more than kPassRows rows is divided among the CTAs: into items, each a
// tile of outputs by rows for one chunk of k. Weights and inputs of an item go through shared
// memory in stages of kWideStageK elements of k.
#pragma once

#include "backends/cuda/program/op.h"

namespace loopspec::cuda {

// An item's outputs and rows. `blocks`: blocks of k that different warps multiply at the same time;
// their sums are added in the order of k, as everywhere.
struct WideShape {
  int outputs, rows, blocks;
};
inline constexpr int kWideShapes = 3;
__host__ __device__ constexpr WideShape WideShapeAt(int i) {
  return i == 0 ? WideShape{64, 64, 2} : i == 1 ? WideShape{128, 64, 1} : WideShape{128, 128, 1};
}

inline constexpr int kWideStageK = 64;  // 128 bytes of a row: the span of TMA's swizzle
inline constexpr int kWideStages = 6;
inline constexpr int kWideStageBytes = 32 * 1024;
inline constexpr int kWideBoxRows = 64;  // of weights, that one TMA copy brings
inline constexpr int kWideRowStep = 64;  // shapes are chosen for multiples of so many rows

// Which shape a matrix has for so many rows: two bits for each step of kWideRowStep rows, the last
// for all that are more.
__host__ __device__ constexpr int WideShapeFor(const WideMatrix& matrix, int rows) {
  const int step = (rows - 1) / kWideRowStep;
  return static_cast<int>(matrix.shapes >> 2 * (step < 16 ? step : 15) & 3u);
}

// The items of one matrix for so many rows. CTA i has items i, i + ctas, i + 2 ctas, ...; those
// that share weights are neighbours.
struct WideWork {
  int across;  // tiles of rows
  int down;    // tiles of outputs
  int items;
  int stages;  // of an item; the last chunk may leave some of them empty

  static __host__ __device__ constexpr WideWork Of(const WideMatrix& matrix, const WideShape& shape,
                                                   int rows) {
    WideWork work{};
    work.across = (rows + shape.rows - 1) / shape.rows;
    work.down = (matrix.tiles * kTileRows + shape.outputs - 1) / shape.outputs;
    work.items = work.across * work.down * matrix.chunks;
    const int blocks = matrix.k_blocks < kWarps ? matrix.k_blocks : kWarps;
    work.stages = (blocks + shape.blocks - 1) / shape.blocks * (kBlockK / kWideStageK);
    return work;
  }
  __host__ __device__ constexpr int ItemsOf(int cta, int ctas) const {
    return cta < items ? (items - cta + ctas - 1) / ctas : 0;
  }
};

// One item: its place in rows, outputs and chunks.
struct WideItem {
  int row_tile, output_tile, chunk;

  static __host__ __device__ constexpr WideItem Of(const WideWork& work, int index) {
    const int column = index / work.across;
    return {index - column * work.across, column % work.down, column / work.down};
  }
};

// Stages are requested in the order of their use, kWideStages ahead: at the beginning of a product
// for places 0 to kWideStages - 1, and when its load n has been used for place n + kWideStages. A
// place past the product's last load is one of the next product, whose inputs do not exist yet:
// only its weights are requested, and its inputs when it begins.
struct WideLoad {
  bool same;  // as the place's product; or else the next
  int n;      // of that product
};
__host__ __device__ constexpr WideLoad WideLoadAt(int place, int total) {
  return place < total ? WideLoad{true, place} : WideLoad{false, place - total};
}

// Fills in `shapes`: for each number of rows the one that should take least time.
WideMatrix ChooseWideShapes(WideMatrix matrix, int ctas);

}  // namespace loopspec::cuda

// How products of more than 32 rows are divided, and in which order their stages are requested,
// without a GPU.
#include "backends/cuda/program/wide_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "backends/cuda/decode/ops/input_layout.cuh"

namespace loopspec::cuda {
namespace {

WideMatrix Random(std::mt19937& random) {
  WideMatrix m{};
  m.tiles = 4 + static_cast<int>(random() % 400);
  m.k_blocks = static_cast<int16_t>(1 + random() % 40);
  m.chunks = static_cast<int16_t>((m.k_blocks + kWarps - 1) / kWarps);
  m.kind = MatrixKind::kPartial;
  return m;
}

// Every output of every row and every chunk of k belongs to exactly one item.
TEST(WideWork, CoversEveryOutputOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const WideMatrix m = Random(random);
    const int rows = kPassRows + 1 + static_cast<int>(random() % 300);
    const WideShape shape = kWideShapes[i % kWideShapeCount];
    const WideWork work = WideWork::Of(m, shape, rows);
    ASSERT_EQ(work.items, work.across * work.down * m.chunks);
    std::vector<int> tiles(static_cast<size_t>(work.items), 0);
    for (int index = 0; index < work.items; ++index) {
      const WideItem item = WideItem::Of(work, index);
      ASSERT_LT(item.row_tile, work.across);
      ASSERT_LT(item.output_tile, work.down);
      ASSERT_LT(item.chunk, m.chunks);
      ++tiles.at(static_cast<size_t>((item.chunk * work.down + item.output_tile) * work.across +
                                     item.row_tile));
    }
    ASSERT_TRUE(std::all_of(tiles.begin(), tiles.end(), [](int n) { return n == 1; }));
    ASSERT_GE(work.across * shape.rows, rows);
    ASSERT_LT((work.across - 1) * shape.rows,
              rows);  // an item without rows would read past the end
    ASSERT_GE(work.down * shape.outputs, m.tiles * kTileRows);
  }
}

TEST(WideWork, ShapesAreMadeOfBoxesAndGroups) {
  for (const WideShape& shape : kWideShapes) {
    EXPECT_EQ(shape.outputs % shape.box, 0);
    EXPECT_TRUE(std::find(std::begin(kWideBoxes), std::end(kWideBoxes), shape.box) !=
                std::end(kWideBoxes));
    EXPECT_EQ(shape.rows % kPassRows, 0);
  }
}

// A group of 32 rows by one stage's elements of k is contiguous in memory, in the order in which a
// lane takes its operands: 16 bytes for each 32 elements of k and each row.
TEST(WideWork, InputsOfAStageAreContiguous) {
  constexpr int kLd = 512;
  for (int row = 0; row < 64; ++row) {
    for (int i = 0; i < kLd; ++i) {
      const size_t stage = static_cast<size_t>(row / kPassRows) * kPassRows * kLd +
                           static_cast<size_t>(i / kWideStageK) * kWideStageK * kPassRows;
      const int k = i % kWideStageK, n = row % kPassRows / 8, g = row % 8, t = k % 8 / 2;
      const int lane = g * 4 + t;
      // As WideProduct::Multiply reads it, in elements.
      const size_t place = stage + static_cast<size_t>(k / 32 * kPassRows * 32 + n * 8 * 32) +
                           static_cast<size_t>(lane * 8 + k % 32 / 16 * 4 + k % 16 / 8 * 2 + k % 2);
      ASSERT_EQ(InputAt(row, i, kLd), place) << "row " << row << ", element " << i;
    }
  }
}

// Small matrices and few rows take tiles so small that every multiprocessor has one.
TEST(WideWork, ShapesKeepTheChipBusy) {
  WideMatrix m{};
  m.k_blocks = 8;
  m.chunks = 1;
  for (const int outputs : {2048, 6144, 11264}) {  // o, qkv, gate and up of Ouro-1.4B
    m.tiles = outputs / kTileRows;
    const WideShape& shape = kWideShapes[ChooseWideShape(m, 64, 132)];
    EXPECT_GE(WideWork::Of(m, shape, 64).items, 88) << outputs << " outputs";
  }
}

}  // namespace
}  // namespace loopspec::cuda

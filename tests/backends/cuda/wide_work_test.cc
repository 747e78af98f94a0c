// How products of more than 32 rows are divided, and in which order their stages are requested,
// without a GPU.
#include "backends/cuda/program/wide_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "backends/cuda/device/input_layout.cuh"

namespace loopspec::cuda {
namespace {

WideMatrix Random(std::mt19937& random) {
  WideMatrix m{};
  m.tiles = 4 + static_cast<int>(random() % 400);
  m.k_blocks = static_cast<int16_t>(1 + random() % 40);
  m.kind = random() % 2 == 0 ? MatrixKind::kPartial : MatrixKind::kGateUp;
  m.chunks =
      static_cast<int16_t>(m.kind == MatrixKind::kPartial ? (m.k_blocks + kWarps - 1) / kWarps : 1);
  return m;
}

// Every output of every row and every partial sum belongs to exactly one item, and the items of a
// tile have all blocks of k.
TEST(WideWork, CoversEveryOutputOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const WideMatrix m = Random(random);
    const int rows = kPassRows + 1 + static_cast<int>(random() % 300);
    const WideShape shape = kWideShapes[i % kWideShapeCount];
    const WideWork work = WideWork::Of(m, shape, rows);
    ASSERT_EQ(work.items, work.across * work.down * m.chunks);
    ASSERT_GE(m.chunks * BlocksOfItem(m), m.k_blocks);
    ASSERT_LT((m.chunks - 1) * BlocksOfItem(m), m.k_blocks);
    ASSERT_TRUE(m.chunks == 1 || BlocksOfItem(m) == kWarps);
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
    ASSERT_TRUE(std::find(std::begin(kWideBoxes), std::end(kWideBoxes), shape.box) !=
                std::end(kWideBoxes));
    EXPECT_EQ(kWideBoxes[WideBoxIndex(shape)], shape.box);
    EXPECT_EQ(shape.rows % 8, 0);
  }
}

// A tile's rows of one stage are contiguous, each row's eight parts of 16 bytes in the order of the
// 128-byte swizzle; all elements of all rows have places of their own, past those of other layouts.
TEST(WideWork, InputsOfAStageAreContiguous) {
  constexpr int kLd = 512;
  for (const int row_stride : {33, 64, 100}) {
    const int rows = WideInputRows(row_stride);
    ASSERT_EQ(rows % 8, 0);
    ASSERT_GE(rows, row_stride);
    const size_t begin = WideInputsBegin(row_stride, kLd);
    ASSERT_GT(begin, InputAt(row_stride - 1, kLd - 1, kLd));
    std::vector<int> used(static_cast<size_t>(rows) * kLd, 0);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < kLd; ++i) {
        const size_t at = WideInputAt(row, i, row_stride, kLd);
        ASSERT_GE(at, begin);
        ++used.at(at - begin);
        // As RequestInputs copies it from the tile's first row on, and as it then is read: part c
        // of a row is at c ^ row % 8.
        const int tile_row = row / 16 * 16;
        const size_t stage =
            begin + (static_cast<size_t>(i / kWideStageK * rows + tile_row)) * kWideStageK;
        const int part = i % kWideStageK / 8, in_tile = row - tile_row;
        ASSERT_EQ(at, stage + static_cast<size_t>(in_tile * kWideStageK + (part ^ in_tile % 8) * 8 +
                                                  i % 8))
            << "row " << row << ", element " << i;
      }
    }
    ASSERT_TRUE(std::all_of(used.begin(), used.end(), [](int n) { return n == 1; }));
  }
}

// Small matrices and few rows take tiles so small that most multiprocessors have one; wgmma has
// none of less than 64 outputs.
TEST(WideWork, ShapesKeepTheChipBusy) {
  WideMatrix m{};
  m.k_blocks = 8;
  m.chunks = 1;
  for (const int outputs : {2048, 6144, 11264}) {  // o, qkv, gate and up of Ouro-1.4B
    m.tiles = outputs / kTileRows;
    for (const bool hopper : {false, true}) {
      const WideShape& shape = kWideShapes[ChooseWideShape(m, 64, 132, hopper)];
      EXPECT_GE(WideWork::Of(m, shape, 64).items, hopper ? 64 : 88) << outputs << " outputs";
    }
  }
}

// A device is given only what it has kernels for, also where sums are of several chunks.
TEST(WideWork, ShapesAreOfTheDevice) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const WideMatrix m = Random(random);
    const int rows = kPassRows + 1 + static_cast<int>(random() % 300);
    for (const bool hopper : {false, true}) {
      const WideShape& shape = kWideShapes[ChooseWideShape(m, rows, 132, hopper)];
      EXPECT_EQ(shape.hopper, hopper);
      EXPECT_TRUE(shape.chunks || m.kind == MatrixKind::kPartial || m.k_blocks <= kWarps);
    }
  }
}

}  // namespace
}  // namespace loopspec::cuda

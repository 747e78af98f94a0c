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

// Every output of every row and every block of k belongs to exactly one item of one CTA.
TEST(WideWork, CoversEveryOutputOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const int ctas = i % 2 == 0 ? 132 : 1 + static_cast<int>(random() % 200);
    const WideMatrix m = ChooseWideShapes(Random(random), ctas);
    const int rows = kPassRows + 1 + static_cast<int>(random() % 300);
    const WideShape shape = WideShapeAt(WideShapeFor(m, rows));
    const WideWork work = WideWork::Of(m, shape, rows);
    std::vector<int> seen(static_cast<size_t>(work.items), 0);
    for (int cta = 0; cta < ctas; ++cta) {
      for (int n = 0; n < work.ItemsOf(cta, ctas); ++n)
        ++seen.at(static_cast<size_t>(cta + n * ctas));
    }
    ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    std::vector<int> tiles(static_cast<size_t>(work.across * work.down * m.chunks), 0);
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
    ASSERT_GE(work.stages * kWideStageK * shape.blocks,
              std::min<int>(m.k_blocks, kWarps) * kBlockK);
  }
}

// What fits into a stage, and in how many warps.
TEST(WideWork, ShapesFitTheStages) {
  for (int i = 0; i < kWideShapes; ++i) {
    const WideShape shape = WideShapeAt(i);
    EXPECT_LE((shape.outputs + shape.rows) * shape.blocks * kWideStageK * 2, kWideStageBytes);
    EXPECT_EQ(shape.outputs % kWideBoxRows, 0);
    EXPECT_EQ(shape.rows % kPassRows, 0);
    EXPECT_EQ(kWarps % shape.blocks, 0);
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

// The requests of a CTA through products of many sizes: every load once, in order, into a stage
// that is free, and inputs only when the CTA has come to their product.
TEST(WideWork, RequestsEveryLoadOnceAndInOrder) {
  std::mt19937 random(2);
  for (int run = 0; run < 200; ++run) {
    std::vector<int> totals(2 + random() % 12);
    for (int& total : totals)
      total = static_cast<int>(random() % 3 == 0 ? random() % 8 : random() % 60);
    std::vector<std::vector<int>> weights, inputs;
    for (const int total : totals) {
      weights.emplace_back(static_cast<size_t>(total), 0);
      inputs.emplace_back(static_cast<size_t>(total), 0);
    }
    int base = 0, released = 0, requested = 0;
    for (size_t product = 0; product < totals.size(); ++product) {
      const int total = totals[product];
      const bool last = product + 1 == totals.size(), ahead = product > 0;
      const auto request = [&](int place, bool begin) {
        const WideLoad load = WideLoadAt(place, total);
        if (!load.same && (last || load.n >= totals[product + 1])) return;
        auto& of = weights[product + (load.same ? 0 : 1)];
        if (load.same && begin && ahead) {
          ASSERT_EQ(of.at(static_cast<size_t>(load.n)), 1);
        } else {
          const int number = base + (load.same ? load.n : total + load.n);
          ASSERT_EQ(number, requested++);
          ASSERT_LT(number - kWideStages, released);
          ++of.at(static_cast<size_t>(load.n));
        }
        if (load.same) ++inputs[product].at(static_cast<size_t>(load.n));
      };
      for (int place = 0; place < kWideStages; ++place) request(place, true);
      for (int n = 0; n < total; ++n) {
        ASSERT_EQ(weights[product][static_cast<size_t>(n)], 1);
        ASSERT_EQ(inputs[product][static_cast<size_t>(n)], 1);
        ++released;
        request(n + kWideStages, false);
      }
      base += total;
    }
  }
}

// More rows than a tile has at 64: larger tiles, which read less through the L2 cache.
TEST(WideWork, LargerTilesForMoreRows) {
  WideMatrix m{};
  m.tiles = 704;  // gate and up of Ouro-1.4B
  m.k_blocks = 8;
  m.chunks = 1;
  m = ChooseWideShapes(m, 132);
  EXPECT_EQ(WideShapeAt(WideShapeFor(m, 64)).rows, 64);
  EXPECT_EQ(WideShapeAt(WideShapeFor(m, 256)).rows, 128);
}

}  // namespace
}  // namespace loopspec::cuda

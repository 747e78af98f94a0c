#include "backends/cuda/program/wide_work.h"

#include <algorithm>

namespace loopspec::cuda {
namespace {

// What a multiprocessor does, per cycle. Fitted to times on an H200; for wgmma the tile that is
// best came out right for all 30 products of 48 to 256 rows of Ouro-1.4B and Raven-Llama.
struct Speed {
  double into;      // bytes that it takes in
  double through;   // bytes that all multiprocessors together take through the L2 cache
  double products;  // multiply-adds
  double of_item;   // cycles to begin and to end an item; neighbours overlap
};
constexpr Speed kWarpsInstruction{50, 3100, 700, 9000},
    kWarpgroupsInstruction{230, 10900, 2500, 4600};

// Cycles of a product, roughly: the busiest multiprocessor, or what all of them together read
// through the L2 cache, whichever takes longer.
double Cycles(const WideMatrix& matrix, const WideShape& shape, int rows, int multiprocessors) {
  const Speed& speed = shape.hopper ? kWarpgroupsInstruction : kWarpsInstruction;
  const WideWork work = WideWork::Of(matrix, shape, rows);
  const double k = BlocksOfItem(matrix) * kBlockK;
  const double weight = UnitBytes(matrix.form) / static_cast<double>(kUnitOutputs * kUnitK);
  const double bytes = (shape.outputs * weight + std::min(shape.rows, rows) * 2) * k;
  const double item = std::max(bytes / speed.into, shape.outputs * shape.rows * k / speed.products);
  const int most = (work.items + multiprocessors - 1) / multiprocessors;
  const double turns = (most + shape.at_once - 1) / shape.at_once;
  return std::max(most * item + turns * speed.of_item, work.items * bytes / speed.through);
}

}  // namespace

int ChooseWideShape(const WideMatrix& matrix, int rows, int multiprocessors, bool hopper) {
  int best = -1;
  double least = 0;
  for (int i = 0; i < kWideShapeCount; ++i) {
    if (kWideShapes[i].hopper != hopper || !TakesMatrix(kWideShapes[i], matrix)) continue;
    const double cycles = Cycles(matrix, kWideShapes[i], rows, multiprocessors);
    if (best >= 0 && cycles >= least) continue;
    best = i;
    least = cycles;
  }
  return best;
}

}  // namespace loopspec::cuda

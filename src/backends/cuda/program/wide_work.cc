#include "backends/cuda/program/wide_work.h"

#include <algorithm>

namespace loopspec::cuda {
namespace {

// Cycles of a product, roughly: the busiest multiprocessor, or what all of them together read
// through the L2 cache, whichever takes longer.
double Cycles(const WideMatrix& matrix, const WideShape& shape, int rows, int multiprocessors) {
  constexpr double kIntoMultiprocessor = 50, kThroughL2 = 3100;  // bytes per cycle
  // Multiply-adds per cycle of a multiprocessor.
  const double products = shape.hopper ? 1300 : 700;
  constexpr double kOfItem = 9000;  // to begin and to end it; neighbours overlap
  const WideWork work = WideWork::Of(matrix, shape, rows);
  const double k = std::min<int>(matrix.k_blocks, kWarps) * kBlockK;
  const double bytes = (shape.outputs + std::min(shape.rows, rows)) * k * 2;
  const double item =
      std::max(bytes / kIntoMultiprocessor, shape.outputs * shape.rows * k / products);
  const int most = (work.items + multiprocessors - 1) / multiprocessors;
  const double turns = (most + shape.at_once - 1) / shape.at_once;
  return std::max(most * item + turns * kOfItem, work.items * bytes / kThroughL2);
}

}  // namespace

int ChooseWideShape(const WideMatrix& matrix, int rows, int multiprocessors, bool hopper) {
  int best = -1;
  double least = 0;
  for (int i = 0; i < kWideShapeCount; ++i) {
    if (kWideShapes[i].hopper != hopper) continue;
    const double cycles = Cycles(matrix, kWideShapes[i], rows, multiprocessors);
    if (best >= 0 && cycles >= least) continue;
    best = i;
    least = cycles;
  }
  return best;
}

}  // namespace loopspec::cuda

#include "backends/cuda/program/wide_work.h"

#include <algorithm>

namespace loopspec::cuda {
namespace {

// Cycles of a product, roughly: the busiest multiprocessor, or what all of them together read
// through the L2 cache, whichever takes longer. The constants were fitted to times on an H200.
double Cycles(const WideMatrix& matrix, const WideShape& shape, int rows, int multiprocessors) {
  constexpr double kIntoMultiprocessor = 50, kThroughL2 = 3100;  // bytes per cycle
  constexpr double kProducts = 700;  // multiply-adds per cycle of a multiprocessor
  constexpr double kOfItem = 9000;   // to begin and to end it; neighbours overlap
  const WideWork work = WideWork::Of(matrix, shape, rows);
  const double k = std::min<int>(matrix.k_blocks, kWarps) * kBlockK;
  const double bytes = (shape.outputs + shape.rows) * k * 2;
  const double item =
      std::max(bytes / kIntoMultiprocessor, shape.outputs * shape.rows * k / kProducts);
  const int most = (work.items + multiprocessors - 1) / multiprocessors;
  const double turns = (most + shape.at_once - 1) / shape.at_once;
  return std::max(most * item + turns * kOfItem, work.items * bytes / kThroughL2);
}

}  // namespace

int ChooseWideShape(const WideMatrix& matrix, int rows, int multiprocessors) {
  int best = 0;
  for (int i = 1; i < kWideShapeCount; ++i) {
    if (Cycles(matrix, kWideShapes[i], rows, multiprocessors) <
        Cycles(matrix, kWideShapes[best], rows, multiprocessors))
      best = i;
  }
  return best;
}

}  // namespace loopspec::cuda

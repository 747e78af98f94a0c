#include "backends/cuda/program/wide_work.h"

#include <algorithm>

namespace loopspec::cuda {
namespace {

// Cycles of a product, roughly: the slowest CTA, or what all of them together read through the L2
// cache, whichever takes longer.
double Cycles(const WideMatrix& matrix, const WideShape& shape, int rows, int ctas) {
  constexpr double kIntoCta = 64, kThroughL2 = 3100, kShared = 128;  // bytes per cycle
  constexpr double kOfItem = 1500;                                   // to begin and to end it
  const WideWork work = WideWork::Of(matrix, shape, rows);
  const double k = std::min<int>(matrix.k_blocks, kWarps) * kBlockK;
  const double bytes = (shape.outputs + shape.rows) * k * 2;
  // A warp has 32 outputs and 32 rows, or 64 in the largest shape, and reads both from shared
  // memory.
  const double warp_rows = shape.rows == 128 ? 64 : 32;
  const double shared =
      (shape.outputs / 32.0) * (shape.rows / warp_rows) * (32 + warp_rows) * k * 2;
  const double item = std::max(bytes / kIntoCta, shared / kShared) + kOfItem;
  const double turns = (work.items + ctas - 1) / ctas;
  return std::max(turns * item, work.items * bytes / kThroughL2);
}

}  // namespace

WideMatrix ChooseWideShapes(WideMatrix matrix, int ctas) {
  matrix.shapes = 0;
  for (int step = 0; step < 16; ++step) {
    const int rows = (step + 1) * kWideRowStep;
    int best = 0;
    for (int i = 1; i < kWideShapes; ++i) {
      if (Cycles(matrix, WideShapeAt(i), rows, ctas) <
          Cycles(matrix, WideShapeAt(best), rows, ctas))
        best = i;
    }
    matrix.shapes |= static_cast<uint32_t>(best) << 2 * step;
  }
  return matrix;
}

}  // namespace loopspec::cuda

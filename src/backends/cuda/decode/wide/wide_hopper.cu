// The products of many rows by wgmma, of weights in bf16.
#include "backends/cuda/decode/wide/wide_hopper.cuh"

namespace loopspec::cuda {
namespace {

template <MatrixKind kKind, bool kChunks>
WideProductKernel OfShape(int shape) {
  constexpr WeightForm kForm = WeightForm::kBF16;
  switch (shape) {
    case 5:
      return Kernel<kKind, kForm, kChunks, 5, 1, 1, 32, 9>();
    case 6:
      return Kernel<kKind, kForm, kChunks, 6, 1, 1, 64, 7>();
    case 7:
      return Kernel<kKind, kForm, kChunks, 7, 2, 1, 88, 8>();
    default:
      LOOPSPEC_CHECK(shape == 8 && !kChunks && !kWideShapes[8].chunks);
      return Kernel<kKind, kForm, false, 8, 2, 1, 128, 7>();
  }
}

}  // namespace

WideProductKernel HopperProduct(const WideMatrix& matrix, int shape) {
  if (matrix.form == WeightForm::kInt8) return HopperInt8Product(matrix, shape);
  if (IsInt4(matrix.form)) return HopperInt4Product(matrix, shape);
  return OfMatrix(matrix,
                  [&]<MatrixKind kKind, bool kChunks>() { return OfShape<kKind, kChunks>(shape); });
}

}  // namespace loopspec::cuda

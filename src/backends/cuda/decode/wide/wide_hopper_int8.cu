// The products of many rows by wgmma, of weights in int8.
#include "backends/cuda/decode/wide/wide_hopper.cuh"

namespace loopspec::cuda {
namespace {

template <MatrixKind kKind, bool kChunks>
WideProductKernel OfShape(int shape) {
  constexpr WeightForm kForm = WeightForm::kInt8;
  switch (shape) {
    case 5:
      return Kernel<kKind, kForm, kChunks, 5, 1, 1, 32, 13>();
    case 6:
      return Kernel<kKind, kForm, kChunks, 6, 1, 1, 64, 8>();
    default:
      LOOPSPEC_CHECK(shape == 7);
      return Kernel<kKind, kForm, kChunks, 7, 2, 1, 88, 10>();
  }
}

}  // namespace

WideProductKernel HopperInt8Product(const WideMatrix& matrix, int shape) {
  return OfMatrix(matrix,
                  [&]<MatrixKind kKind, bool kChunks>() { return OfShape<kKind, kChunks>(shape); });
}

}  // namespace loopspec::cuda

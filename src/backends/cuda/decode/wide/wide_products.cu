// The products of many rows that need nothing but TMA and the matrix instruction of a warp.
#include "backends/cuda/decode/wide/wide_product.cuh"
#include "backends/cuda/decode/wide/wide_product_kernels.h"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

template <MatrixKind kKind, int kAtOnce, bool kChunks, int... kSizes>
__global__ void __launch_bounds__(WideTile<kChunks, kSizes...>::kThreadsHere, kAtOnce)
    ProductKernel(const __grid_constant__ DecodeParams params, const __grid_constant__ WideRun run,
                  const __grid_constant__ WideProductParams how) {
  if constexpr (kCompiled) WideProduct<kKind, kChunks, kSizes...>::RunOp(params, run, how);
}

// Stages: as many as there is room for.
template <MatrixKind kKind, int kShape, int kDown, int kAcross, int kM, int kTiles, int kStages>
WideProductKernel Kernel() {
  constexpr WideShape kIs = kWideShapes[kShape];
  using Tile = WideTile<kIs.chunks, kDown, kAcross, kM, kTiles, kStages, kIs.box>;
  static_assert(Tile::kOutputs == kIs.outputs && Tile::kRows == kIs.rows && !kIs.hopper);
  static_assert(kIs.at_once * (Tile::Stages::kSharedBytes + 1024) <= 228 * 1024);
  return {
      ProductKernel<kKind, kIs.at_once, kIs.chunks, kDown, kAcross, kM, kTiles, kStages, kIs.box>,
      Tile::kThreadsHere, Tile::Stages::kSharedBytes};
}
template <MatrixKind kKind>
WideProductKernel OfShape(int shape) {
  switch (shape) {
    case 0:
      return Kernel<kKind, 0, 2, 2, 1, 2, 12>();
    case 1:
      return Kernel<kKind, 1, 3, 2, 1, 4, 7>();
    case 2:
      return Kernel<kKind, 2, 3, 4, 2, 2, 8>();
    case 3:
      return Kernel<kKind, 3, 2, 2, 2, 4, 6>();
    default:
      LOOPSPEC_CHECK(shape == 4);
      return Kernel<kKind, 4, 4, 2, 2, 4, 8>();
  }
}

}  // namespace

WideProductKernel PortableProduct(MatrixKind kind, int shape) {
  switch (kind) {
    case MatrixKind::kQkv:
      return OfShape<MatrixKind::kQkv>(shape);
    case MatrixKind::kQkvRaw:
      return OfShape<MatrixKind::kQkvRaw>(shape);
    case MatrixKind::kGateUp:
      return OfShape<MatrixKind::kGateUp>(shape);
    case MatrixKind::kPartial:
      return OfShape<MatrixKind::kPartial>(shape);
    default:
      return OfShape<MatrixKind::kHead>(shape);
  }
}

}  // namespace loopspec::cuda

// The kernels of products of many rows: an instance for each kind of matrix and each tile shape.
#pragma once

#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/wide_context.cuh"
#include "backends/cuda/program/wide_work.h"

namespace loopspec::cuda {

struct WideProductParams {
  WideMatrix matrix;
  WideWork work;
  const TensorMap* map;
  const float* scales;   // of outputs, where weights are int8
  const bf16* input;     // as WideInputAt has it (device/input_layout.cuh)
  int32_t input_rows;    // rows that lie between neighbouring groups of elements
  int32_t plane_offset;  // of the layer, relative to the row's first plane
};

struct WideProductKernel {
  void (*function)(DecodeParams, WideRun, WideProductParams);
  int threads, shared_bytes;
};

// For shapes that take the matrix (TakesMatrix) and are not Hopper's: mma.sync.
WideProductKernel PortableProduct(MatrixKind kind, int shape);
// For shapes that are: wgmma. To be called on compute capability 9.0 only.
WideProductKernel HopperProduct(const WideMatrix& matrix, int shape);
// The parts of it for weights of few bits.
WideProductKernel HopperInt8Product(const WideMatrix& matrix, int shape);
WideProductKernel HopperInt4Product(const WideMatrix& matrix, int shape);

}  // namespace loopspec::cuda

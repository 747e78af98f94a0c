// Large matrix products through cuBLASLt, for prompts: out[rows, N] = in[rows, K] W^T with float32
// sums. One fixed number of rows and one algorithm per shape, chosen once: a row's result never
// depends on the chunk it is in.
#pragma once

#include <cublasLt.h>

#include <map>
#include <utility>

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

class MatMulLt {
 public:
  explicit MatMulLt(int rows);
  ~MatMulLt();
  MatMulLt(const MatMulLt&) = delete;
  MatMulLt& operator=(const MatMulLt&) = delete;

  // With the first `outputs` rows of the weights. in: [rows, ld] with ld = weights.ld; out: [rows,
  // outputs].
  void Run(const DeviceMatrix& weights, int outputs, const bf16* in, float* out,
           cudaStream_t stream);

 private:
  struct Shape {
    cublasLtMatrixLayout_t weights = nullptr, in = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  const Shape& Find(const DeviceMatrix& weights, int outputs);

  int rows_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  DeviceArray<std::byte> workspace_;
  std::map<std::pair<int, int>, Shape> shapes_;  // N, K
};

}  // namespace loopspec::cuda

// Large matrix products through cuBLASLt, for prompts: out[rows, N] = in[rows, K] W^T with float32 sums.
// One fixed number of rows and one algorithm per shape, chosen once: a row's result never depends on the chunk it is in.
#pragma once

#include <cublasLt.h>

#include <map>
#include <utility>

#include "backends/cuda/device_model.h"

namespace loopspec::cuda {

class MatMulLt {
 public:
  explicit MatMulLt(int rows);
  ~MatMulLt();
  MatMulLt(const MatMulLt&) = delete;
  MatMulLt& operator=(const MatMulLt&) = delete;

  // in: [rows, ld] with ld = weights.ld; out: [rows, out_ld].
  void Run(const DeviceMatrix& weights, const bf16* in, float* out, int out_ld, cudaStream_t stream);

 private:
  struct Shape {
    cublasLtMatrixLayout_t weights = nullptr, in = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  const Shape& Find(const DeviceMatrix& weights, int out_ld);

  int rows_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  DeviceArray<std::byte> workspace_;
  std::map<std::pair<std::pair<int, int>, int>, Shape> shapes_;  // (N, K), out_ld
};

}  // namespace loopspec::cuda

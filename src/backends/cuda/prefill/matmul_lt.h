// Large matrix products through cuBLASLt, for prompts on GPUs without Hopper's instruction:
// out[rows, N] = in[rows, K] W^T with float32 sums. Always kLtRows rows at a time and one algorithm
// per shape, chosen once: a row's result never depends on how many there are.
#pragma once

#include <cublasLt.h>

#include <map>
#include <tuple>

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

inline constexpr int kLtRows = 256;

class MatMulLt {
 public:
  MatMulLt();
  ~MatMulLt();
  MatMulLt(const MatMulLt&) = delete;
  MatMulLt& operator=(const MatMulLt&) = delete;

  // With the first `outputs` rows of the weights. in: [rows, weights.ld]; out: [rows, ld]. Both
  // have room for a multiple of kLtRows rows, and what lies past the last row of `out` is
  // overwritten.
  void Run(const DeviceMatrix& weights, int outputs, const bf16* in, int rows, float* out, int ld,
           cudaStream_t stream);

 private:
  struct Shape {
    cublasLtMatrixLayout_t weights = nullptr, in = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  const Shape& Find(const DeviceMatrix& weights, int outputs, int ld);

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  DeviceArray<std::byte> workspace_;
  std::map<std::tuple<int, int, int>, Shape> shapes_;  // N, K, ld of the output
};

}  // namespace loopspec::cuda

#include "backends/cuda/prefill/matmul_lt.h"

#include "base/error.h"

namespace loopspec::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void CheckLt(cublasStatus_t status, const char* doing) {
  if (status != CUBLAS_STATUS_SUCCESS)
    Fail("cuBLASLt: {} failed with status {}", doing, static_cast<int>(status));
}

cublasLtMatrixLayout_t Layout(cudaDataType_t type, int rows, int cols, int ld) {
  cublasLtMatrixLayout_t layout;
  CheckLt(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(cols), ld),
          "describing a matrix");
  return layout;
}

}  // namespace

MatMulLt::MatMulLt() : workspace_(kWorkspaceBytes, "the workspace of matrix products") {
  CheckLt(cublasLtCreate(&handle_), "starting");
  CheckLt(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "describing a product");
  // Rows are columns to cuBLAS: out^T = W in^T, with W given as the transpose of a K x N matrix.
  const cublasOperation_t transpose = CUBLAS_OP_T;
  CheckLt(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                         sizeof(transpose)),
          "describing a product");
}

MatMulLt::~MatMulLt() {
  for (auto& [key, shape] : shapes_) {
    cublasLtMatrixLayoutDestroy(shape.weights);
    cublasLtMatrixLayoutDestroy(shape.in);
    cublasLtMatrixLayoutDestroy(shape.out);
  }
  if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

const MatMulLt::Shape& MatMulLt::Find(const DeviceMatrix& w, int outputs, int ld) {
  const auto key = std::make_tuple(outputs, w.ld, ld);
  const auto found = shapes_.find(key);
  if (found != shapes_.end()) return found->second;
  Shape shape;
  shape.weights = Layout(CUDA_R_16BF, w.ld, outputs, w.ld);
  shape.in = Layout(CUDA_R_16BF, w.ld, kLtRows, w.ld);
  shape.out = Layout(CUDA_R_32F, outputs, kLtRows, ld);
  cublasLtMatmulPreference_t preference;
  CheckLt(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
  const size_t bytes = kWorkspaceBytes;
  CheckLt(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &bytes, sizeof(bytes)),
          "choosing an algorithm");
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, product_, shape.weights, shape.in, shape.out,
                                     shape.out, preference, 1, &result, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  CheckLt(status, "choosing an algorithm");
  if (count == 0) Fail("cuBLASLt has no algorithm for a {} x {} matrix", outputs, w.cols);
  shape.algorithm = result.algo;
  return shapes_.emplace(key, shape).first->second;
}

void MatMulLt::Run(const DeviceMatrix& weights, int outputs, const bf16* in, int rows, float* out,
                   int ld, cudaStream_t stream) {
  const Shape& shape = Find(weights, outputs, ld);
  const float one = 1.0f, zero = 0.0f;
  for (int row = 0; row < rows; row += kLtRows) {
    const bf16* from = in + static_cast<size_t>(row) * static_cast<size_t>(weights.ld);
    float* to = out + static_cast<size_t>(row) * static_cast<size_t>(ld);
    CheckLt(cublasLtMatmul(handle_, product_, &one, weights.data, shape.weights, from, shape.in,
                           &zero, to, shape.out, to, shape.out, &shape.algorithm, workspace_.data(),
                           workspace_.bytes(), stream),
            "multiplying");
  }
}

}  // namespace loopspec::cuda

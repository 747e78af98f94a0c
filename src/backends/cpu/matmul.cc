#include "backends/cpu/matmul.h"

#include <array>
#include <vector>

#include "base/check.h"

namespace loopspec::cpu {
namespace {

using KernelList = std::vector<const MatMulKernel*>;

KernelList List(DType weights, DType activations) {
  KernelList list;
  if (activations == DType::kBF16) {
    for (const MatMulKernel* kernel : {AmxKernel(), Avx512Bf16Kernel(), BfmmlaKernel()}) {
      if (kernel != nullptr) list.push_back(kernel);
    }
  }
  list.push_back(HighwayKernel(weights, activations));
  return list;
}

}  // namespace

std::span<const MatMulKernel* const> AllMatMuls(DType weights, DType activations) {
  static const std::array<KernelList, 4> lists = {
      List(DType::kF32, DType::kF32), List(DType::kBF16, DType::kF32),
      List(DType::kF16, DType::kF32), List(DType::kBF16, DType::kBF16)};
  if (activations == DType::kBF16) {
    LOOPSPEC_CHECK(weights == DType::kBF16);
    return lists[3];
  }
  return lists[weights == DType::kF32 ? 0 : weights == DType::kBF16 ? 1 : 2];
}

const MatMulKernel& ChooseMatMul(DType weights, DType activations) {
  return *AllMatMuls(weights, activations)[0];
}

bool HasFastBF16() {
  return AllMatMuls(DType::kBF16, DType::kBF16).size() > 1;
}

}  // namespace loopspec::cpu

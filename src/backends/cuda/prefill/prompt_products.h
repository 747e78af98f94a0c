// The matrix products of prompts, by what is done to their sums: on Hopper's own instruction with
// the rest fused, elsewhere through cuBLASLt with one algorithm for each shape and kernels after
// it.
#pragma once

#include <map>
#include <optional>

#include "backends/cuda/prefill/gemm_hopper.h"
#include "backends/cuda/prefill/matmul_lt.h"
#include "backends/cuda/prefill/prefill_plan.h"
#include "backends/cuda/prefill/widen.h"

namespace loopspec::cuda {

// What a test or a benchmark may ask for; everything is chosen where nothing is named.
struct PrefillSettings {
  int rows = 0;           // of a chunk, a multiple of 256
  bool portable = false;  // as on a GPU that is not Hopper
  int gemm_width = 0;     // of the tiles of products (gemm_hopper.h)
  int gemm_cluster = 1;
};

class PromptProducts {
 public:
  // `rows`: of every input. `hopper`: the device has compute capability 9.0.
  PromptProducts(const DeviceModel& model, const PrefillSettings& settings, bool hopper, int rows,
                 int multiprocessors, cudaStream_t stream);

  // An input [rows][ld] that products will take.
  void AddInput(const bf16* in, int ld);
  // Elements of the widest sums that Qkv and SwiGlu leave to kernels after them, for one row.
  size_t SumsOfRow() const;

  // out[rows, ld]: the first `outputs` columns, of rows [first, first + rows) of the input.
  void Sums(const DeviceMatrix& weights, const bf16* in, int first, int rows, float* out,
            int outputs, int ld);
  // `sums`: room for what the kernels after the product take.
  void Qkv(const DeviceLayer& layer, const bf16* in, int rows, float* sums,
           const PromptBuffers& buffers, const PromptMemory& memory, int plane);
  void SwiGlu(const DeviceLayer& layer, const bf16* in, int rows, float* sums,
              const PromptBuffers& buffers);

 private:
  bool QkvIsFused() const;

  const ModelSpec& spec_;
  bool hopper_;
  int rows_;
  GemmLaunch launch_;
  std::map<const void*, GemmWeights> weights_;  // by where they lie
  // On other GPUs:
  std::optional<MatMulLt> portable_;
  std::optional<WidenedWeights> widened_;
  std::map<const bf16*, GemmInput> inputs_;
  size_t sums_of_row_ = 0;
};

}  // namespace loopspec::cuda

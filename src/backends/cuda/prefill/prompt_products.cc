#include "backends/cuda/prefill/prompt_products.h"

#include <algorithm>

#include "backends/cuda/prefill/prompt_rows.h"

namespace loopspec::cuda {

PromptProducts::PromptProducts(const DeviceModel& model, const PrefillSettings& settings,
                               bool hopper, int rows, int multiprocessors, cudaStream_t stream)
    : spec_(model.spec),
      hopper_(hopper),
      rows_(rows),
      launch_{multiprocessors, settings.gemm_width, settings.gemm_cluster, stream} {
  const bool qkv_sums = !QkvIsFused();
  const auto add = [&](const DeviceMatrix& matrix) {
    if (hopper_ && matrix.data != nullptr) weights_[matrix.data] = DescribeWeights(matrix);
  };
  for (const auto* stack : {&model.prelude, &model.core, &model.coda}) {
    for (const DeviceLayer& layer : *stack) {
      for (const DeviceMatrix* m : {&layer.qkv, &layer.attn_out, &layer.gate_up, &layer.down})
        add(*m);
      const auto wider = [&](const DeviceMatrix& m) {
        sums_of_row_ = std::max(sums_of_row_, static_cast<size_t>(m.rows));
      };
      if (qkv_sums) wider(layer.qkv);
      if (!hopper_) wider(layer.gate_up);
    }
  }
  add(model.adapter);
  add(model.update);
  add(model.head);
  if (hopper_) {
    PrepareGemm();
  } else {
    portable_.emplace();
  }
}

bool PromptProducts::QkvIsFused() const {
  return hopper_ && !spec_.qk_norm && !spec_.qk_bias &&
         (spec_.head_dim == 64 || spec_.head_dim == 128);
}

void PromptProducts::AddInput(const bf16* in, int ld) {
  if (hopper_) inputs_[in] = DescribeInput(in, rows_, ld);
}

size_t PromptProducts::SumsOfRow() const {
  return sums_of_row_;
}

void PromptProducts::Sums(const DeviceMatrix& weights, const bf16* in, int first, int rows,
                          float* out, int outputs, int ld) {
  if (hopper_) {
    GemmSums(launch_, weights_.at(weights.data), inputs_.at(in), {first, rows}, out, outputs, ld);
  } else {
    portable_->Run(weights, outputs, in + static_cast<size_t>(first) * weights.ld, rows, out, ld,
                   launch_.stream);
  }
}

void PromptProducts::Qkv(const DeviceLayer& layer, const bf16* in, int rows, float* sums,
                         const PromptBuffers& buffers, const PromptMemory& memory, int plane) {
  if (QkvIsFused()) {
    GemmQkv(launch_, weights_.at(layer.qkv.data), inputs_.at(in), {0, rows}, buffers, memory,
            plane);
    return;
  }
  Sums(layer.qkv, in, 0, rows, sums, layer.qkv.rows, layer.qkv.rows);
  FinishQkv(sums, layer.qkv.rows, {layer.q_norm, layer.k_norm, layer.qk_bias}, buffers, memory,
            plane, rows, launch_.stream);
}

void PromptProducts::SwiGlu(const DeviceLayer& layer, const bf16* in, int rows, float* sums,
                            const PromptBuffers& buffers) {
  if (hopper_) {
    GemmSwiGlu(launch_, weights_.at(layer.gate_up.data), inputs_.at(in), {0, rows}, buffers.ff_in,
               buffers.ld_ff);
    return;
  }
  Sums(layer.gate_up, in, 0, rows, sums, layer.gate_up.rows, layer.gate_up.rows);
  FinishSwiGlu(sums, layer.gate_up.rows, buffers, rows, launch_.stream);
}

}  // namespace loopspec::cuda

#include "backends/cuda/prefill/prompt_products.h"

#include <algorithm>
#include <set>

#include "backends/cuda/prefill/prompt_rows.h"

namespace loopspec::cuda {

PromptProducts::PromptProducts(const DeviceModel& model, const PrefillSettings& settings,
                               bool hopper, int rows, int multiprocessors, cudaStream_t stream)
    : spec_(model.spec),
      hopper_(hopper),
      rows_(rows),
      launch_{multiprocessors, settings.gemm_width, settings.gemm_cluster, stream} {
  const bool qkv_sums = !QkvIsFused();
  std::set<WeightForm> forms;
  const auto add = [&](const DeviceMatrix& matrix) {
    if (!hopper_ || !matrix.there()) return;
    weights_[matrix.begin()] = DescribeWeights(matrix);
    forms.insert(matrix.form);
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
    for (const WeightForm form : forms) PrepareGemm(form);
  } else {
    portable_.emplace();
    widened_.emplace(model, stream);
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
    GemmSums(launch_, weights_.at(weights.begin()), inputs_.at(in), {first, rows}, out, outputs,
             ld);
    return;
  }
  const bf16* from = in + static_cast<size_t>(first) * weights.ld;
  if (!weights.packed()) {
    portable_->Run(weights, outputs, from, rows, out, ld, launch_.stream);
    return;
  }
  const int at_once = widened_->RowsAtOnce(weights);
  for (int begin = 0; begin < outputs; begin += at_once) {
    const DeviceMatrix part =
        widened_->Widen(weights, begin, std::min(at_once, weights.rows - begin));
    portable_->Run(part, std::min(at_once, outputs - begin), from, rows, out + begin, ld,
                   launch_.stream);
  }
}

void PromptProducts::Qkv(const DeviceLayer& layer, const bf16* in, int rows, float* sums,
                         const PromptBuffers& buffers, const PromptMemory& memory, int plane) {
  if (QkvIsFused()) {
    GemmQkv(launch_, weights_.at(layer.qkv.begin()), inputs_.at(in), {0, rows}, buffers, memory,
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
    GemmSwiGlu(launch_, weights_.at(layer.gate_up.begin()), inputs_.at(in), {0, rows},
               buffers.ff_in, buffers.ld_ff);
    return;
  }
  Sums(layer.gate_up, in, 0, rows, sums, layer.gate_up.rows, layer.gate_up.rows);
  FinishSwiGlu(sums, layer.gate_up.rows, buffers, rows, launch_.stream);
}

}  // namespace loopspec::cuda

// Tensors of IFM's looped models, by xLLM's names. Norms are stored less one.
#include <fmt/format.h>

#include <cmath>

#include "model/families/families.h"

namespace loopspec {
namespace {

TensorView TakeNorm(const std::string& name, int64_t size, WeightBinder& binder) {
  const TensorView stored = binder.Take(name, {size});
  std::vector<float> weight(static_cast<size_t>(size));
  for (size_t i = 0; i < weight.size(); ++i)
    weight[i] = 1.0f + LoadElement(stored.data, stored.dtype, static_cast<int64_t>(i));
  return binder.Own(std::move(weight));
}

// The experts' matrices lie one below the other.
void BindExperts(const ModelSpec& spec, const std::string& at, WeightBinder& binder,
                 BlockWeights& block) {
  const int64_t h = spec.hidden, f = spec.ff, n = spec.experts;
  block.mlp_norm_in = TakeNorm(at + "norm.weight", h, binder);
  block.router.parts = {binder.Take(at + "router.weight", {n, h})};
  block.active_experts = spec.active_experts;
  const TensorView gate = binder.Take(at + "experts.weight1", {n * f, h});
  const TensorView down = binder.Take(at + "experts.weight2", {n * h, f});
  const TensorView up = binder.Take(at + "experts.weight3", {n * f, h});
  for (int64_t e = 0; e < n; ++e) {
    ExpertWeights& expert = block.experts.emplace_back();
    expert.gate_up.parts = {gate.Rows(e * f, (e + 1) * f), up.Rows(e * f, (e + 1) * f)};
    expert.down.parts = {down.Rows(e * h, (e + 1) * h)};
  }
}

BlockWeights BindIfmBlock(const ModelSpec& spec, const std::string& at, WeightBinder& binder) {
  const int64_t h = spec.hidden, q = spec.q_size(), kv = spec.kv_size();
  BlockWeights block;
  block.attn_norm_in = TakeNorm(at + "attention.norm.weight", h, binder);
  block.qkv.parts = {binder.Take(at + "attention.wq.weight", {q, h}),
                     binder.Take(at + "attention.wk.weight", {kv, h}),
                     binder.Take(at + "attention.wv.weight", {kv, h})};
  block.attn_out.parts = {binder.Take(at + "attention.wo.weight", {h, q})};
  if (spec.experts > 0) {
    BindExperts(spec, at + "moe.", binder, block);
    return block;
  }
  block.mlp_norm_in = TakeNorm(at + "nffn.norm.weight", h, binder);
  block.gate_up.parts = {binder.Take(at + "nffn.fc1.weight", {spec.ff, h}),
                         binder.Take(at + "nffn.fc3.weight", {spec.ff, h})};
  block.down.parts = {binder.Take(at + "nffn.fc2.weight", {h, spec.ff})};
  return block;
}

// step = softplus(dt_bias), decay = exp(-step exp(A_log)).
void BindUpdate(const std::string& at, int64_t h, WeightBinder& binder, ModelWeights& weights) {
  weights.update.parts = {binder.Take(at + "input_adapter.weight", {h, h})};
  const TensorView log_a = binder.Take(at + "A_log", {h}), bias = binder.Take(at + "dt_bias", {h});
  std::vector<float> step, decay;
  for (int64_t i = 0; i < h; ++i) {
    const double b = LoadElement(bias.data, bias.dtype, i);
    const double dt = std::fmax(b, 0.0) + std::log1p(std::exp(-std::fabs(b)));
    const double a = std::exp(static_cast<double>(LoadElement(log_a.data, log_a.dtype, i)));
    step.push_back(static_cast<float>(dt));
    decay.push_back(static_cast<float>(std::exp(-dt * a)));
  }
  weights.step = binder.Own(std::move(step));
  weights.decay = binder.Own(std::move(decay));
}

}  // namespace

ModelWeights BindIfm(const ModelSpec& spec, WeightBinder& binder) {
  const int64_t h = spec.hidden;
  ModelWeights weights;
  weights.embedding = binder.Take("embed.weight", {spec.vocab, h});
  int layer = 0;
  const auto bind_stack = [&](int layers, std::vector<BlockWeights>& stack) {
    for (int i = 0; i < layers; ++i)
      stack.push_back(BindIfmBlock(spec, fmt::format("layers.{}.", layer++), binder));
  };
  bind_stack(spec.prelude_layers, weights.prelude);
  bind_stack(spec.core_layers, weights.core);
  bind_stack(spec.coda_layers, weights.coda);
  const bool looped = binder.Has("loop_input_injection_module.A_log");
  const std::string at = looped ? "loop_input_injection_module." : "input_injection.";
  if (spec.injects_update()) BindUpdate(at, h, binder, weights);
  if (spec.adapter()) {
    weights.adapter.parts = {binder.Take(at + "adapter.weight", {h, 2 * h})};
    if (spec.adapter_bias) weights.adapter.bias = binder.Take(at + "adapter.bias", {h});
  }
  if (spec.prelude_norm)
    weights.prelude_norm = TakeNorm("huginn_prelude_norm_module.weight", h, binder);
  // The norm after each recurrence has no weights.
  if (spec.loop_norm)
    weights.loop_norm = binder.Own(std::vector<float>(static_cast<size_t>(h), 1.0f));
  weights.final_norm = TakeNorm("output.final_norm.weight", h, binder);
  weights.head.parts = {binder.Take("output.output.weight", {spec.vocab, h})};
  return weights;
}

}  // namespace loopspec

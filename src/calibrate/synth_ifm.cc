// Synthetic twins of IFM's models. Norms are stored less one.
#include <fmt/format.h>

#include <cmath>

#include "base/json.h"
#include "calibrate/synth_twin.h"

namespace loopspec {
namespace {

// `branch`: size of a sublayer's contribution.
void Block(const TwinShape& s, const std::string& at, double branch, bool shifted,
           std::vector<TensorPlan>& out) {
  const int q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto last = [&](const char* name, int in) {
    TensorPlan plan = Matrix(at + name, s.hidden, in, branch * Unit(in));
    plan.has_shift = shifted;
    out.push_back(plan);
  };
  out.push_back(Constant(at + "attention.norm.weight", s.hidden, 0.0));
  out.push_back(Matrix(at + "attention.wq.weight", q, s.hidden, Unit(s.hidden)));
  out.push_back(Matrix(at + "attention.wk.weight", kv, s.hidden, Unit(s.hidden)));
  out.push_back(Matrix(at + "attention.wv.weight", kv, s.hidden, Unit(s.hidden)));
  last("attention.wo.weight", q);
  out.push_back(Constant(at + "nffn.norm.weight", s.hidden, 0.0));
  out.push_back(Matrix(at + "nffn.fc1.weight", s.ff, s.hidden, Unit(s.hidden)));
  out.push_back(Matrix(at + "nffn.fc3.weight", s.ff, s.hidden, Unit(s.hidden)));
  last("nffn.fc2.weight", s.ff);
}

}  // namespace

std::vector<TensorPlan> IfmTwinTensors(const TwinShape& s, double branch, double keep) {
  // The hashed state has variance 1 / hidden. e is made as large: what is left of that state is
  // what early depths differ by.
  const double size = s.injects() ? Unit(s.hidden) : 1.0;
  std::vector<TensorPlan> out = {Matrix("embed.weight", s.vocab, s.hidden, size)};
  int layer = 0;
  const auto stack = [&](int layers, double of_state, bool shifted) {
    for (int i = 0; i < layers; ++i)
      Block(s, fmt::format("layers.{}.", layer++), of_state * size, shifted, out);
  };
  stack(s.prelude, kPreludeBranch, false);
  // Where e is injected, as in Raven's twins.
  stack(s.core, s.injects() ? kCoreBranch : branch, !s.injects());
  stack(s.coda, kCodaBranch, false);
  if (s.injects()) {
    // A step of one, so that decay = exp(-exp(A_log)) and u = W e.
    TensorPlan update =
        Matrix("input_injection.input_adapter.weight", s.hidden, s.hidden, 0.01 * Unit(s.hidden));
    update.diagonal[0] = 1.0 - keep;
    out.push_back(Shifted(update));
    out.push_back(Constant("input_injection.A_log", s.hidden,
                           std::log(-std::log(std::max(keep, 1e-30))), true));
    out.push_back(Constant("input_injection.dt_bias", s.hidden, std::log(std::expm1(1.0))));
  }
  out.push_back(Constant("output.final_norm.weight", s.hidden, 0.0));
  out.push_back(
      Matrix("output.output.weight", s.vocab, s.hidden, kLogitDeviation * Unit(s.hidden)));
  return out;
}

OrderedJson IfmTwinConfig(const TwinShape& s) {
  OrderedJson m;
  m["arch"] = s.prelude > 0 ? "huginn" : "transformer";
  m["num_layers"] = s.prelude + s.core + s.coda;
  m["model_dim"] = s.hidden;
  m["num_heads"] = s.heads;
  m["num_kv_heads"] = s.kv_heads;
  m["head_dim"] = s.head_dim;
  m["ffn_hidden_dim"] = s.ff;
  m["vocab_size"] = s.vocab;
  m["rope_base"] = s.theta;
  m["rmsnorm_eps"] = s.eps;
  m["apply_rmsnorm"] = true;
  m["swiglu"] = true;
  m["loop_times"] = s.recurrence;
  if (s.prelude > 0) {
    m["huginn_prelude_layers"] = s.prelude;
    m["huginn_recurrent_layers"] = s.core;
    m["huginn_coda_layers"] = s.coda;
    m["huginn_state_init"] = s.injects() ? "normal" : "input";
    m["huginn_input_injection"] = s.injects() ? "diagonal" : "none";
  }
  if (s.prelude == 1) {  // Part II, trained at depths that were drawn
    m["huginn_depth_control"] = true;
    m["huginn_sampling_scheme"] = "poisson-lognormal-capped";
  }
  return {{"model", m}, {"tokenizer", {{"type", "huggingface"}, {"path", "tokenizer"}}}};
}

}  // namespace loopspec

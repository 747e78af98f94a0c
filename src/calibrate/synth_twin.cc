#include "calibrate/synth_twin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace loopspec {
namespace {

// Sizes of Raven's sublayers beside a state of size one. The prelude, which all depths share, mixes
// the context in; the recurrence must not, or its own wandering would hide the shift.
constexpr double kPreludeBranch = 0.5;
constexpr double kCoreBranch = 0.02;
constexpr double kCodaBranch = 0.1;
constexpr int kRavenFirstDraft = 2;  // the depth of the first drafts at R = 32

TensorPlan Matrix(std::string name, int64_t rows, int64_t cols, double deviation) {
  TensorPlan plan{std::move(name), {rows, cols}};
  plan.scale = deviation;
  return plan;
}

TensorPlan Norm(std::string name, int64_t size, double value, bool has_shift = false) {
  TensorPlan plan{std::move(name), {size}};
  plan.constant = value;
  plan.has_shift = has_shift;
  return plan;
}

double Unit(int in) {
  return 1.0 / std::sqrt(in);
}

}  // namespace

const std::vector<TwinShape>& TwinShapes() {
  static const std::vector<TwinShape> shapes = {
      {"ouro-1.4b", false, false, 0, 24, 0, 2048, 16, 16, 128, 5632, 49152, 4, 65536, 1e6, 1e-6},
      {"ouro-2.6b", false, false, 0, 48, 0, 2048, 16, 16, 128, 5632, 49152, 4, 65536, 1e6, 1e-6},
      {"raven-llama", true, false, 4, 6, 4, 2048, 32, 8, 64, 8192, 128256, 32, 131072, 5e5, 1e-5,
       true},
      {"raven-olmo", true, true, 4, 6, 4, 2048, 16, 16, 128, 8192, 100352, 32, 4096, 5e5, 1e-6},
      {"raven-tinyllama", true, false, 4, 8, 4, 2048, 32, 4, 64, 5632, 32000, 32, 2048, 1e4, 1e-5},
  };
  return shapes;
}

void TwinShape::SetWidth(int width) {
  const int per_kv_head = hidden / kv_heads;
  if (width <= 0 || width > hidden || width % per_kv_head != 0) {
    Fail("width is {}, expected a multiple of {} up to {} for {}", width, per_kv_head, hidden,
         name);
  }
  heads = heads * width / hidden;
  kv_heads = width / per_kv_head;
  ff = ff * (width / 64) / (hidden / 64);
  hidden = width;
}

double Twin::GuessShift(const TwinShape& shape, double agreement) {
  return (1.0 - agreement) / (0.56 * std::sqrt(2.0 * std::log(std::max(shape.vocab, 2))));
}

Twin::Twin(const TwinShape& shape, double shift) : s_(shape) {
  if (s_.raven) {
    // x <- a x + (1 - a) e shrinks the distance to its limit by a in each recurrence.
    keep_ = std::min(std::pow(shift, 1.0 / kRavenFirstDraft), 0.98);
  } else {
    // Each recurrence moves the state by branch sqrt(2 layers), about the same way every time:
    // three quarters of it adds up, as measured.
    branch_ = shift / 0.75 / (s_.recurrence - 1) / std::sqrt(2.0 * s_.core);
  }
}

std::vector<TensorPlan> Twin::Tensors() const {
  std::vector<TensorPlan> out;
  const std::string stem = s_.raven ? "transformer." : "model.";
  out.push_back(
      Matrix(stem + (s_.raven ? "wte.weight" : "embed_tokens.weight"), s_.vocab, s_.hidden, 1.0));
  if (s_.raven) {
    const auto stack = [&](const char* name, int layers, double branch) {
      for (int i = 0; i < layers; ++i)
        RavenBlock(fmt::format("{}{}.{}.", stem, name, i), branch, out);
    };
    stack("prelude", s_.prelude, kPreludeBranch);
    TensorPlan adapter =
        Matrix(stem + "adapter.weight", s_.hidden, 2 * s_.hidden, 0.01 * Unit(s_.hidden));
    adapter.diagonal[0] = keep_;
    adapter.diagonal[1] = 1.0 - keep_;
    adapter.has_shift = true;
    out.push_back(adapter);
    stack("core_block", s_.core, kCoreBranch);
    stack("coda", s_.coda, kCodaBranch);
    out.push_back(Norm(stem + "ln_f.weight", s_.hidden, 1.0));
  } else {
    for (int i = 0; i < s_.core; ++i) OuroBlock(fmt::format("{}layers.{}.", stem, i), out);
    out.push_back(Norm(stem + "norm.weight", s_.hidden, 1.0));
  }
  out.push_back(Matrix("lm_head.weight", s_.vocab, s_.hidden, 3.0 * Unit(s_.hidden)));
  return out;
}

OrderedJson Twin::Config() const {
  OrderedJson c;
  c["loopspec_synthetic"] = true;
  c["loopspec_note"] =
      "SYNTHETIC: random weights in the format and size of a released model, for timing. Its text "
      "means nothing.";
  c["torch_dtype"] = "bfloat16";
  c["vocab_size"] = s_.vocab;
  c["num_key_value_heads"] = s_.kv_heads;
  c["head_dim"] = s_.head_dim;
  c["intermediate_size"] = s_.ff;
  c["max_position_embeddings"] = s_.positions;
  c["rope_theta"] = s_.theta;
  if (s_.raven) {
    c["model_type"] = "huginn_raven";
    c["architectures"] = {"RavenForCausalLM"};
    c["auto_map"] = {
        {"AutoModelForCausalLM", s_.olmo ? "raven_modeling_minimal_olmo.RavenForCausalLM"
                                         : "raven_modeling_minimal_llama.RavenForCausalLM"}};
    c["n_embd"] = s_.hidden;
    c["n_heads"] = s_.heads;
    c["n_layers_in_prelude"] = s_.prelude;
    c["n_layers_in_recurrent_block"] = s_.core;
    c["n_layers_in_coda"] = s_.coda;
    c["mean_recurrence"] = s_.recurrence;
    c["padded_vocab_size"] = s_.vocab;
    c["norm_eps"] = s_.eps;
    c["tie_embeddings"] = false;
    c["bias"] = false;
    c["qk_bias"] = false;
    c["test_time_noise"] = 0;
    // As large as the embeddings: what is left of it is what early depths differ by.
    c["init_values"] = {{"std", 1.0}, {"embed_scale", 1.0}};
    if (s_.scaled_rope) {
      c["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", 32.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
    }
  } else {
    c["model_type"] = "ouro";
    c["architectures"] = {"OuroForCausalLM"};
    c["hidden_size"] = s_.hidden;
    c["num_attention_heads"] = s_.heads;
    c["num_hidden_layers"] = s_.core;
    c["total_ut_steps"] = s_.recurrence;
    c["rms_norm_eps"] = s_.eps;
    c["hidden_act"] = "silu";
    c["early_exit_threshold"] = 1.0;
    c["tie_word_embeddings"] = false;
    c["rope_scaling"] = nullptr;
    c["bos_token_id"] = 0;
    c["eos_token_id"] = 0;
  }
  return c;
}

void Twin::RavenBlock(const std::string& at, double branch, std::vector<TensorPlan>& out) const {
  const int q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
  // Norms after the sublayers set their size; where they come before, the matrix itself does.
  const double norm = s_.olmo ? branch : 1.0, matrix = s_.olmo ? 1.0 : branch;
  out.push_back(Norm(at + "norm_1.weight", s_.hidden, norm));
  out.push_back(Norm(at + "norm_2.weight", s_.hidden, norm));
  if (s_.olmo) {
    out.push_back(Norm(at + "attn.q_norm.weight", q, 1.0));
    out.push_back(Norm(at + "attn.k_norm.weight", kv, 1.0));
  }
  out.push_back(Matrix(at + "attn.Wqkv.weight", q + 2 * kv, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "attn.proj.weight", s_.hidden, q, matrix * Unit(q)));
  out.push_back(Matrix(at + "mlp.fc.weight", 2 * s_.ff, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "mlp.proj.weight", s_.hidden, s_.ff, matrix * Unit(s_.ff)));
}

void Twin::OuroBlock(const std::string& at, std::vector<TensorPlan>& out) const {
  const int q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
  out.push_back(Norm(at + "input_layernorm.weight", s_.hidden, 1.0));
  out.push_back(Norm(at + "input_layernorm_2.weight", s_.hidden, branch_, true));
  out.push_back(Norm(at + "post_attention_layernorm.weight", s_.hidden, 1.0));
  out.push_back(Norm(at + "post_attention_layernorm_2.weight", s_.hidden, branch_, true));
  out.push_back(Matrix(at + "self_attn.q_proj.weight", q, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "self_attn.k_proj.weight", kv, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "self_attn.v_proj.weight", kv, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "self_attn.o_proj.weight", s_.hidden, q, Unit(q)));
  out.push_back(Matrix(at + "mlp.gate_proj.weight", s_.ff, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "mlp.up_proj.weight", s_.ff, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "mlp.down_proj.weight", s_.hidden, s_.ff, Unit(s_.ff)));
}

}  // namespace loopspec

#include "calibrate/synth_twin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace loopspec {
namespace {

constexpr int kRavenFirstDraft = 2;   // the depth of the first drafts at R = 32
constexpr int kHuginnFirstDraft = 4;  // the same of Huginn
// Huginn's head is its embedding, so that a state that still points to its own token would choose
// that token at every depth. Each of P's sublayers leaves an eighth of what was there before.
constexpr double kHuginnPreludeBranch = 8.0;

}  // namespace

const std::vector<TwinShape>& TwinShapes() {
  using Family = TwinFamily;
  static const std::vector<TwinShape> shapes = {
      {"ouro-1.4b", Family::kOuro, 0, 24, 0, 2048, 16, 16, 128, 5632, 49152, 4, 65536, 1e6, 1e-6},
      {"ouro-2.6b", Family::kOuro, 0, 48, 0, 2048, 16, 16, 128, 5632, 49152, 4, 65536, 1e6, 1e-6},
      {"nanbeige4.2-3b", Family::kNanbeige, 0, 22, 0, 3072, 48, 8, 128, 10752, 166144, 2, 262144,
       7e7, 1e-5},
      {"raven-llama", Family::kRavenLlama, 4, 6, 4, 2048, 32, 8, 64, 8192, 128256, 32, 131072, 5e5,
       1e-5, true},
      {"raven-olmo", Family::kRavenOlmo, 4, 6, 4, 2048, 16, 16, 128, 8192, 100352, 32, 4096, 5e5,
       1e-6},
      {"raven-tinyllama", Family::kRavenLlama, 4, 8, 4, 2048, 32, 4, 64, 5632, 32000, 32, 2048, 1e4,
       1e-5},
      {"huginn-0125", Family::kHuginn, 2, 4, 2, 5280, 55, 55, 96, 17920, 65536, 32, 4096, 5e4,
       1e-6},
      {"ifm-p1-ouro", Family::kIfm, 0, 28, 0, 1536, 24, 6, 64, 4352, 250624, 4, 8192, 1e6, 1e-6},
      {"ifm-p1-middle", Family::kIfm, 8, 12, 8, 1536, 24, 6, 64, 4352, 250624, 8, 8192, 1e6, 1e-6},
      {"ifm-p1-huginn", Family::kIfmHuginn, 8, 12, 8, 1536, 24, 6, 64, 4352, 250624, 8, 8192, 1e6,
       1e-6},
      {"ifm-p2-s", Family::kIfmHuginn, 1, 2, 1, 1536, 24, 6, 64, 4352, 64256, 5, 8192, 1e6, 1e-6},
      {"ifm-p2-m", Family::kIfmHuginn, 1, 2, 1, 3072, 48, 12, 64, 8704, 64256, 5, 8192, 1e6, 1e-6},
      {"ifm-p2-l", Family::kIfmHuginn, 1, 2, 1, 6144, 96, 24, 64, 17408, 64256, 5, 8192, 1e6, 1e-6},
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
  if (s_.raven() || s_.injects()) {
    // x <- a x + (1 - a) e shrinks the distance to its limit by a in each recurrence.
    const int first = s_.injects() ? 1 : s_.huginn() ? kHuginnFirstDraft : kRavenFirstDraft;
    keep_ = std::min(std::pow(shift, 1.0 / first), 0.98);
  } else {
    // Each recurrence moves the state by branch sqrt(2 layers), about the same way every time:
    // three quarters of it adds up, as measured.
    branch_ = shift / 0.75 / (s_.recurrence - 1) / std::sqrt(2.0 * s_.core);
  }
}

std::vector<TensorPlan> Twin::Tensors() const {
  if (s_.ifm()) return IfmTwinTensors(s_, branch_, keep_);
  std::vector<TensorPlan> out;
  const std::string stem = s_.raven() ? "transformer." : "model.";
  out.push_back(Matrix(stem + (s_.raven() ? "wte.weight" : "embed_tokens.weight"), s_.vocab,
                       s_.hidden, s_.huginn() ? kLogitDeviation * Unit(s_.hidden) : 1.0));
  if (s_.raven()) {
    const auto stack = [&](const char* name, int layers, double branch) {
      for (int i = 0; i < layers; ++i)
        RavenBlock(fmt::format("{}{}.{}.", stem, name, i), branch, out);
    };
    stack("prelude", s_.prelude, s_.huginn() ? kHuginnPreludeBranch : kPreludeBranch);
    TensorPlan adapter =
        Matrix(stem + "adapter.weight", s_.hidden, 2 * s_.hidden, 0.01 * Unit(s_.hidden));
    adapter.diagonal[0] = keep_;
    adapter.diagonal[1] = 1.0 - keep_;
    out.push_back(Shifted(adapter));
    stack("core_block", s_.core, kCoreBranch);
    stack("coda", s_.coda, kCodaBranch);
    out.push_back(Constant(stem + "ln_f.weight", s_.hidden, 1.0));
  } else {
    for (int i = 0; i < s_.core; ++i) OuroBlock(fmt::format("{}layers.{}.", stem, i), out);
    out.push_back(Constant(stem + "norm.weight", s_.hidden, 1.0));
  }
  if (!s_.huginn())
    out.push_back(Matrix("lm_head.weight", s_.vocab, s_.hidden, kLogitDeviation * Unit(s_.hidden)));
  return out;
}

OrderedJson Twin::Config() const {
  OrderedJson c;
  c["loopspec_synthetic"] = true;
  c["loopspec_note"] =
      "SYNTHETIC: random weights in the format and size of a released model, for timing. Its text "
      "means nothing.";
  if (s_.ifm()) {
    c.update(IfmTwinConfig(s_));
    return c;
  }
  c["torch_dtype"] = "bfloat16";
  c["vocab_size"] = s_.vocab;
  c["num_key_value_heads"] = s_.kv_heads;
  c["head_dim"] = s_.head_dim;
  c["intermediate_size"] = s_.ff;
  c[s_.huginn() ? "block_size" : "max_position_embeddings"] = s_.positions;
  c[s_.huginn() ? "rope_base" : "rope_theta"] = s_.theta;
  if (s_.raven()) {
    RavenConfig(c);
  } else {
    OuroConfig(c);
  }
  return c;
}

void Twin::RavenConfig(OrderedJson& c) const {
  c["model_type"] = "huginn_raven";
  c["architectures"] = {"RavenForCausalLM"};
  const char* layout = s_.olmo() ? "_olmo" : s_.huginn() ? "" : "_llama";
  c["auto_map"] = {
      {"AutoModelForCausalLM", fmt::format("raven_modeling_minimal{}.RavenForCausalLM", layout)}};
  c["n_embd"] = s_.hidden;
  c["n_heads"] = s_.heads;
  c["n_layers_in_prelude"] = s_.prelude;
  c["n_layers_in_recurrent_block"] = s_.core;
  c["n_layers_in_coda"] = s_.coda;
  c["mean_recurrence"] = s_.recurrence;
  c["padded_vocab_size"] = s_.vocab;
  c["norm_eps"] = s_.eps;
  c["tie_embeddings"] = s_.huginn();
  c["bias"] = false;
  c["qk_bias"] = s_.huginn();
  c["test_time_noise"] = 0;
  // As large as P's output: what is left of it is what early depths differ by. Huginn multiplies it
  // by the root of its width.
  const double scale = s_.huginn() ? std::sqrt(static_cast<double>(s_.hidden)) : 1.0;
  c["init_values"] = {{"std", 1.0 / scale}, {"embed_scale", scale}};
  if (s_.scaled_rope) {
    c["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", 32.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
  }
}

void Twin::OuroConfig(OrderedJson& c) const {
  const bool ouro = s_.family == TwinFamily::kOuro;
  c["model_type"] = ouro ? "ouro" : "nanbeige";
  c["architectures"] = {ouro ? "OuroForCausalLM" : "NanbeigeForCausalLM"};
  c["hidden_size"] = s_.hidden;
  c["num_attention_heads"] = s_.heads;
  c["num_hidden_layers"] = s_.core;
  c["rms_norm_eps"] = s_.eps;
  c["hidden_act"] = "silu";
  c["tie_word_embeddings"] = false;
  c["rope_scaling"] = nullptr;
  c["bos_token_id"] = 0;
  c["eos_token_id"] = 0;
  if (ouro) {
    c["total_ut_steps"] = s_.recurrence;
    c["early_exit_threshold"] = 1.0;
  } else {
    c["num_loops"] = s_.recurrence;
    c["loop_loss_weights"] = OrderedJson::array();
    c["skip_loop_final_norm"] = false;
  }
}

void Twin::RavenBlock(const std::string& at, double branch, std::vector<TensorPlan>& out) const {
  const int q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
  // Norms after the sublayers set their size; where they come before, the matrix itself does.
  const double norm = s_.olmo() ? branch : 1.0, matrix = s_.olmo() ? 1.0 : branch;
  for (int i = 1; i <= (s_.huginn() ? 4 : 2); ++i)
    out.push_back(Constant(fmt::format("{}norm_{}.weight", at, i), s_.hidden, norm));
  if (s_.olmo()) {
    out.push_back(Constant(at + "attn.q_norm.weight", q, 1.0));
    out.push_back(Constant(at + "attn.k_norm.weight", kv, 1.0));
  }
  if (s_.huginn()) {
    TensorPlan bias{at + "attn.qk_bias", {2, 1, s_.heads, s_.head_dim}};
    bias.scale = 0.1;
    out.push_back(bias);
  }
  out.push_back(Matrix(at + "attn.Wqkv.weight", q + 2 * kv, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "attn.proj.weight", s_.hidden, q, matrix * Unit(q)));
  out.push_back(Matrix(at + "mlp.fc.weight", 2 * s_.ff, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "mlp.proj.weight", s_.hidden, s_.ff, matrix * Unit(s_.ff)));
}

// Ouro's norms after the sublayers set their size; Nanbeige has none, and their last matrices do.
void Twin::OuroBlock(const std::string& at, std::vector<TensorPlan>& out) const {
  const int q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
  const bool ouro = s_.family == TwinFamily::kOuro;
  const auto last = [&](const char* name, int in) {
    const TensorPlan plan = Matrix(at + name, s_.hidden, in, (ouro ? 1.0 : branch_) * Unit(in));
    out.push_back(ouro ? plan : Shifted(plan));
  };
  out.push_back(Constant(at + "input_layernorm.weight", s_.hidden, 1.0));
  if (ouro) out.push_back(Constant(at + "input_layernorm_2.weight", s_.hidden, branch_, true));
  out.push_back(Constant(at + "post_attention_layernorm.weight", s_.hidden, 1.0));
  if (ouro)
    out.push_back(Constant(at + "post_attention_layernorm_2.weight", s_.hidden, branch_, true));
  out.push_back(Matrix(at + "self_attn.q_proj.weight", q, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "self_attn.k_proj.weight", kv, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "self_attn.v_proj.weight", kv, s_.hidden, Unit(s_.hidden)));
  last("self_attn.o_proj.weight", q);
  out.push_back(Matrix(at + "mlp.gate_proj.weight", s_.ff, s_.hidden, Unit(s_.hidden)));
  out.push_back(Matrix(at + "mlp.up_proj.weight", s_.ff, s_.hidden, Unit(s_.hidden)));
  last("mlp.down_proj.weight", s_.ff);
}

}  // namespace loopspec

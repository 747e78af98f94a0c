// Raven / retrofitted recurrence (model_type "huginn_raven"): P and C have blocks of their own, B
// starts with an adapter. Layouts: llama (norms before the sublayers) and olmo (norms after them,
// and RMSNorm on q and k) here, Huginn-0125's in huginn.cc.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

void RefuseUnsupportedRaven(const ConfigReader& config) {
  if (config.NumberOr("test_time_noise", 0.0) != 0.0) {
    Fail("{}: test_time_noise is {}, only 0 is supported", config.what(),
         config.NumberOr("test_time_noise", 0.0));
  }
  if (config.Has("initial_state_mode") && config.String("initial_state_mode") != "random") {
    Fail("{}: initial_state_mode is {}, only random is supported", config.what(),
         config.String("initial_state_mode"));
  }
  if (config.Has("injection_type") && config.String("injection_type") != "linear") {
    Fail("{}: injection_type is {}, only linear is supported", config.what(),
         config.String("injection_type"));
  }
  if (config.Has("nonlin_name") && config.String("nonlin_name") != "SiLU") {
    Fail("{}: nonlin_name is {}, only SiLU is supported", config.what(),
         config.String("nonlin_name"));
  }
  if (config.Has("sliding_window"))
    Fail("{}: sliding_window is set, which is not supported", config.what());
}

// The name of the modelling file, or nothing.
std::string ModellingFile(const ConfigReader& config) {
  const Json* map = config.Find("auto_map");
  if (map == nullptr || !map->is_object()) return "";
  const auto it = map->find("AutoModelForCausalLM");
  return it != map->end() && it->is_string() ? it->get<std::string>() : "";
}

bool Contains(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

BlockWeights BindRavenBlock(const ModelSpec& spec, const std::string& at, WeightBinder& binder) {
  const int64_t h = spec.hidden;
  BlockWeights block;
  const bool pre = spec.norms == NormPlacement::kPre;
  (pre ? block.attn_norm_in : block.attn_norm_out) = binder.Take(at + "norm_1.weight", {h});
  (pre ? block.mlp_norm_in : block.mlp_norm_out) = binder.Take(at + "norm_2.weight", {h});
  if (spec.qk_norm) {
    block.q_norm = binder.Take(at + "attn.q_norm.weight", {spec.q_size()});
    block.k_norm = binder.Take(at + "attn.k_norm.weight", {spec.kv_size()});
  }
  block.qkv.parts = {binder.Take(at + "attn.Wqkv.weight", {spec.q_size() + 2 * spec.kv_size(), h})};
  block.attn_out.parts = {binder.Take(at + "attn.proj.weight", {h, spec.q_size()})};
  block.gate_up.parts = {binder.Take(at + "mlp.fc.weight", {2 * int64_t{spec.ff}, h})};
  block.down.parts = {binder.Take(at + "mlp.proj.weight", {h, spec.ff})};
  return block;
}

}  // namespace

bool IsHuginn(const ConfigReader& config) {
  const std::string file = ModellingFile(config);
  if (file.empty()) return config.BoolOr("qk_bias", false);
  return !Contains(file, "llama") && !Contains(file, "olmo");
}

ModelSpec ReadRavenKeys(const ConfigReader& config) {
  RefuseUnsupportedRaven(config);
  ModelSpec spec;
  spec.family = "raven";
  spec.hidden = config.Int("n_embd", 1, kMaxWidth);
  spec.heads = config.Int("n_heads", 1, kMaxWidth);
  spec.kv_heads = config.IntOr("num_key_value_heads", 1, kMaxWidth, spec.heads);
  spec.head_dim = config.HeadDim(spec.hidden, spec.heads);
  spec.ff = config.Int("intermediate_size", 1, kMaxWidth);
  spec.vocab = config.Int(config.Has("padded_vocab_size") ? "padded_vocab_size" : "vocab_size", 1,
                          kMaxVocab);
  spec.max_positions =
      config.Int(config.Has("max_position_embeddings") ? "max_position_embeddings" : "block_size",
                 1, kMaxPositions);
  spec.prelude_layers = config.Int("n_layers_in_prelude", 0, kMaxLayers);
  spec.core_layers = config.Int("n_layers_in_recurrent_block", 1, kMaxLayers);
  spec.coda_layers = config.Int("n_layers_in_coda", 0, kMaxLayers);
  spec.recurrence = config.Int("mean_recurrence", 1, kMaxRecurrence);
  spec.final_norm = true;
  spec.injection = Injection::kLinear;
  spec.start = StateStart::kNormal;
  spec.adapter_bias = config.BoolOr("bias", false);
  spec.tied_head = config.BoolOr("tie_embeddings", false);
  spec.norm_eps = config.Number("norm_eps");
  spec.rope = config.Rope("rope_base");
  if (const Json* init = config.Find("init_values"); init != nullptr) {
    if (!init->is_object()) Fail("{}: init_values is no object", config.what());
    const ConfigReader inner(*init, config.what() + ": init_values");
    spec.embed_scale = inner.NumberOr("embed_scale", 1.0);
    spec.state_std = inner.NumberOr("std", 0.0);
    if (spec.state_std < 0)
      Fail("{}: init_values: std is {}, expected 0 or more", config.what(), spec.state_std);
  }
  return spec;
}

ModelSpec ReadRavenSpec(const ConfigReader& config) {
  if (config.BoolOr("qk_bias", false))
    Fail("{}: qk_bias is true, which is not supported in this layout", config.what());
  ModelSpec spec = ReadRavenKeys(config);
  spec.qk_norm = Contains(ModellingFile(config), "olmo");
  spec.norms = spec.qk_norm ? NormPlacement::kPost : NormPlacement::kPre;
  return spec;
}

ModelWeights BindRavenParts(const ModelSpec& spec, BlockBinder bind_block, WeightBinder& binder) {
  const int64_t h = spec.hidden;
  ModelWeights weights;
  weights.embedding = binder.Take("transformer.wte.weight", {spec.vocab, h});
  const auto bind_stack = [&](const char* name, int layers, std::vector<BlockWeights>& stack) {
    for (int i = 0; i < layers; ++i) {
      stack.push_back(bind_block(spec, fmt::format("transformer.{}.{}.", name, i), binder));
    }
  };
  bind_stack("prelude", spec.prelude_layers, weights.prelude);
  bind_stack("core_block", spec.core_layers, weights.core);
  bind_stack("coda", spec.coda_layers, weights.coda);
  weights.adapter.parts = {binder.Take("transformer.adapter.weight", {h, 2 * h})};
  if (spec.adapter_bias) weights.adapter.bias = binder.Take("transformer.adapter.bias", {h});
  weights.final_norm = binder.Take("transformer.ln_f.weight", {h});
  binder.TakeHead("lm_head.weight", weights);
  return weights;
}

ModelWeights BindRaven(const ModelSpec& spec, WeightBinder& binder) {
  return BindRavenParts(spec, BindRavenBlock, binder);
}

}  // namespace loopspec

// Ouro (model_type "ouro"): P is the embedding, B all layers and model.norm, C the head alone.
#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

void RefuseUnsupportedOuro(const ConfigReader& config) {
  if (config.BoolOr("use_sliding_window", false)) {
    Fail("{}: use_sliding_window is true, which is not supported", config.what());
  }
  if (const Json* types = config.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) Fail("{}: layer_types is no list", config.what());
    for (const Json& type : *types) {
      if (!type.is_string()) Fail("{}: layer_types has an entry that is no string", config.what());
      if (type.get<std::string>() != "full_attention") {
        Fail("{}: layer_types has {:.60}, only full_attention is supported", config.what(),
             type.get<std::string>());
      }
    }
  }
  if (config.NumberOr("early_exit_threshold", 1.0) < 1.0) {
    Fail(
        "{}: early_exit_threshold is {}, but decoding runs at fixed depth (override it with --set "
        "early_exit_threshold=1)",
        config.what(), config.NumberOr("early_exit_threshold", 1.0));
  }
  if (config.Has("early_exit_step")) {
    Fail(
        "{}: early_exit_step is set, but decoding runs at fixed depth (override it with --set "
        "early_exit_step=null)",
        config.what());
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.BoolOr(key, false))
      Fail("{}: {} is true, which is not supported", config.what(), key);
  }
  if (config.Has("hidden_act") && config.String("hidden_act") != "silu") {
    Fail("{}: hidden_act is {}, only silu is supported", config.what(),
         config.String("hidden_act"));
  }
}

}  // namespace

ModelSpec ReadOuroSpec(const ConfigReader& config) {
  RefuseUnsupportedOuro(config);
  ModelSpec spec;
  spec.family = "ouro";
  spec.hidden = config.Int("hidden_size", 1, kMaxWidth);
  spec.heads = config.Int("num_attention_heads", 1, kMaxWidth);
  spec.kv_heads = config.IntOr("num_key_value_heads", 1, kMaxWidth, spec.heads);
  spec.head_dim = config.HeadDim(spec.hidden, spec.heads);
  spec.ff = config.Int("intermediate_size", 1, kMaxWidth);
  spec.vocab = config.Int("vocab_size", 1, kMaxVocab);
  spec.max_positions = config.Int("max_position_embeddings", 1, kMaxPositions);
  spec.core_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  spec.recurrence = config.Int("total_ut_steps", 1, kMaxRecurrence);
  spec.norms = NormPlacement::kSandwich;
  spec.loop_norm = true;
  spec.tied_head = config.BoolOr("tie_word_embeddings", false);
  spec.norm_eps = config.Number("rms_norm_eps");
  spec.rope = config.Rope();
  return spec;
}

ModelWeights BindOuro(const ModelSpec& spec, WeightBinder& binder) {
  const int64_t h = spec.hidden;
  ModelWeights weights;
  weights.embedding = binder.Take("model.embed_tokens.weight", {spec.vocab, h});
  for (int i = 0; i < spec.core_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    BlockWeights block;
    block.attn_norm_in = binder.Take(at + "input_layernorm.weight", {h});
    block.attn_norm_out = binder.Take(at + "input_layernorm_2.weight", {h});
    block.mlp_norm_in = binder.Take(at + "post_attention_layernorm.weight", {h});
    block.mlp_norm_out = binder.Take(at + "post_attention_layernorm_2.weight", {h});
    block.qkv.parts = {binder.Take(at + "self_attn.q_proj.weight", {spec.q_size(), h}),
                       binder.Take(at + "self_attn.k_proj.weight", {spec.kv_size(), h}),
                       binder.Take(at + "self_attn.v_proj.weight", {spec.kv_size(), h})};
    block.attn_out.parts = {binder.Take(at + "self_attn.o_proj.weight", {h, spec.q_size()})};
    block.gate_up.parts = {binder.Take(at + "mlp.gate_proj.weight", {spec.ff, h}),
                           binder.Take(at + "mlp.up_proj.weight", {spec.ff, h})};
    block.down.parts = {binder.Take(at + "mlp.down_proj.weight", {h, spec.ff})};
    weights.core.push_back(std::move(block));
  }
  weights.loop_norm = binder.Take("model.norm.weight", {h});
  // Trained for adaptive exits; fixed-depth decoding has no use for it.
  binder.Ignore("model.early_exit_gate.weight");
  binder.Ignore("model.early_exit_gate.bias");
  binder.TakeHead("lm_head.weight", weights);
  return weights;
}

}  // namespace loopspec

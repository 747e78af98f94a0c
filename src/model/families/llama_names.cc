// Ouro and Nanbeige4.2 name their config's keys and their tensors as Llama does.
#include <fmt/format.h>

#include <string>

#include "model/families/families.h"

namespace loopspec {

ModelSpec ReadLlamaKeys(const ConfigReader& config) {
  ModelSpec spec;
  spec.hidden = config.Int("hidden_size", 1, kMaxWidth);
  spec.heads = config.Int("num_attention_heads", 1, kMaxWidth);
  spec.kv_heads = config.IntOr("num_key_value_heads", 1, kMaxWidth, spec.heads);
  spec.head_dim = config.HeadDim(spec.hidden, spec.heads);
  spec.ff = config.Int("intermediate_size", 1, kMaxWidth);
  spec.vocab = config.Int("vocab_size", 1, kMaxVocab);
  spec.max_positions = config.Int("max_position_embeddings", 1, kMaxPositions);
  spec.core_layers = config.Int("num_hidden_layers", 1, kMaxLayers);
  spec.tied_head = config.BoolOr("tie_word_embeddings", false);
  spec.norm_eps = config.Number("rms_norm_eps");
  spec.rope = config.Rope();
  return spec;
}

ModelWeights BindLlamaNames(const ModelSpec& spec, WeightBinder& binder) {
  const int64_t h = spec.hidden;
  ModelWeights weights;
  weights.embedding = binder.Take("model.embed_tokens.weight", {spec.vocab, h});
  for (int i = 0; i < spec.core_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    BlockWeights block;
    block.attn_norm_in = binder.Take(at + "input_layernorm.weight", {h});
    block.mlp_norm_in = binder.Take(at + "post_attention_layernorm.weight", {h});
    if (spec.norms == NormPlacement::kSandwich) {
      block.attn_norm_out = binder.Take(at + "input_layernorm_2.weight", {h});
      block.mlp_norm_out = binder.Take(at + "post_attention_layernorm_2.weight", {h});
    }
    block.qkv.parts = {binder.Take(at + "self_attn.q_proj.weight", {spec.q_size(), h}),
                       binder.Take(at + "self_attn.k_proj.weight", {spec.kv_size(), h}),
                       binder.Take(at + "self_attn.v_proj.weight", {spec.kv_size(), h})};
    block.attn_out.parts = {binder.Take(at + "self_attn.o_proj.weight", {h, spec.q_size()})};
    block.gate_up.parts = {binder.Take(at + "mlp.gate_proj.weight", {spec.ff, h}),
                           binder.Take(at + "mlp.up_proj.weight", {spec.ff, h})};
    block.down.parts = {binder.Take(at + "mlp.down_proj.weight", {h, spec.ff})};
    // Tables that old files carry.
    binder.Ignore(at + "self_attn.rotary_emb.inv_freq");
    weights.core.push_back(std::move(block));
  }
  (spec.loop_norm ? weights.loop_norm : weights.final_norm) = binder.Take("model.norm.weight", {h});
  binder.TakeHead("lm_head.weight", weights);
  return weights;
}

}  // namespace loopspec

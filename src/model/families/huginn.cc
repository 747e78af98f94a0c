// Huginn-0125 (model_type "huginn_raven", the original Raven): as Raven, but blocks normalise the
// residual sums too, q and k have biases, the rotary embedding pairs neighbours, and ln_f comes
// before the coda as well as after it.
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

BlockWeights BindHuginnBlock(const ModelSpec& spec, const std::string& at, WeightBinder& binder) {
  const int64_t h = spec.hidden;
  BlockWeights block;
  block.attn_norm_in = binder.Take(at + "norm_1.weight", {h});
  block.attn_norm_out = binder.Take(at + "norm_2.weight", {h});
  block.mlp_norm_in = binder.Take(at + "norm_3.weight", {h});
  block.mlp_norm_out = binder.Take(at + "norm_4.weight", {h});
  if (spec.qk_bias)
    block.qk_bias = binder.Take(at + "attn.qk_bias", {2, 1, spec.heads, spec.head_dim});
  block.qkv.parts = {binder.Take(at + "attn.Wqkv.weight", {spec.q_size() + 2 * spec.kv_size(), h})};
  block.attn_out.parts = {binder.Take(at + "attn.proj.weight", {h, spec.q_size()})};
  block.gate_up.parts = {binder.Take(at + "mlp.fc.weight", {2 * int64_t{spec.ff}, h})};
  block.down.parts = {binder.Take(at + "mlp.proj.weight", {h, spec.ff})};
  return block;
}

}  // namespace

void SetHuginnLayout(ModelSpec& spec, bool qk_bias, const std::string& what) {
  spec.family = "huginn";
  spec.norms = NormPlacement::kAfterSum;
  spec.coda_norm = true;
  spec.qk_bias = qk_bias;
  spec.rope.interleaved = true;
  // The released code takes the root of the width, whatever init_values says.
  spec.embed_scale = std::sqrt(static_cast<double>(spec.hidden));
  spec.rounds_to_bf16 = true;
  spec.draft_depths = {4, 16};
  if (spec.coda_layers == 0) Fail("{}: n_layers_in_coda is 0, expected at least 1", what);
  if (spec.kv_heads != spec.heads) {
    Fail("{}: num_key_value_heads is {}, but a Huginn model has as many as query heads ({})", what,
         spec.kv_heads, spec.heads);
  }
  if (spec.adapter_bias) Fail("{}: bias is true, which is not supported", what);
}

ModelSpec ReadHuginnSpec(const ConfigReader& config) {
  ModelSpec spec = ReadRavenKeys(config);
  SetHuginnLayout(spec, config.BoolOr("qk_bias", false), config.what());
  return spec;
}

ModelWeights BindHuginn(const ModelSpec& spec, WeightBinder& binder) {
  ModelWeights weights = BindRavenParts(spec, BindHuginnBlock, binder);
  binder.Ignore("freqs_cis");  // a table of cosines and sines
  return weights;
}

}  // namespace loopspec

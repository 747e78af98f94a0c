// Nanbeige4.2 (model_type "nanbeige"): P is the embedding, B all layers (norms before the
// sublayers) and model.norm, C the head. With skip_loop_final_norm the norm is C's instead.
#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

// Neither null nor false, 0 or empty.
bool IsSet(const Json* value) {
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0.0;
  if (value->is_string()) return !value->get_ref<const std::string&>().empty();
  return !value->empty();
}

void RefuseUnsupportedNanbeige(const ConfigReader& config) {
  // Keys of later models of the family, for which the code is out and no weights are.
  std::vector<std::string> refused = {"attention_bias",    "mlp_bias",
                                      "qk_layernorm",      "enable_double_loop_split",
                                      "loop_share_kv",     "enable_hyper_connection",
                                      "enable_mhc",        "enable_depth_attention",
                                      "emb_neighbor_num",  "insert_ngram_layer_idx",
                                      "use_sliding_window"};
  for (const std::string& key : config.KeysStartingWith("ngram_")) refused.push_back(key);
  for (const std::string& key : refused) {
    if (const Json* value = config.Find(key); IsSet(value)) {
      Fail("{}: {} is {:.60}, which is not supported", config.what(), key, value->dump());
    }
  }
  if (config.Has("hidden_act") && config.String("hidden_act") != "silu") {
    Fail("{}: hidden_act is {:.60}, only silu is supported", config.what(),
         config.String("hidden_act"));
  }
}

// num_loops, unless there are losses for the loops before the last.
int Loops(const ConfigReader& config) {
  const Json* weights = config.Find("loop_loss_weights");
  if (weights == nullptr) return config.Int("num_loops", 1, kMaxRecurrence);
  if (!weights->is_array()) Fail("{}: loop_loss_weights is no list", config.what());
  if (weights->empty()) return config.Int("num_loops", 1, kMaxRecurrence);
  if (weights->size() >= static_cast<size_t>(kMaxRecurrence)) {
    Fail("{}: loop_loss_weights has {} entries, expected fewer than {}", config.what(),
         weights->size(), kMaxRecurrence);
  }
  return static_cast<int>(weights->size()) + 1;
}

}  // namespace

ModelSpec ReadNanbeigeSpec(const ConfigReader& config) {
  RefuseUnsupportedNanbeige(config);
  ModelSpec spec = ReadLlamaKeys(config);
  spec.family = "nanbeige";
  spec.recurrence = Loops(config);
  spec.norms = NormPlacement::kPre;
  spec.final_norm = config.BoolOr("skip_loop_final_norm", false);
  spec.loop_norm = !spec.final_norm;
  // Without a loss at the loops before the last, what they read out is no text (GSM8K: 0 of 30).
  if (!IsSet(config.Find("loop_loss_weights"))) spec.draft_depths.emplace();
  return spec;
}

ModelWeights BindNanbeige(const ModelSpec& spec, WeightBinder& binder) {
  return BindLlamaNames(spec, binder);
}

}  // namespace loopspec

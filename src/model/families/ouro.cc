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
        "{}: early_exit_threshold is {}, expected 1, since decoding runs at fixed depth (an "
        "override of "
        "the config sets it)",
        config.what(), config.NumberOr("early_exit_threshold", 1.0));
  }
  if (config.Has("early_exit_step")) {
    Fail(
        "{}: early_exit_step is set, expected null, since decoding runs at fixed depth (an "
        "override of "
        "the config sets it)",
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
  ModelSpec spec = ReadLlamaKeys(config);
  spec.family = "ouro";
  spec.recurrence = config.Int("total_ut_steps", 1, kMaxRecurrence);
  spec.norms = NormPlacement::kSandwich;
  spec.loop_norm = true;
  return spec;
}

ModelWeights BindOuro(const ModelSpec& spec, WeightBinder& binder) {
  // Trained for adaptive exits; fixed-depth decoding has no use for it.
  binder.Ignore("model.early_exit_gate.weight");
  binder.Ignore("model.early_exit_gate.bias");
  return BindLlamaNames(spec, binder);
}

}  // namespace loopspec

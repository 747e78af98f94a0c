#include "model/model.h"

#include "model/families/families.h"
#include "model/gguf_model.h"

namespace loopspec {

Model Model::Load(const std::filesystem::path& folder, const ConfigOverrides& overrides,
                  int recurrence) {
  Model model;
  Quantization quantization = Quantization::kNone;
  if (IsGguf(folder)) {
    GgufModel file = OpenGguf(folder);
    model.spec = ParseModelSpec(file.config, folder.string(), overrides, recurrence);
    model.checkpoint = std::move(file.checkpoint);
  } else {
    model.spec = ReadModelSpec(folder, overrides, recurrence);
    quantization = ReadQuantization(folder);
    model.checkpoint = Checkpoint::Open(folder);
  }
  // A folder of model_type huginn_raven whose config does not name the modelling file shows its
  // layout by its tensors.
  const auto has = [&](const char* name) {
    return model.checkpoint.tensors().contains(std::string("transformer.core_block.0.") + name);
  };
  if (model.spec.family == "raven" && has("norm_3.weight")) {
    SetHuginnLayout(model.spec, has("attn.qk_bias"), (folder / "config.json").string());
  } else if (model.spec.family == "raven" && has("attn.q_norm.weight")) {
    model.spec.qk_norm = true;
    model.spec.norms = NormPlacement::kPost;
  }
  model.weights = BindWeights(model.spec, model.checkpoint, quantization);
  model.spec.weight_type = model.weights.core[0].qkv.parts[0].type_name();
  return model;
}

}  // namespace loopspec

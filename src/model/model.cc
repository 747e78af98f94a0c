#include "model/model.h"

namespace loopspec {

Model Model::Load(const std::filesystem::path& folder, const ConfigOverrides& overrides,
                  int recurrence) {
  Model model;
  model.spec = ReadModelSpec(folder, overrides, recurrence);
  model.checkpoint = Checkpoint::Open(folder);
  // A Raven folder whose config does not name the modelling file shows its layout by its tensors.
  if (model.spec.family == "raven" &&
      model.checkpoint.tensors().contains("transformer.core_block.0.attn.q_norm.weight")) {
    model.spec.qk_norm = true;
    model.spec.norms = NormPlacement::kPost;
  }
  model.weights = BindWeights(model.spec, model.checkpoint);
  return model;
}

}  // namespace loopspec

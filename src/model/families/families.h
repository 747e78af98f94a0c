// The model families, two functions each: one reads config.json into a ModelSpec and says what it
// cannot run; one gives the checkpoint's tensors their roles.
#pragma once

#include <string>

#include "model/config_reader.h"
#include "model/weight_binder.h"

namespace loopspec {

ModelSpec ReadOuroSpec(const ConfigReader& config);
ModelWeights BindOuro(const ModelSpec& spec, WeightBinder& binder);

ModelSpec ReadNanbeigeSpec(const ConfigReader& config);
ModelWeights BindNanbeige(const ModelSpec& spec, WeightBinder& binder);

// What the two above have in common: the keys, and all tensors.
ModelSpec ReadLlamaKeys(const ConfigReader& config);
ModelWeights BindLlamaNames(const ModelSpec& spec, WeightBinder& binder);

// ---- model_type "huginn_raven" ----

// Whether the config is of Huginn-0125 rather than of a retrofitted Raven. Where it says nothing,
// the tensors do: see Model::Load.
bool IsHuginn(const ConfigReader& config);
// In one of the layouts llama and olmo.
ModelSpec ReadRavenSpec(const ConfigReader& config);
ModelWeights BindRaven(const ModelSpec& spec, WeightBinder& binder);
ModelSpec ReadHuginnSpec(const ConfigReader& config);
ModelWeights BindHuginn(const ModelSpec& spec, WeightBinder& binder);
// Makes of a Raven's facts those of a Huginn; `what` names the config in errors.
void SetHuginnLayout(ModelSpec& spec, bool qk_bias, const std::string& what);

// ---- No model_type: {"model": {"arch": "transformer" | "huginn", ...}} ----

// `config` reads the inner object.
ModelSpec ReadIfmSpec(const ConfigReader& config);
ModelWeights BindIfm(const ModelSpec& spec, WeightBinder& binder);

// ---- What Raven's layouts have in common: keys, and all tensors but those inside a block ----

ModelSpec ReadRavenKeys(const ConfigReader& config);
using BlockBinder = BlockWeights (*)(const ModelSpec& spec, const std::string& at,
                                     WeightBinder& binder);
ModelWeights BindRavenParts(const ModelSpec& spec, BlockBinder bind_block, WeightBinder& binder);

}  // namespace loopspec

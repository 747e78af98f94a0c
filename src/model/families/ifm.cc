// IFM's looped models ("Towards Looped Models Done Right", xLLM's native format): config.json has
// no model_type but an object "model" with an "arch".
//   transformer  P is the embedding and the layers before loop_start_layer, B those up to
//                loop_end_layers, C the rest
//   huginn       P, B and C by number of layers; the state starts from zeros, from e or from a hash
// Norms come before the sublayers, neighbours are rotated, no biases.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"

namespace loopspec {
namespace {

constexpr int kTrainedPositions = 8192;  // of every release; the config does not say
constexpr int64_t kMaxExperts = 65536;
constexpr std::initializer_list<const char*> kHierarchies = {"none", "shared_hl", "split_hl"};

// What would change the arithmetic, with the one value that is supported.
void RefuseUnsupportedIfm(const ConfigReader& config) {
  const std::pair<const char*, Json> only[] = {{"attn_act_func", "softmax"},
                                               {"qknorm", false},
                                               {"apply_attn_gate", false},
                                               {"scale_emb", false},
                                               {"apply_rmsnorm", true},
                                               {"swiglu", true},
                                               {"norm_affine", true},
                                               {"layernorm_num_groups", 1},
                                               {"residual_func", "base"},
                                               {"num_values", 0},
                                               {"output_size", -1},
                                               {"dense_prelude_input_injection", "none"},
                                               {"moe_router_bias", false},
                                               {"moe_router_score_func", "sigmoid"},
                                               {"moe_router_scaling_factor", nullptr},
                                               {"num_shared_experts", 0},
                                               {"num_dense_layers", nullptr}};
  for (const auto& [key, value] : only) {
    const Json* found = config.Find(key);
    if (found != nullptr && *found != value)
      Fail("{}: {} is {:.60}, only {} is supported", config.what(), key, found->dump(),
           value.dump());
  }
  for (const char* key : {"apply_rmsnorm", "swiglu"}) {
    if (!config.Has(key)) Fail("{}: {} is missing, which means false", config.what(), key);
  }
  // No release has the key: it is how somebody would ask for the evaluation of Part II.
  if (config.BoolOr("terminal_kv", false))
    Fail(
        "{}: terminal_kv keeps the last loop's keys alone, so that a token's first loop waits for "
        "the last loop of the token before it and no draft can run ahead: expected false",
        config.what());
  if (config.Has("student"))
    Fail("{}: student is set: a model distilled for prompts alone, which is not supported",
         config.what());
}

// The index of the value in `names`; 0 where the key is missing.
int OneOf(const ConfigReader& config, const char* key, std::initializer_list<const char*> names) {
  if (!config.Has(key)) return 0;
  const std::string found = config.String(key);
  const auto at = std::find(names.begin(), names.end(), found);
  if (at == names.end())
    Fail("{}: {} is {:.60}, expected one of {}", config.what(), key, found, fmt::join(names, ", "));
  return static_cast<int>(at - names.begin());
}

void ReadExperts(const ConfigReader& config, ModelSpec& spec) {
  spec.experts = config.IntOr("num_experts", 0, kMaxExperts, 0);
  if (spec.experts == 0) return;
  spec.active_experts = config.Int("num_activated_experts", 1, spec.experts);
  spec.ff = config.Int("expert_inter_dim", 1, kMaxWidth);
}

// A hierarchical state: one for the high level, H, and one for the low. R counts updates of H.
void ReadHierarchy(const ConfigReader& config, ModelSpec& spec) {
  const int kind = OneOf(config, "huginn_hierarchical_state", kHierarchies);
  if (kind == 0) return;
  const int loops = spec.recurrence;
  spec.recurrence = config.IntOr("huginn_hierarchical_h_cycles", 1, kMaxRecurrence, 2);
  spec.low_cycles = config.IntOr("huginn_hierarchical_l_cycles", 1, kMaxRecurrence, 3);
  spec.split_core = kind == 2;
  spec.core_repeats = config.IntOr("huginn_split_module_repeats", 1, kMaxLayers, 1);
  if (loops != spec.recurrence * (spec.low_cycles + 1))
    Fail(
        "{}: loop_times is {}, expected huginn_hierarchical_h_cycles {} times one more than "
        "huginn_hierarchical_l_cycles {}",
        config.what(), loops, spec.recurrence, spec.low_cycles);
  if (spec.split_core && spec.core_layers % 2 != 0)
    Fail("{}: huginn_recurrent_layers is {}, expected an even number for two states", config.what(),
         spec.core_layers);
  if (spec.loop_norm)
    Fail("{}: huginn_recurrent_exit_norm with two states is not supported", config.what());
}

void ReadTransformer(const ConfigReader& config, int layers, ModelSpec& spec) {
  spec.prelude_layers = config.IntOr("loop_start_layer", 0, layers - 1, 0);
  const int end = config.IntOr("loop_end_layers", spec.prelude_layers + 1, layers, layers);
  spec.core_layers = end - spec.prelude_layers;
  spec.coda_layers = layers - end;
  if (OneOf(config, "loop_input_injection", {"none", "diagonal"}) == 0) return;
  spec.injection = Injection::kDiagonal;
  if (spec.prelude_layers > 0)  // the embedding would be injected, not P's output
    Fail("{}: loop_input_injection with a loop_start_layer of {}, only 0 is supported",
         config.what(), spec.prelude_layers);
}

void ReadHuginn(const ConfigReader& config, int layers, ModelSpec& spec) {
  spec.prelude_layers = config.IntOr("huginn_prelude_layers", 0, layers, 1);
  spec.coda_layers = config.IntOr("huginn_coda_layers", 0, layers, 1);
  const int rest = layers - spec.prelude_layers - spec.coda_layers;
  spec.core_layers = config.IntOr("huginn_recurrent_layers", 1, layers, rest);
  if (spec.core_layers != rest || rest < 1)
    Fail(
        "{}: num_layers is {}, expected the sum of huginn_prelude_layers {}, "
        "huginn_recurrent_layers {} and huginn_coda_layers {}",
        config.what(), layers, spec.prelude_layers, spec.core_layers, spec.coda_layers);
  constexpr StateStart kStarts[] = {StateStart::kNormal, StateStart::kPrelude, StateStart::kHashed};
  spec.start = kStarts[OneOf(config, "huginn_state_init", {"zero", "input", "normal"})];
  constexpr Injection kKinds[] = {Injection::kDiagonal, Injection::kLinear, Injection::kNone};
  spec.injection = kKinds[OneOf(config, "huginn_input_injection", {"diagonal", "linear", "none"})];
  spec.adapter_bias = config.BoolOr("apply_bias_term", false);
  if (config.BoolOr("huginn_prelude_orthogonal", false)) {
    if (spec.injection != Injection::kDiagonal)
      Fail("{}: huginn_prelude_orthogonal needs a huginn_input_injection of diagonal",
           config.what());
    spec.injection = Injection::kOrthogonal;
    if (config.Has("huginn_ortho_projection_eps"))
      spec.injection_eps = config.Number("huginn_ortho_projection_eps");
  }
  const bool hierarchical = OneOf(config, "huginn_hierarchical_state", kHierarchies) > 0;
  if (spec.injection == Injection::kNone && spec.start != StateStart::kPrelude && !hierarchical)
    Fail(
        "{}: huginn_input_injection is none and huginn_state_init not input: no token would ever "
        "reach the state",
        config.what());
  spec.prelude_norm = OneOf(config, "huginn_prelude_norm", {"none", "rms"}) == 1;
  spec.loop_norm = OneOf(config, "huginn_recurrent_exit_norm", {"none", "parameterless_rms"}) == 1;
}

}  // namespace

ModelSpec ReadIfmSpec(const ConfigReader& config) {
  const bool huginn = OneOf(config, "arch", {"transformer", "huginn"}) == 1;
  RefuseUnsupportedIfm(config);
  ModelSpec spec;
  spec.family = "ifm";
  spec.hidden = config.Int("model_dim", 1, kMaxWidth);
  spec.heads = config.Int("num_heads", 1, kMaxWidth);
  spec.kv_heads = config.IntOr("num_kv_heads", 1, kMaxWidth, spec.heads);
  spec.head_dim = config.HeadDim(spec.hidden, spec.heads);
  spec.ff = config.IntOr("ffn_hidden_dim", 1, kMaxWidth, 2048);
  spec.vocab = config.Int("vocab_size", 1, kMaxVocab);
  spec.max_positions = kTrainedPositions;
  spec.recurrence = config.IntOr("loop_times", 1, kMaxRecurrence, 1);
  spec.final_norm = true;
  if (config.Has("rmsnorm_eps")) spec.norm_eps = config.Number("rmsnorm_eps");
  spec.rope.theta = config.Has("rope_base") ? config.Number("rope_base") : 1e5;
  spec.rope.interleaved = true;
  for (const char* key : {"rope_head_dim", "v_head_dim"}) {
    if (config.IntOr(key, 0, kMaxHeadDim, spec.head_dim) != spec.head_dim)
      Fail("{}: {} is {}, only head_dim ({}) is supported", config.what(), key,
           config.Int(key, 0, kMaxHeadDim), spec.head_dim);
  }
  const int layers = config.Int("num_layers", 1, kMaxLayers);
  (huginn ? ReadHuginn : ReadTransformer)(config, layers, spec);
  ReadExperts(config, spec);
  if (huginn) ReadHierarchy(config, spec);
  // Trained at one depth, a model has no text to read out before it.
  if (OneOf(config, "huginn_sampling_scheme", {"fixed", "poisson-lognormal-capped"}) == 0)
    spec.draft_depths.emplace();
  return spec;
}

}  // namespace loopspec

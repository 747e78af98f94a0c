// Any text as a config.json: an Error, or facts within the bounds that the engine counts on.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "kv/planes.h"
#include "model/model_spec.h"

namespace {

// Configs that are nearly right, so that the fuzzer can spend itself on values: the input overrides
// single keys.
constexpr const char* kBases[] = {
    R"({"model_type":"ouro","vocab_size":100,"hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,
        "num_attention_heads":4,"max_position_embeddings":128,"rms_norm_eps":1e-6,"rope_theta":1e4,"total_ut_steps":4})",
    R"({"model_type":"huginn_raven","n_embd":32,"n_heads":4,"n_layers_in_prelude":1,"n_layers_in_recurrent_block":2,
        "n_layers_in_coda":1,"mean_recurrence":8,"intermediate_size":64,"vocab_size":96,"norm_eps":1e-5,
        "rope_theta":1e4,"max_position_embeddings":256})"};

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckSpec(const loopspec::ModelSpec& spec) {
  Check(spec.hidden >= 1 && spec.heads >= 1 && spec.kv_heads >= 1 && spec.ff >= 1 &&
        spec.vocab >= 1);
  Check(spec.heads % spec.kv_heads == 0 && spec.head_dim >= 2 && spec.head_dim % 2 == 0);
  Check(spec.recurrence >= 1 && spec.core_layers >= 1 && spec.prelude_layers >= 0 &&
        spec.coda_layers >= 0);
  Check(spec.q_size() >= 1 && spec.kv_size() >= 1 && spec.q_size() + 2 * spec.kv_size() > 0);
  Check(std::isfinite(spec.norm_eps) && spec.norm_eps > 0 && std::isfinite(spec.embed_scale) &&
        spec.state_std >= 0);
  Check(spec.RopeFrequencies().size() == static_cast<size_t>(spec.head_dim / 2));
  Check(loopspec::PlaneMap(spec, 9).count() > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0) {
      CheckSpec(loopspec::ParseModelSpec(text, "fuzz"));
    } else {
      // One override a line.
      loopspec::ConfigOverrides overrides;
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        overrides.push_back(loopspec::ParseOverride(text.substr(at, end - at)));
        at = end + 1;
      }
      CheckSpec(
          loopspec::ParseModelSpec(kBases[data[0] % 3 - 1], "fuzz", overrides, data[0] / 3 % 20));
    }
  } catch (const loopspec::Error&) {
  }
  return 0;
}

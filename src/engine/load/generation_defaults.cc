#include "engine/load/generation_defaults.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "fields/sampling_fields.h"

namespace loopspec {
namespace {

// What else changes the tokens there, with the value that means off.
const std::pair<const char*, Json> kUnknown[] = {{"num_beams", 1},
                                                 {"num_beam_groups", 1},
                                                 {"typical_p", 1.0},
                                                 {"epsilon_cutoff", 0.0},
                                                 {"eta_cutoff", 0.0},
                                                 {"penalty_alpha", nullptr},
                                                 {"diversity_penalty", 0.0},
                                                 {"no_repeat_ngram_size", 0},
                                                 {"encoder_repetition_penalty", 1.0},
                                                 {"bad_words_ids", nullptr},
                                                 {"force_words_ids", nullptr},
                                                 {"suppress_tokens", nullptr},
                                                 {"begin_suppress_tokens", nullptr},
                                                 {"forced_bos_token_id", nullptr},
                                                 {"forced_eos_token_id", nullptr},
                                                 {"sequence_bias", nullptr},
                                                 {"guidance_scale", nullptr},
                                                 {"min_length", 0},
                                                 {"min_new_tokens", nullptr},
                                                 {"dola_layers", nullptr}};

}  // namespace

GenerationDefaults ReadGenerationDefaults(const std::filesystem::path& folder) {
  GenerationDefaults defaults;
  const std::filesystem::path path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) return defaults;
  const Json json = ReadJsonFile(path);
  const std::string what = path.string();
  if (!json.is_object()) Fail("{}: expected a JSON object", what);
  defaults.from_file = true;
  SamplingParams& s = defaults.sampling;
  const std::optional<bool> sample = FindBool(json, "do_sample", what);
  defaults.chosen = sample.has_value();
  for (const SamplingField& field : SamplingFields()) {
    if (!field.generation_config) continue;
    // Penalties work on greedy text, too.
    if (!sample.value_or(false) && field.part != SamplingPart::kPenalty) continue;
    std::optional<double> said;
    if (field.whole()) {
      said = FindInt(json, field.name, what, static_cast<int64_t>(field.range.low),
                     static_cast<int64_t>(field.range.high));
    } else {
      said = FindNumber(json, field.name, what);
    }
    field.Set(s, said.value_or(*field.generation_config));
  }
  try {
    CheckSamplingParams(s, INT32_MAX);
  } catch (const Error& error) {
    Fail("{}: {}", what, error.what());
  }
  for (const auto& [key, off] : kUnknown) {
    const auto found = json.find(key);
    if (found != json.end() && !found->is_null() && *found != off) defaults.ignored.push_back(key);
  }
  return defaults;
}

}  // namespace loopspec

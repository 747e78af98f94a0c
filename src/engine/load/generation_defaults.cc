#include "engine/load/generation_defaults.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "sampling/filters.h"

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
  const auto number = [&](const char* key, double otherwise) {
    return static_cast<float>(FindNumber(json, key, what).value_or(otherwise));
  };
  s.repetition_penalty = number("repetition_penalty", 1.0);
  const std::optional<bool> sample = FindBool(json, "do_sample", what);
  defaults.chosen = sample.has_value();
  if (sample.value_or(false)) {
    s.temperature = number("temperature", 1.0);
    s.top_k = static_cast<int>(FindInt(json, "top_k", what, 0, INT32_MAX).value_or(50));
    s.top_p = number("top_p", 1.0);
    s.min_p = number("min_p", 0.0);
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

// The checkpoints that tests run on, and prompts for them.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"
#include "tensor/safetensors.h"
#include "tests/support/ifm_models.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {

inline std::filesystem::path GoldenFolder() {
  return std::filesystem::path(LOOPSPEC_BINARY_DIR) / "goldens";
}

// Some goldens are too large to ship.
inline bool HasGolden(const std::string& name) {
  return std::filesystem::exists(GoldenFolder() / name);
}
inline constexpr const char* kNoGolden = "its golden is not shipped, and not beside the clone";

// A demo model ("ouro-demo"), a tiny golden one ("ouro-tiny-f32") or a recipe of IFM's ("ifm
// parcae", IfmRecipes()); `recurrence` > 0 replaces R.
inline Model LoadTestModel(const std::string& name, int recurrence = 0) {
  if (name.starts_with("ifm ")) {
    const TemporaryFolder folder;  // the mapped file outlives it
    WriteIfmModel(IfmConfig(name.substr(4)), folder.path());
    return Model::Load(folder.path(), {}, recurrence);
  }
  const auto demo = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / name;
  return Model::Load(std::filesystem::exists(demo) ? demo : GoldenFolder() / name, {}, recurrence);
}

// The prompts of the demo goldens, as token ids: word problems and stories.
inline std::vector<std::vector<int32_t>> DemoPrompts(const std::string& model) {
  const std::string golden = model == "ouro-demo" ? "ouro-demo" : "raven-demo-zero-state";
  const Json json = ReadJsonFile(GoldenFolder() / (golden + ".json"));
  const Checkpoint file = Checkpoint::OpenFile(GoldenFolder() / (golden + ".safetensors"));
  std::vector<std::vector<int32_t>> prompts;
  for (size_t c = 0; c < json["cases"].size(); ++c) {
    const TensorView& ids = file.tensors().at("ids" + std::to_string(c));
    std::vector<int32_t> tokens(static_cast<size_t>(ids.shape[0]));
    std::memcpy(tokens.data(), ids.data, ids.bytes());
    tokens.resize(json["cases"][c]["prompt_tokens"].get<size_t>());
    prompts.push_back(std::move(tokens));
  }
  return prompts;
}

// Token ids that mean nothing, the same for the same seed.
inline std::vector<int32_t> RandomTokens(const ModelSpec& spec, size_t count, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(spec.vocab)));
  }
  return tokens;
}

// A model and prompts for many streams at once: a demo model, or under ThreadSanitizer a tiny one
// of its family. Threads meet in the scheduler, whatever the size of the model, and a kernel takes
// a hundred times as long there.
struct StreamModel {
  Model model;
  std::vector<std::vector<int32_t>> prompts;
};
inline std::string StreamModelName(const std::string& demo) {
  if (!kThreadSanitized) return demo;
  return demo == "ouro-demo"    ? "ouro-tiny-f32"
         : demo == "raven-demo" ? "raven-llama-tiny-f32"
                                : demo;
}
inline StreamModel LoadStreamModel(const std::string& demo) {
  if (!kThreadSanitized) return {LoadTestModel(demo), DemoPrompts(demo)};
  StreamModel loaded = {LoadTestModel(StreamModelName(demo), demo == "ouro-demo" ? 4 : 16), {}};
  for (uint32_t i = 0; i < 8; ++i)
    loaded.prompts.push_back(RandomTokens(loaded.model.spec, 20 + 10 * i, i));
  return loaded;
}

}  // namespace loopspec

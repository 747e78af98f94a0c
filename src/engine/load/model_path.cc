#include "engine/load/model_path.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/field_error.h"
#include "base/mapped_file.h"
#include "hub/cache.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

ModelFetcher& Fetcher() {
  static ModelFetcher fetcher;
  return fetcher;
}

// What a folder holds that could have been meant: "models/ouro-demo, models/raven-demo".
std::string ModelsIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (fs::is_regular_file(entry.path() / "config.json", error))
      names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  if (names.size() > 8) names.resize(8);
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

void SetModelFetcher(ModelFetcher fetcher) {
  Fetcher() = std::move(fetcher);
}

fs::path TextFolder(const fs::path& model) {
  std::error_code error;
  if (fs::is_directory(model, error)) return model;
  const fs::path folder = model.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

fs::path ResolveModel(const std::string& model) {
  if (model.empty()) throw FieldError("model", "empty", "a folder or ORG/NAME");
  std::error_code error;
  if (fs::is_directory(model, error)) return model;
  if (model.ends_with(".gguf") && FileExists(model)) return model;
  if (FileExists(model))
    throw FieldError("model", model + ", a file",
                     "the folder that holds config.json, or a .gguf file");
  const fs::path parent = fs::path(model).parent_path();
  const auto [name, revision] = hub::ParseName(model);
  if (!hub::LooksLikeName(name) || revision.find("..") != std::string::npos)
    throw FieldError(ErrorKind::kMissing, "model", model + ", where there is no such folder",
                     "a folder or ORG/NAME");
  const fs::path repository = hub::RepositoryFolder(hub::CacheFolder(), name);
  const bool cached = fs::is_directory(repository, error);
  if (cached) {
    if (const fs::path snapshot = hub::FindSnapshot(repository, revision); !snapshot.empty())
      return snapshot;
  }
  // A path and no name: its parent is here.
  if (!cached && fs::is_directory(parent, error)) {
    const std::string others = ModelsIn(parent);
    throw FieldError(ErrorKind::kMissing, "model", model + ", where there is no such folder",
                     others.empty() ? "a folder that holds config.json" : "one of " + others);
  }
  if (Fetcher() && Fetcher()(model)) {
    if (const fs::path snapshot = hub::FindSnapshot(repository, revision); !snapshot.empty())
      return snapshot;
  }
  throw FieldError(
      ErrorKind::kMissing, "model",
      fmt::format("{}, which is neither a folder nor in the Hugging Face cache {}", model,
                  hub::CacheFolder().string()),
      fmt::format("one of them (download it with: loopspec pull {}, or hf download {}{})", model,
                  name, revision.empty() ? "" : " --revision " + revision));
}

}  // namespace loopspec

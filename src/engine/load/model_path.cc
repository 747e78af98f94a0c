#include "engine/load/model_path.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/mapped_file.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As the huggingface_hub library finds it.
fs::path HubCache() {
  if (const std::string cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "huggingface/hub";
  return fs::path(Environment("HOME")) / ".cache/huggingface/hub";
}

bool LooksLikeName(const std::string& model) {
  return std::count(model.begin(), model.end(), '/') == 1 && model.front() != '/' &&
         model.front() != '.' && model.back() != '/' && model.find("..") == std::string::npos;
}

// The snapshot that refs/main names, else the only one there is.
fs::path Snapshot(const fs::path& repository) {
  const fs::path reference = repository / "refs/main";
  if (FileExists(reference)) {
    std::string commit = ReadFile(reference, 4096);
    commit.erase(
        std::remove_if(commit.begin(), commit.end(), [](char c) { return c <= ' ' || c == '/'; }),
        commit.end());
    if (fs::is_directory(repository / "snapshots" / commit))
      return repository / "snapshots" / commit;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error)) {
    if (entry.is_directory()) return entry.path();
  }
  return {};
}

}  // namespace

fs::path ResolveModel(const std::string& model) {
  if (model.empty()) Fail("--model is empty, expected a folder or ORG/NAME");
  std::error_code error;
  if (fs::is_directory(model, error)) return model;
  if (FileExists(model))
    Fail("--model {} is a file, expected the folder that holds config.json", model);
  if (!LooksLikeName(model)) Fail("--model {}: no such folder", model);
  std::string folder = "models--" + model;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = HubCache() / folder;
  if (fs::is_directory(repository, error)) {
    if (const fs::path snapshot = Snapshot(repository); !snapshot.empty()) return snapshot;
  }
  Fail(
      "--model {}: neither a folder nor in the Hugging Face cache {} (download it with: hf "
      "download {})",
      model, HubCache().string(), model);
}

}  // namespace loopspec

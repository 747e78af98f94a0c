#include "engine/load/model_path.h"

#include <dlfcn.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.h"
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

PullCommand& Downloader() {
  static PullCommand command = [](const std::string& name) { return "loopspec pull " + name; };
  return command;
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

// The folder of the shared object that holds this code; of a program, its own.
fs::path OwnFolder() {
  std::error_code error;
  Dl_info info{};
  const auto address = reinterpret_cast<const void*>(&SetModelFetcher);
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
      std::string_view(info.dli_fname).ends_with(".so"))
    return fs::path(info.dli_fname).parent_path();
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

// Folders that hold installed models by their names.
std::vector<fs::path> InstalledFolders() {
  const fs::path own = OwnFolder();
  std::vector<fs::path> folders = {own / "../share/loopspec/models", own / "../loopspec_demo"};
  if (const fs::path data = UserFolder("XDG_DATA_HOME", ".local/share"); !data.empty())
    folders.push_back(data / "loopspec/models");
  std::string system = Environment("XDG_DATA_DIRS");
  if (system.empty()) system = "/usr/local/share:/usr/share";
  for (size_t begin = 0; begin <= system.size();) {
    const size_t end = std::min(system.find(':', begin), system.size());
    if (end > begin)
      folders.push_back(fs::path(system.substr(begin, end - begin)) / "loopspec/models");
    begin = end + 1;
  }
  return folders;
}

// What could have been meant by a name that nothing was found under.
std::string ExpectedModel(const std::string& model) {
  const std::string last = fs::path(model).filename().string();
  if (!FindInstalledModel(last).empty())
    return fmt::format("{}, which is installed, a folder or ORG/NAME", last);
  if (last == kDemoModel)
    return fmt::format(
        "a folder or ORG/NAME; the package loopspec-demo brings {} (apt install "
        "./loopspec-demo_*.deb, or pip install loopspec-demo)",
        kDemoModel);
  return "a folder or ORG/NAME";
}

}  // namespace

fs::path FindInstalledModel(const std::string& name) {
  if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) return {};
  std::error_code error;
  for (const fs::path& folder : InstalledFolders()) {
    if (fs::is_regular_file(folder / name / "config.json", error))
      return fs::weakly_canonical(folder / name, error);
  }
  return {};
}

std::vector<std::string> InstalledModels() {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::path& folder : InstalledFolders()) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (!FindInstalledModel(name).empty()) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

void SetModelFetcher(ModelFetcher fetcher) {
  Fetcher() = std::move(fetcher);
}

void SetPullCommand(PullCommand command) {
  Downloader() = std::move(command);
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
  if (const fs::path installed = FindInstalledModel(model); !installed.empty()) return installed;
  if (FileExists(model))
    throw FieldError("model", model + ", a file",
                     "the folder that holds config.json, or a .gguf file");
  const fs::path parent = fs::path(model).parent_path();
  const auto [name, revision] = hub::ParseName(model);
  if (!hub::LooksLikeName(name) || revision.find("..") != std::string::npos)
    throw FieldError(ErrorKind::kMissing, "model", model + ", where there is no such folder",
                     ExpectedModel(model));
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
  // Not a name on the Hub, but what the documentation calls the demo model in a clone.
  if (!cached && name == fs::path("models") / kDemoModel)
    throw FieldError(ErrorKind::kMissing, "model", model + ", where there is no such folder",
                     ExpectedModel(model));
  if (Fetcher() && Fetcher()(model)) {
    if (const fs::path snapshot = hub::FindSnapshot(repository, revision); !snapshot.empty())
      return snapshot;
  }
  throw FieldError(
      ErrorKind::kMissing, "model",
      fmt::format("{}, which is neither a folder nor in the Hugging Face cache {}", model,
                  hub::CacheFolder().string()),
      fmt::format("one of them (download it with: {}, or hf download {}{})", Downloader()(model),
                  name, revision.empty() ? "" : " --revision " + revision));
}

}  // namespace loopspec

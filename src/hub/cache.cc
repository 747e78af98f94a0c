#include "hub/cache.h"

#include <algorithm>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace loopspec::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestName = 96;  // of ORG/NAME, by the Hub's rule

// "~/models" as in a file of settings, where no shell has seen it.
fs::path Expanded(const std::string& text) {
  if (text == "~" || text.starts_with("~/"))
    return fs::path(Environment("HOME")) / text.substr(std::min<size_t>(2, text.size()));
  return text;
}

bool HasConfig(const fs::path& snapshot) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(snapshot / "config.json", ignored));
}

// The snapshot that refs/REVISION names, or whose commit begins with it.
fs::path NamedSnapshot(const fs::path& repository, const std::string& revision) {
  const fs::path reference = repository / "refs" / revision;
  std::error_code error;
  if (fs::is_regular_file(reference, error)) {
    const fs::path snapshot = repository / "snapshots" / ReadCommit(reference);
    if (HasConfig(snapshot)) return snapshot;
  }
  fs::path found;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error)) {
    if (!HasConfig(entry.path()) || !entry.path().filename().string().starts_with(revision))
      continue;
    if (!found.empty())
      Fail("revision {} of {} fits {} and {}, expected one commit", revision, repository.string(),
           found.filename().string(), entry.path().filename().string());
    found = entry.path();
  }
  return found;
}

bool PlainPart(std::string_view part) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !part.empty() && std::all_of(part.begin(), part.end(), plain) && part.front() != '.' &&
         part.front() != '-' && part.back() != '.' && part.back() != '-' &&
         part.find("..") == part.npos && part.find("--") == part.npos;
}

}  // namespace

fs::path HomeFolder() {
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return Expanded(home);
  if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "huggingface";
  return fs::path(Environment("HOME")) / ".cache/huggingface";
}

fs::path CacheFolder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string cache = Environment(name); !cache.empty()) return Expanded(cache);
  }
  return HomeFolder() / "hub";
}

Name ParseName(const std::string& text) {
  const size_t at = text.find('@');
  if (at == std::string::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + 1)};
}

bool LooksLikeName(const std::string& text) {
  return std::count(text.begin(), text.end(), '/') == 1 && text.front() != '/' &&
         text.front() != '.' && text.back() != '/' && text.find("..") == std::string::npos;
}

void CheckName(const Name& name) {
  const size_t slash = name.repository.find('/');
  if (slash == std::string::npos || name.repository.size() > kLongestName ||
      !PlainPart(std::string_view(name.repository).substr(0, slash)) ||
      !PlainPart(std::string_view(name.repository).substr(slash + 1)))
    Fail("{}: not a name of the Hub, expected ORG/NAME or ORG/NAME@REVISION", name.repository);
  const std::string& revision = name.revision;
  const bool climbs = revision.starts_with('/') || revision.ends_with('/') ||
                      revision.find("..") != std::string::npos ||
                      revision.find("//") != std::string::npos;
  if (climbs || revision.size() > 255 || std::any_of(revision.begin(), revision.end(), [](char c) {
        return c <= ' ' || c == '\\' || c == 127;
      }))
    Fail("{}@{}: expected a branch, a tag or a commit behind the @", name.repository, revision);
}

fs::path RepositoryFolder(const fs::path& cache, const std::string& repository) {
  std::string folder = "models--" + repository;
  folder.replace(folder.find('/'), 1, "--");
  return cache / folder;
}

fs::path LocksFolder(const fs::path& cache, const std::string& repository) {
  return cache / ".locks" / RepositoryFolder("", repository);
}

std::string ReadCommit(const fs::path& reference) {
  std::string commit = ReadFile(reference, 4096);
  commit.erase(
      std::remove_if(commit.begin(), commit.end(), [](char c) { return c <= ' ' || c == '/'; }),
      commit.end());
  return commit;
}

fs::path FindSnapshot(const fs::path& repository_folder, const std::string& revision) {
  if (!revision.empty()) return NamedSnapshot(repository_folder, revision);
  std::error_code error;
  if (fs::is_regular_file(repository_folder / "refs/main", error)) {
    if (fs::path main = NamedSnapshot(repository_folder, "main"); !main.empty()) return main;
  }
  for (const auto& entry : fs::directory_iterator(repository_folder / "snapshots", error)) {
    if (HasConfig(entry.path())) return entry.path();
  }
  return {};
}

}  // namespace loopspec::hub

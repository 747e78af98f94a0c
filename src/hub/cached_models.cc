#include "hub/cached_models.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "hub/file_lock.h"

namespace loopspec::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolderPrefix = "models--";

int64_t SizeOf(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(size);
}

// commit -> branches and tags
std::map<std::string, std::vector<std::string>> References(const fs::path& repository) {
  std::map<std::string, std::vector<std::string>> out;
  const fs::path folder = repository / "refs";
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error))
      out[ReadCommit(entry.path())].push_back(
          entry.path().lexically_relative(folder).generic_string());
  }
  for (auto& [commit, names] : out) std::sort(names.begin(), names.end());
  return out;
}

CachedSnapshot ReadSnapshot(const fs::path& folder) {
  CachedSnapshot snapshot;
  snapshot.commit = folder.filename().string();
  snapshot.folder = folder;
  std::error_code error;
  snapshot.complete = fs::exists(folder / "config.json", error);
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_directory(error)) continue;
    if (!fs::exists(entry.path(), error)) snapshot.complete = false;
    snapshot.bytes += SizeOf(entry.path());
  }
  return snapshot;
}

CachedModel ReadModel(const fs::path& folder) {
  CachedModel model;
  model.folder = folder;
  model.name = folder.filename().string().substr(std::string(kFolderPrefix).size());
  if (const size_t dashes = model.name.find("--"); dashes != std::string::npos)
    model.name.replace(dashes, 2, "/");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "blobs", error)) {
    const int64_t size = SizeOf(entry.path());
    model.bytes += size;
    if (entry.path().extension() == ".incomplete") model.partial += size;
  }
  const auto references = References(folder);
  for (const auto& entry : fs::directory_iterator(folder / "snapshots", error)) {
    if (!entry.is_directory(error)) continue;
    CachedSnapshot snapshot = ReadSnapshot(entry.path());
    if (const auto found = references.find(snapshot.commit); found != references.end())
      snapshot.references = found->second;
    model.snapshots.push_back(std::move(snapshot));
  }
  std::sort(model.snapshots.begin(), model.snapshots.end(),
            [](const auto& a, const auto& b) { return a.commit < b.commit; });
  return model;
}

// Names of the blobs that a snapshot's links lead to.
std::set<std::string> BlobsOf(const fs::path& snapshot) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot, error)) {
    if (entry.is_symlink(error)) names.insert(fs::read_symlink(entry, error).filename().string());
  }
  return names;
}

// All locks of a repository, so that nobody writes to it while it goes.
std::vector<FileLock> LockAll(const fs::path& folder, const std::string& name) {
  std::vector<FileLock> held;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::optional<FileLock> lock = FileLock::Try(entry.path());
    if (!lock) Fail("{} is being downloaded by another process: nothing was removed", name);
    held.push_back(std::move(*lock));
  }
  return held;
}

void Remove(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);  // a link itself, not what it leads to
  if (error) Fail("cannot remove {}: {}", path.string(), error.message());
}

int64_t RemoveSnapshot(const CachedModel& model, const CachedSnapshot& gone) {
  std::set<std::string> blobs = BlobsOf(gone.folder);
  for (const CachedSnapshot& other : model.snapshots) {
    if (other.commit == gone.commit) continue;
    for (const std::string& name : BlobsOf(other.folder)) blobs.erase(name);
  }
  for (const std::string& reference : gone.references) Remove(model.folder / "refs" / reference);
  Remove(model.folder / "trees" / (gone.commit + ".json"));
  Remove(model.folder / ".no_exist" / gone.commit);
  Remove(gone.folder);
  int64_t freed = 0;
  for (const std::string& name : blobs) {
    const fs::path blob = model.folder / "blobs" / name;
    freed += SizeOf(blob);
    Remove(blob);
  }
  return freed;
}

}  // namespace

std::vector<CachedModel> ListCachedModels() {
  std::vector<CachedModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(CacheFolder(), error)) {
    if (entry.path().filename().string().starts_with(kFolderPrefix) && entry.is_directory(error))
      models.push_back(ReadModel(entry.path()));
  }
  std::sort(models.begin(), models.end(),
            [](const CachedModel& a, const CachedModel& b) { return a.name < b.name; });
  return models;
}

int64_t RemoveCachedModel(const Name& name) {
  CheckName(name);
  const fs::path cache = CacheFolder();
  const fs::path folder = RepositoryFolder(cache, name.repository);
  std::error_code error;
  if (!fs::is_directory(folder, error))
    Fail("{} is not in the cache {}", name.repository, cache.string());
  const fs::path locks = LocksFolder(cache, name.repository);
  const std::vector<FileLock> held = LockAll(locks, name.repository);
  const CachedModel model = ReadModel(folder);
  if (!name.revision.empty()) {
    const CachedSnapshot* gone = nullptr;
    for (const CachedSnapshot& snapshot : model.snapshots) {
      const bool named = std::find(snapshot.references.begin(), snapshot.references.end(),
                                   name.revision) != snapshot.references.end();
      if (!named && !snapshot.commit.starts_with(name.revision)) continue;
      if (gone != nullptr && !named)
        Fail("revision {} of {} fits {} and {}, expected one commit", name.revision,
             name.repository, gone->commit, snapshot.commit);
      gone = &snapshot;
      if (named) break;
    }
    if (gone == nullptr)
      Fail("{} has no revision {} in the cache {}", name.repository, name.revision, cache.string());
    if (model.snapshots.size() > 1) return RemoveSnapshot(model, *gone);
  }
  Remove(folder);
  Remove(locks);
  return model.bytes;
}

}  // namespace loopspec::hub

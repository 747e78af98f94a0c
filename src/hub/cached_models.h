// What lies in the cache: to be listed, and to be removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/cache.h"

namespace loopspec::hub {

struct CachedSnapshot {
  std::string commit;
  std::vector<std::string> references;  // branches and tags that name it
  std::filesystem::path folder;
  int64_t bytes = 0;     // of its files
  bool complete = true;  // it has config.json, and none of its links leads nowhere
};

struct CachedModel {
  std::string name;  // ORG/NAME
  std::filesystem::path folder;
  int64_t bytes = 0;    // on disk, what snapshots share counted once
  int64_t partial = 0;  // of these: begun and not finished
  std::vector<CachedSnapshot> snapshots;
};

// Sorted by name.
std::vector<CachedModel> ListCachedModels();

// Removes a model, or with a revision that snapshot and the blobs that no other one uses. Returns
// the bytes that were freed. Throws Error when there is none, or when it is being downloaded.
int64_t RemoveCachedModel(const Name& name);

}  // namespace loopspec::hub

// What a repository of the Hub holds at one commit, and which of it the engine needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec::hub {

struct RemoteFile {
  std::string path;  // inside the repository, with / between its parts
  int64_t size = 0;
  std::string etag;  // sha256 of the bytes where lfs, else git's sha1 of a blob: 64 or 40 digits
  bool lfs = false;
};

struct Listing {
  std::string commit;  // 40 digits
  std::vector<RemoteFile> files;

  const RemoteFile* Find(std::string_view path) const;
};

// Reads the Hub's answer. Throws Error where a name climbs out of the repository or a checksum is
// none: names, checksums and the commit all become parts of paths.
Listing ParseListing(std::string_view json, const std::string& repository);

// config.json, what describes text and sampling, and, where there is no single file of weights, the
// index of the shards. Throws Error for a repository that the engine cannot run.
std::vector<RemoteFile> DescribingFiles(const Listing& listing, const std::string& repository);
// The weights: model.safetensors, else the shards that the index names.
std::vector<RemoteFile> WeightFiles(const Listing& listing, std::string_view index,
                                    const std::string& repository);

// The files that a release's own manifest speaks of (IFM's have one), with the sizes and sha256
// that it gives. Throws Error as ParseListing does.
std::vector<RemoteFile> ParseManifest(std::string_view json, const std::string& what);

inline constexpr const char* kManifestFile = "artifact_manifest.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace loopspec::hub

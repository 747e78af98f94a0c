// The cache of the Hugging Face Hub on this machine, in the layout of the huggingface_hub library:
//
//   CACHE/models--ORG--NAME/blobs/ETAG               the bytes; ETAG is sha256 (LFS) or git's sha1
//                          /snapshots/COMMIT/FILE    a relative link to a blob
//                          /refs/REVISION            holds the commit of a branch or tag
//   CACHE/.locks/models--ORG--NAME/ETAG.lock         held while a blob is being written
#pragma once

#include <filesystem>
#include <string>

namespace loopspec::hub {

// HF_HOME and HF_HUB_CACHE, with the defaults that the huggingface_hub library has.
std::filesystem::path HomeFolder();
std::filesystem::path CacheFolder();

// ORG/NAME@REVISION: a branch, a tag or the beginning of a commit behind the @.
struct Name {
  std::string repository, revision;  // no revision: main
};
Name ParseName(const std::string& text);
// Whether a text could be ORG/NAME and no path.
bool LooksLikeName(const std::string& text);
// Throws Error where ORG/NAME or a revision could not be one of the Hub's: both become parts of
// paths.
void CheckName(const Name& name);

std::filesystem::path RepositoryFolder(const std::filesystem::path& cache,
                                       const std::string& repository);
std::filesystem::path LocksFolder(const std::filesystem::path& cache,
                                  const std::string& repository);

// The commit in a file of refs/, without what an editor may have put around it.
std::string ReadCommit(const std::filesystem::path& reference);

// The snapshot of a revision; without one that of main, else any. Nothing where there is none. A
// snapshot counts once it has config.json, which a download links last.
std::filesystem::path FindSnapshot(const std::filesystem::path& repository_folder,
                                   const std::string& revision);

}  // namespace loopspec::hub

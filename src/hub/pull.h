// Downloads a model from the Hugging Face Hub into the cache that huggingface_hub shares.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/cache.h"

namespace loopspec::hub {

struct PullOptions {
  Name name;
  int jobs = 8;         // files at a time
  bool verify = false;  // reads what is there already and compares its checksums
  std::string user_agent = "loopspec";

  // Called with config.json before anything large comes: throws for a model that cannot be run.
  std::function<void(const std::string& config, const std::string& what)> check_config;
  // Asked before the rest, with the bytes that must come; false ends it.
  std::function<bool(int64_t missing)> confirm;
  // Called a few times a second, in the caller's thread.
  std::function<void(int64_t done, int64_t total)> progress;
  // Told in one sentence why something is asked for again; from several threads, one at a time.
  std::function<void(const std::string& sentence)> notice;
  // Asked all the while, from several threads.
  std::function<bool()> cancelled;
};

struct PullResult {
  enum class Status {
    kComplete,
    kDeclined,   // confirm said no
    kCancelled,  // what has come stays; the next call goes on from there
    kOffline,    // the cache has it, and HF_HUB_OFFLINE forbids to ask whether it is the newest
  };
  Status status = Status::kComplete;
  std::filesystem::path folder;  // of the snapshot
  std::string commit;
  int files = 0;
  int64_t bytes = 0;     // of all files
  int64_t received = 0;  // of those, over the network this time
};

// Throws Error: a malformed name, no network, no such model, no space, a failed checksum.
PullResult Pull(const PullOptions& options);

// Reads the files of a model folder and compares them with the release's own manifest
// (artifact_manifest.json); returns their number. Throws Error where there is none, and for the
// first file that is missing or differs.
int VerifyFiles(const std::filesystem::path& folder);

// Whether this program can download at all.
bool CanPull();

}  // namespace loopspec::hub

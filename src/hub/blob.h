// One blob of the cache: resumed where a download stopped, checked, and put in place at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/http.h"
#include "hub/listing.h"

namespace loopspec::hub {

struct BlobRequest {
  RemoteFile file;
  std::string url;
  std::string what;            // "model.safetensors of ORG/NAME", for messages
  std::filesystem::path blob;  // blobs/ETAG; blobs/ETAG.incomplete holds what has come so far
  std::filesystem::path lock;
  bool has_token = false;  // for messages
  std::function<bool()> cancelled;
  // Told in one sentence why the file is asked for again.
  std::function<void(const std::string& sentence)> notice = {};
};

struct BlobProgress {
  std::atomic<int64_t> done{0};      // bytes of the file that are here
  std::atomic<int64_t> received{0};  // bytes that came over the network
};

// Where a finished blob lies, or nothing: one of another size does not count.
bool BlobIsThere(const std::filesystem::path& blob, int64_t size);
// Bytes that an earlier download left.
int64_t PartialBytes(const std::filesystem::path& blob, int64_t size);
// Reads the blob and compares its checksum.
bool BlobIsSound(const std::filesystem::path& blob, const RemoteFile& file);

// Returns false when it was cancelled: what has come stays. Throws Error when the file cannot be
// had, is not the one that the listing names, or cannot be written. Both the number of requests and
// the bytes that they bring are bounded, whatever the server sends.
bool FetchBlob(Http& http, const BlobRequest& request, BlobProgress& progress);

// What an answer without the file means, in a sentence. `what`: the thing that was asked for.
std::string Explain(const Answer& answer, const std::string& what, bool has_token);
// Whether asking again can help.
bool MayRecover(const Answer& answer);
// Tells why `what` is asked for again, and sleeps before attempt `failures` + 1: as long as the
// server asks, or longer each time. Throws Error when the server asks for more than two minutes.
void WaitToRetry(const Answer& answer, int failures, const std::string& what,
                 const std::function<bool()>& cancelled,
                 const std::function<void(const std::string& sentence)>& notice);

}  // namespace loopspec::hub

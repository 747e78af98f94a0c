#include "hub/blob.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hub/digest.h"
#include "hub/file_lock.h"

namespace loopspec::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kMostFailures = 6;  // in a row, without a byte that had not come before
constexpr int kMostCorrupt = 3;   // downloads that fail their checksum
constexpr int kMostUnreachable =
    2;                            // answers that the server's file ends before the byte asked for
constexpr int kMostRestarts = 6;  // times that the file is begun again, for whatever reason
constexpr int kMostAttempts = 1000;   // requests, each of which brought new bytes
constexpr double kLongestWait = 120;  // seconds that a server may ask us to wait

fs::path Incomplete(const fs::path& blob) {
  fs::path path = blob;
  path += ".incomplete";
  return path;
}

// The size of the whole file by an answer's headers; -1 where they do not say.
int64_t SizeOffered(int status, const Headers& headers) {
  const auto found = headers.find(status == 206 ? "content-range" : "content-length");
  if (found == headers.end()) return -1;
  // "bytes 100-199/200" or "200"
  const std::string_view text = found->second;
  const std::string_view size = status == 206 ? text.substr(text.find('/') + 1) : text;
  int64_t value = -1;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), value);
  return error == std::errc() && end == size.data() + size.size() ? value : -1;
}

// blobs/ETAG.incomplete, opened: a beginning of the file, and its checksum so far.
class Partial : public Sink {
 public:
  Partial(const BlobRequest& request, BlobProgress& progress)
      : request_(request),
        progress_(progress),
        path_(Incomplete(request.blob)),
        digest_(request.file.lfs, request.file.size) {
    // No link is followed: somebody else's file must not be written to.
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file_ < 0) Fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
  ~Partial() override { close(file_); }
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;

  int64_t at() const { return at_; }
  bool complete() const { return at_ == request_.file.size; }

  // Takes what an earlier download left.
  void TakeUp() {
    struct stat found {};
    if (fstat(file_, &found) != 0 || found.st_size > request_.file.size) return Restart();
    std::vector<char> block(size_t{1} << 20);
    while (at_ < found.st_size && !request_.cancelled()) {
      const ssize_t count = pread(file_, block.data(), block.size(), at_);
      if (count <= 0) return Restart();
      Count(block.data(), static_cast<size_t>(count));
    }
  }

  // From the first byte again. A server that never lets a download end is not followed for ever.
  void Restart() {
    if (++restarts_ > kMostRestarts)
      Fail("{}: begun {} times, and all {} bytes have never come in one piece", request_.what,
           kMostRestarts, request_.file.size);
    progress_.done -= at_;
    at_ = 0;
    digest_.Reset();
    if (ftruncate(file_, 0) != 0) Fail("cannot write {}: {}", path_.string(), std::strerror(errno));
  }

  void Begin(int status, const Headers& headers) override {
    // A stale mirror or the sign-in page of a network gives itself away before any byte is taken.
    const int64_t offered = SizeOffered(status, headers);
    if (offered >= 0 && offered != request_.file.size)
      Fail(
          "{}: the server offers {} bytes, the listing says {}; it is an outdated mirror, or "
          "something between here and the Hub answers for it",
          request_.what, offered, request_.file.size);
    if (status != 206) {
      if (at_ > 0) Restart();  // all of it comes, whatever was asked for
      return;
    }
    // "bytes 100-199/200"
    const auto range = headers.find("content-range");
    const std::string expected = fmt::format("bytes {}-", at_);
    if (range == headers.end() || !range->second.starts_with(expected))
      Fail("{}: the server sent {}, expected {}", request_.what,
           range == headers.end() ? "a part without saying which" : range->second, expected);
  }

  void Add(const char* data, size_t size) override {
    if (static_cast<int64_t>(size) > request_.file.size - at_)
      Fail("{}: the server sent more than the {} bytes that its listing says", request_.what,
           request_.file.size);
    for (size_t written = 0; written < size;) {
      const ssize_t count =
          pwrite(file_, data + written, size - written, at_ + static_cast<int64_t>(written));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0)
        Fail("cannot write {}: {} ({} of {} bytes are kept, loopspec pull goes on from there)",
             path_.string(), std::strerror(errno), at_, request_.file.size);
      written += static_cast<size_t>(count);
    }
    Count(data, size);
    progress_.received += static_cast<int64_t>(size);
  }

  // Puts the file in place when its checksum is right.
  bool Finish() {
    if (digest_.Finish() != request_.file.etag) return false;
    if (fsync(file_) != 0 || (rename(path_.c_str(), request_.blob.c_str()) != 0 &&
                              !BlobIsThere(request_.blob, request_.file.size)))
      Fail("cannot write {}: {}", request_.blob.string(), std::strerror(errno));
    return true;
  }

 private:
  void Count(const char* data, size_t size) {
    digest_.Add(data, size);
    at_ += static_cast<int64_t>(size);
    progress_.done += static_cast<int64_t>(size);
  }

  const BlobRequest& request_;
  BlobProgress& progress_;
  const fs::path path_;
  Digest digest_;
  int file_ = -1;
  int64_t at_ = 0;  // bytes of the file that are there and in the digest
  int restarts_ = 0;
};

// Why an answer may be better next time.
std::string Why(const Answer& answer, const std::string& what) {
  return answer.trouble.empty() ? fmt::format("{}: the Hub answered {}", what, answer.status)
                                : fmt::format("{}: {}", what, answer.trouble);
}

std::string ErrorCode(const Answer& answer) {
  const auto code = answer.headers.find("x-error-code");
  return code == answer.headers.end() ? "" : code->second;
}

}  // namespace

bool BlobIsThere(const fs::path& blob, int64_t size) {
  std::error_code error;
  const auto found = fs::file_size(blob, error);
  return !error && static_cast<int64_t>(found) == size;
}

int64_t PartialBytes(const fs::path& blob, int64_t size) {
  std::error_code error;
  const auto found = fs::file_size(Incomplete(blob), error);
  return error || static_cast<int64_t>(found) > size ? 0 : static_cast<int64_t>(found);
}

bool BlobIsSound(const fs::path& blob, const RemoteFile& file) {
  const int opened = open(blob.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return false;
  Digest digest(file.lfs, file.size);
  std::vector<char> block(size_t{1} << 20);
  ssize_t count = 0;
  while ((count = read(opened, block.data(), block.size())) > 0)
    digest.Add(block.data(), static_cast<size_t>(count));
  close(opened);
  return count == 0 && digest.Finish() == file.etag;
}

bool MayRecover(const Answer& answer) {
  if (!answer.trouble.empty()) return !answer.final;
  return answer.status == 408 || answer.status == 429 || answer.status >= 500;
}

void WaitToRetry(const Answer& answer, int failures, const std::string& what,
                 const std::function<bool()>& cancelled,
                 const std::function<void(const std::string& sentence)>& notice) {
  double seconds = std::min(10.0, 0.1 * static_cast<double>(1 << std::min(failures, 10)));
  if (const auto after = answer.headers.find("retry-after"); after != answer.headers.end()) {
    int asked = 0;
    const std::string& text = after->second;
    std::from_chars(text.data(), text.data() + text.size(), asked);
    if (asked > kLongestWait)
      Fail("{}: the Hub answered {} and asks to wait {} s: run the same command again after that",
           what, answer.status, asked);
    seconds = std::max(seconds, static_cast<double>(asked));
  }
  if (notice)
    notice(fmt::format("trying again in {:.1f} s: {}", seconds,
                       answer.ok() ? what + ": the answer ended early" : Why(answer, what)));
  for (double slept = 0; slept < seconds && !cancelled(); slept += 0.05)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

std::string Explain(const Answer& answer, const std::string& what, bool has_token) {
  if (!answer.trouble.empty()) return fmt::format("{}: {}", what, answer.trouble);
  const std::string code = ErrorCode(answer);
  if (code == "GatedRepo")
    return fmt::format("{}: access must be asked for on its page of the Hub{}", what,
                       has_token ? "" : ", and a token given in HF_TOKEN or by hf auth login");
  if (code == "RevisionNotFound") return fmt::format("{}: the Hub has no such revision", what);
  if (answer.status == 401 || answer.status == 403 || answer.status == 404)
    return fmt::format(
        "{}: the Hub answered {}: nothing there has that name, or {}", what, answer.status,
        has_token ? "the token may not see it" : "it is private and needs a token in HF_TOKEN");
  return fmt::format("{}: the Hub answered {}, expected 200", what, answer.status);
}

bool FetchBlob(Http& http, const BlobRequest& request, BlobProgress& progress) {
  const auto there = [&] {
    if (!BlobIsThere(request.blob, request.file.size)) return false;
    progress.done = request.file.size;
    return true;
  };
  if (there()) return true;
  const std::optional<FileLock> lock = FileLock::Wait(request.lock, request.cancelled);
  if (!lock) return false;
  if (there()) return true;  // whoever held the lock was at the same blob
  Partial partial(request, progress);
  partial.TakeUp();
  int failures = 0, corrupt = 0, unreachable = 0;
  int64_t furthest = partial.at();  // of all attempts: only bytes beyond it are progress
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (request.cancelled()) return false;
    if (partial.complete()) {
      if (partial.Finish()) return true;
      partial.Restart();
      if (++corrupt == kMostCorrupt)
        Fail("{}: what came {} times does not have the checksum {} that the Hub lists",
             request.what, kMostCorrupt, request.file.etag);
      if (request.notice)
        request.notice(fmt::format("trying again: {} does not have its checksum", request.what));
    }
    const int64_t before = partial.at();
    const Answer answer = http.Get(request.url, before, &partial);
    if (answer.cancelled) return false;
    if (partial.complete()) continue;
    if (answer.status == 416 && before > 0) {  // the server's file ends before this byte
      if (++unreachable == kMostUnreachable)
        Fail("{}: the server's file ends after {} bytes, the listing says {}", request.what, before,
             request.file.size);
      if (request.notice)
        request.notice(
            fmt::format("trying again: {} has no byte {} on the server", request.what, before));
      partial.Restart();
      continue;
    }
    if (!answer.ok() && !MayRecover(answer) && partial.at() == before)
      Fail("{}", Explain(answer, request.what, request.has_token));
    failures = partial.at() > furthest ? 0 : failures + 1;
    furthest = std::max(furthest, partial.at());
    if (failures == kMostFailures) {
      Fail("{} ({} attempts; {} of {} bytes are kept, loopspec pull goes on from there)",
           answer.ok() ? fmt::format("{}: the answer ends early", request.what)
                       : Explain(answer, request.what, request.has_token),
           kMostFailures, partial.at(), request.file.size);
    }
    WaitToRetry(answer, failures, request.what, request.cancelled, request.notice);
  }
  Fail(
      "{}: the connection broke {} times ({} of {} bytes are kept, loopspec pull goes on from "
      "there)",
      request.what, kMostAttempts, partial.at(), request.file.size);
}

}  // namespace loopspec::hub

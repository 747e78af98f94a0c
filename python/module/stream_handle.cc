#include "stream_handle.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <utility>

#include "signals.h"

namespace loopspec::python {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Tokens that one Read hands over at most.
constexpr size_t kMost = 4096;

}  // namespace

ReadyDescriptor::ReadyDescriptor() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

ReadyDescriptor::~ReadyDescriptor() {
  close(fd_);
}

void ReadyDescriptor::Ring() {
  if (rung_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

void ReadyDescriptor::Reset() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof(count));
  rung_ = false;  // last: who rings before has written before, and that is read after this
}

StreamHandle::StreamHandle(Stream stream)
    : stream_(std::make_unique<Stream>(std::move(stream))), answer_(*stream_) {}

StreamHandle::~StreamHandle() {
  if (process_.here()) return;
  [[maybe_unused]] Stream* left = stream_.release();  // its engine's threads are not here
}

std::vector<Token> StreamHandle::Read(std::optional<double> seconds) {
  process_.Check();
  const std::unique_lock lock(reading_, std::try_to_lock);
  if (!lock) throw std::runtime_error("another thread reads this stream: one may at a time");
  if (ready_) ready_->Reset();
  std::vector<Token> tokens;
  const Clock::time_point start = Clock::now();
  const auto left = [&] {  // time to wait
    if (!tokens.empty()) return milliseconds(0);
    if (!seconds) return milliseconds(kSlice);
    const double rest = *seconds - std::chrono::duration<double>(Clock::now() - start).count();
    return std::clamp(milliseconds(static_cast<int64_t>(std::clamp(rest, 0.0, 1.0) * 1000)),
                      milliseconds(0), milliseconds(kSlice));
  };
  for (Token token; !done_ && tokens.size() < kMost;) {
    const milliseconds wait = left();
    const Stream::Status status = stream_->Next(token, wait);
    if (status == Stream::Status::kDone) {
      done_ = true;
    } else if (status == Stream::Status::kTimeout) {
      if (wait.count() == 0) break;
      CheckSignals();
    } else {
      answer_.Absorb(*stream_, status, token);
      if (status == Stream::Status::kToken) tokens.push_back(std::move(token));
    }
  }
  if (ready_ && !done_ && tokens.size() == kMost) ready_->Ring();  // there may be more
  return tokens;
}

void StreamHandle::Cancel() {
  process_.Check();
  stream_->Cancel();
}

int StreamHandle::Descriptor() {
  process_.Check();
  if (!ready_) {
    ready_ = std::make_shared<ReadyDescriptor>();
    stream_->OnReady([ready = ready_] { ready->Ring(); });
  }
  return ready_->get();
}

}  // namespace loopspec::python

// A request under way, as Python reads it: blocking, or when its file descriptor is readable.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "answer.h"
#include "home_process.h"
#include "loopspec/loopspec.h"

namespace loopspec::python {

// An eventfd that is readable while there may be something to read. Rung by the engine's thread,
// which never waits and never needs Python's lock.
class ReadyDescriptor {
 public:
  ReadyDescriptor();
  ~ReadyDescriptor();
  ReadyDescriptor(const ReadyDescriptor&) = delete;
  ReadyDescriptor& operator=(const ReadyDescriptor&) = delete;

  int get() const { return fd_; }
  void Ring();
  // Before everything that is there is read.
  void Reset();

 private:
  const int fd_;
  std::atomic<bool> rung_{false};
};

class StreamHandle {
 public:
  explicit StreamHandle(Stream stream);
  ~StreamHandle();
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;

  // The tokens that are there; waits for one, forever or for a time. None: see done. Without
  // Python's lock; throws what signals raise.
  std::vector<Token> Read(std::optional<double> seconds);
  bool done() const { return done_; }
  void Cancel();
  // Readable when Read(0) may give something, or the end.
  int Descriptor();

  const Answer& answer() const { return answer_; }
  const Stream& stream() const { return *stream_; }

 private:
  HomeProcess process_;
  std::unique_ptr<Stream> stream_;
  Answer answer_;
  std::mutex reading_;
  std::atomic<bool> done_{false};
  std::shared_ptr<ReadyDescriptor> ready_;
};

}  // namespace loopspec::python

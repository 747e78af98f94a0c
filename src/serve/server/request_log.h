// The server's log: a line per request and event, as text or JSON. Nobody waits for it: lines go
// through a bounded queue to a thread of its own, and what a full disk or a blocked pipe cannot
// take is counted and dropped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/json.h"

namespace loopspec::serve {

// What is said about one request when it is over.
struct RequestRecord {
  std::string id, method, path, remote;
  int status = 0;
  double seconds = 0;
  std::string error;  // empty: none

  // Of requests for text.
  bool completion = false;
  bool stream = false;
  std::string outcome;  // stop, length, cancelled, error
  int choices = 0;
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  std::optional<double> first_token_seconds;
  double gamma = 0;
  std::string prompt;  // only when the log is to have it
};

struct LogOptions {
  bool json = false;
  std::string file;               // empty: stderr; -: stdout
  bool prompts = false;           // whether prompt text goes into the log
  size_t queue = 10'000;          // lines that may wait ...
  size_t queue_bytes = 32 << 20;  // ... and their bytes: prompts are long
};

class RequestLog {
 public:
  explicit RequestLog(const LogOptions& options);  // throws Error when the file cannot be opened
  ~RequestLog();                                   // writes what waits, as far as it is taken
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  bool prompts() const { return options_.prompts; }
  void Request(const RequestRecord& record);
  void Event(std::string_view level, std::string_view message);
  int64_t lost() const { return lost_; }
  // Goes on in the file of that name, which may be a new one by now; nothing for standard error.
  void Reopen();

 private:
  void Line(OrderedJson fields);
  void Run();
  void OpenAgain();
  bool WriteWhole(const std::string& line) const;
  bool AwaitRoom() const;

  const LogOptions options_;
  int file_;             // the thread's, once it runs
  bool reopen_ = false;  // asked for
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  size_t waiting_bytes_ = 0;  // of lines_
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> lost_{0};
  std::thread thread_;
};

}  // namespace loopspec::serve

#include "serve/server/request_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "serve/openai/text.h"

namespace loopspec::serve {
namespace {

constexpr int kPollMilliseconds = 100;

std::string Now() {
  const auto now = std::chrono::system_clock::now();
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), millis);
}

std::string Dumped(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// time level message, then key=value; strings are quoted where a reader could mistake their end.
std::string AsText(const OrderedJson& fields) {
  std::string line;
  for (const auto& [key, value] : fields.items()) {
    if (!line.empty()) line += ' ';
    const bool plain =
        value.is_string() && !value.get_ref<const std::string&>().empty() &&
        value.get_ref<const std::string&>().find_first_of(" \t\r\n\"\\=") == std::string::npos;
    if (key == "time" || key == "level" || key == "message") {
      std::string text = Dumped(value);
      line += text.substr(1, text.size() - 2);
    } else {
      const std::string text = Dumped(value);
      line += key + "=" + (plain ? text.substr(1, text.size() - 2) : text);
    }
  }
  return line;
}

// - is standard output, by its number: it may be a socket, which no path opens.
int OpenFile(const std::string& path) {
  if (path == "-") return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

}  // namespace

RequestLog::RequestLog(const LogOptions& options) : options_(options), file_(STDERR_FILENO) {
  if (!options.file.empty()) {
    file_ = OpenFile(options.file);
    if (file_ < 0) Fail("cannot write the log {}: {}", options.file, std::strerror(errno));
  }
  thread_ = std::thread([this] { Run(); });
}

RequestLog::~RequestLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (file_ != STDERR_FILENO) close(file_);
}

void RequestLog::Request(const RequestRecord& record) {
  OrderedJson fields = {{"time", Now()},
                        {"level", record.status >= 500 ? "error" : "info"},
                        {"message", "request"},
                        {"request_id", record.id},
                        {"method", record.method},
                        {"path", record.path},
                        {"remote", record.remote},
                        {"status", record.status},
                        {"seconds", record.seconds}};
  if (record.completion) {
    fields["stream"] = record.stream;
    fields["outcome"] = record.outcome;
    fields["choices"] = record.choices;
    fields["prompt_tokens"] = record.prompt_tokens;
    fields["completion_tokens"] = record.completion_tokens;
    fields["cached_tokens"] = record.cached_tokens;
    if (record.first_token_seconds) fields["first_token_seconds"] = *record.first_token_seconds;
    fields["gamma"] = record.gamma;
    if (options_.prompts) fields["prompt"] = record.prompt;
  }
  if (!record.error.empty()) fields["error"] = record.error;
  Line(std::move(fields));
}

void RequestLog::Event(std::string_view level, std::string_view message) {
  Line({{"time", Now()}, {"level", level}, {"message", message}});
}

void RequestLog::Line(OrderedJson fields) {
  std::string line = Visible(options_.json ? Dumped(fields) : AsText(fields)) + "\n";
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= options_.queue || waiting_bytes_ + line.size() > options_.queue_bytes) {
      ++lost_;
      return;
    }
    waiting_bytes_ += line.size();
    lines_.push_back(std::move(line));
  }
  changed_.notify_one();
}

void RequestLog::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || reopen_ || !lines_.empty(); });
    if (std::exchange(reopen_, false)) {
      lock.unlock();
      OpenAgain();
      lock.lock();
      continue;
    }
    if (lines_.empty()) return;
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    waiting_bytes_ -= line.size();
    lock.unlock();
    const bool written = WriteWhole(line);
    lock.lock();
    if (written) continue;
    ++lost_;
    if (stopping_) return;  // the rest would fare no better
  }
}

void RequestLog::Reopen() {
  if (options_.file.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    reopen_ = true;
  }
  changed_.notify_one();
}

// The old file stays where the new one cannot be opened: somebody may still look there.
void RequestLog::OpenAgain() {
  const int file = OpenFile(options_.file);
  if (file < 0) {
    return Event("error", fmt::format("cannot open the log {} again: {}", options_.file,
                                      std::strerror(errno)));
  }
  close(file_);
  file_ = file;
}

// In pieces that a pipe which has any room takes without blocking.
bool RequestLog::WriteWhole(const std::string& line) const {
  for (size_t at = 0; at < line.size();) {
    if (!AwaitRoom()) return false;
    const size_t piece = std::min<size_t>(line.size() - at, PIPE_BUF);
    const ssize_t written = write(file_, line.data() + at, piece);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

// False when there is none and the process is about to end: a pipe that nobody reads must not hold
// it up.
bool RequestLog::AwaitRoom() const {
  pollfd file{file_, POLLOUT, 0};
  while (poll(&file, 1, kPollMilliseconds) == 0) {
    if (stopping_) return false;
  }
  return true;  // or an error, which the write tells
}

}  // namespace loopspec::serve

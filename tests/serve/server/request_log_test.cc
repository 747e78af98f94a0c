// The log over a pipe that takes nothing: it holds up neither requests nor the end of the process.
#include "serve/server/request_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>

namespace loopspec::serve {
namespace {

using namespace std::chrono_literals;

// A named pipe whose reading end is open and unread until asked for.
class UnreadPipe {
 public:
  UnreadPipe() {
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("loopspec-pipe-{}-{}", getpid(),
                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove(path_);
    made_ = mkfifo(path_.c_str(), 0600) == 0;
    reader_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  }
  ~UnreadPipe() {
    close(reader_);
    std::filesystem::remove(path_);
  }
  bool good() const { return made_ && reader_ >= 0; }
  std::string path() const { return path_.string(); }
  std::string ReadAll() {
    std::string text, piece(1 << 16, '\0');
    for (ssize_t got; (got = read(reader_, piece.data(), piece.size())) > 0;)
      text.append(piece, 0, static_cast<size_t>(got));
    return text;
  }

 private:
  std::filesystem::path path_;
  bool made_ = false;
  int reader_ = -1;
};

TEST(RequestLog, APipeThatNobodyReadsDoesNotHoldUpTheEnd) {
  UnreadPipe pipe;
  ASSERT_TRUE(pipe.good());
  LogOptions options;
  options.file = pipe.path();
  auto log = std::make_unique<RequestLog>(options);
  for (int i = 0; i < 5000; ++i) log->Event("info", "a line that the pipe has no room for");
  std::future<void> end = std::async(std::launch::async, [&] { log.reset(); });
  const bool ended = end.wait_for(10s) == std::future_status::ready;
  EXPECT_TRUE(ended);
  const std::string text = pipe.ReadAll();
  EXPECT_GT(text.size(), 4096u);  // what it took is there
  while (end.wait_for(10ms) != std::future_status::ready) pipe.ReadAll();
}

TEST(RequestLog, LinesThatWaitAreLimitedInBytesToo) {
  UnreadPipe pipe;
  ASSERT_TRUE(pipe.good());
  LogOptions options;
  options.file = pipe.path();
  options.queue_bytes = 1 << 20;
  RequestLog log(options);
  const std::string prompt(100'000, 'x');
  for (int i = 0; i < 100; ++i) log.Event("info", prompt);
  // A tenth waits, one is being written; the rest is counted.
  EXPECT_GE(log.lost(), 80);
  EXPECT_LT(log.lost(), 100);
}

TEST(RequestLog, LongLinesArriveWhole) {
  UnreadPipe pipe;
  ASSERT_TRUE(pipe.good());
  LogOptions options;
  options.file = pipe.path();
  const std::string prompt(300'000, 'y');
  std::string text;
  {
    RequestLog log(options);
    log.Event("info", prompt);
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (text.find("yyy\n") == std::string::npos && std::chrono::steady_clock::now() < limit)
      text += pipe.ReadAll();
    EXPECT_EQ(log.lost(), 0);
  }
  EXPECT_NE(text.find(prompt), std::string::npos);
}

}  // namespace
}  // namespace loopspec::serve

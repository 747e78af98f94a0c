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
#include <thread>

#include "base/json.h"
#include "base/mapped_file.h"
#include "tests/support/temporary_folder.h"

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
  const bool ended = end.wait_for(60s) == std::future_status::ready;
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
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (text.find("yyy\n") == std::string::npos && std::chrono::steady_clock::now() < limit)
      text += pipe.ReadAll();
    EXPECT_EQ(log.lost(), 0);
  }
  EXPECT_NE(text.find(prompt), std::string::npos);
}

std::string TextOf(const std::filesystem::path& path) {
  return std::string(ReadFile(path));
}

// A terminal obeys U+009B, and a bidi override turns what follows it around.
TEST(RequestLog, ShowsWhatWouldHideOrMove) {
  const TemporaryFolder folder;
  for (const bool json : {false, true}) {
    LogOptions options;
    options.json = json;
    options.file = (folder / (json ? "json" : "text")).string();
    RequestRecord record;
    record.path = "/a\u009b31mb\u202egnp.exe\u2066\x7f\x1b[0m\U000E0041";
    record.error = "caf\u00e9 \u20ac \U0001F600";
    {
      RequestLog log(options);
      log.Request(record);
      log.Event("info", "x\u009by");
    }
    const std::string text = TextOf(options.file);
    for (const char* hidden : {"\u009b", "\u202e", "\u2066", "\x7f", "\x1b", "\U000E0041"}) {
      EXPECT_EQ(text.find(hidden), std::string::npos) << text;
    }
    EXPECT_NE(text.find("a\\u009b31mb\\u202egnp.exe\\u2066\\u007f\\u001b[0m\\udb40\\udc41"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(record.error), std::string::npos) << text;  // letters stay letters
    if (json) {
      EXPECT_EQ(Json::parse(text.substr(0, text.find('\n')))["path"], record.path);
    }
  }
}

TEST(RequestLog, GoesOnInANewFileWhenAsked) {
  const TemporaryFolder folder;
  LogOptions options;
  options.file = (folder / "log").string();
  {
    RequestLog log(options);
    log.Event("info", "one");
    while (!std::filesystem::exists(options.file) || TextOf(options.file).empty()) {
      std::this_thread::sleep_for(1ms);
    }
    std::filesystem::rename(options.file, folder / "log.1");
    log.Reopen();
    while (!std::filesystem::exists(options.file)) std::this_thread::sleep_for(1ms);
    log.Event("info", "two");
  }
  EXPECT_NE(TextOf(folder / "log.1").find("one"), std::string::npos);
  EXPECT_EQ(TextOf(folder / "log.1").find("two"), std::string::npos);
  EXPECT_NE(TextOf(options.file).find("two"), std::string::npos);
}

// A folder that is gone: the old file goes on, and says so.
TEST(RequestLog, KeepsTheOldFileWhenThereIsNoNewOne) {
  const TemporaryFolder folder;
  LogOptions options;
  std::filesystem::create_directories(folder / "in");
  options.file = (folder / "in" / "log").string();
  {
    RequestLog log(options);
    std::filesystem::rename(folder / "in", folder / "out");
    log.Reopen();
    log.Event("info", "after");
  }
  const std::string text = TextOf(folder / "out" / "log");
  EXPECT_NE(text.find("after"), std::string::npos);
  EXPECT_NE(text.find("cannot open the log"), std::string::npos);
}

}  // namespace
}  // namespace loopspec::serve

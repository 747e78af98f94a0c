// Runs the built `loopspec` as a child process, as a user would.
#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tests/support/temporary_folder.h"

namespace loopspec::test {

struct RunOptions {
  std::string input;                                             // standard input
  std::vector<std::pair<std::string, std::string>> environment;  // besides a bare one
  std::string folder;                                            // where it runs, unless here
  std::string output_file;             // standard output goes here instead
  bool close_output_early = false;     // the reader leaves after the first bytes
  int signal_after_output = 0;         // sent when the first bytes have come
  double interrupt_after = 0;          // Ctrl-C, these seconds after the program began to catch it
  bool interrupt_after_error = false;  // Ctrl-C when the first bytes are on standard error
  std::string interrupt_at;            // Ctrl-C once standard error has this
  std::function<bool()> interrupt_when;  // asked all the while; Ctrl-C when it says so
  std::function<void()> after_output;    // called when the first bytes have come
  std::function<bool()> kill_when;       // asked all the while; SIGKILL when it says so
  bool gpu = false;             // the program sees the machine's GPUs: else it is the CPU's
  bool error_terminal = false;  // standard error is a terminal
  bool colour = false;          // leave NO_COLOR unset
  size_t file_limit = 0;        // writing more to a file fails, as on a full disk
  double timeout = 300;         // seconds, so that a test that hangs ends
};

// Sanitizers are slow, and machines have other work.
inline RunOptions Patient() {
  RunOptions options;
  options.timeout = 240;
  return options;
}

struct RunResult {
  int code = -1;   // exit code, or -1 when it did not exit by itself
  int signal = 0;  // that ended it
  bool timed_out = false;
  std::string out, err;
  double cpu_seconds = 0;  // of all its threads
  size_t peak_bytes = 0;   // resident

  Json json() const;  // standard output as JSON; an empty object and a failed test when it is none
};

RunResult Call(const std::vector<std::string>& arguments, const RunOptions& options = {});

// What the program has in memory before it does anything: with the CUDA backend built in, mostly
// the libraries that come with it.
size_t BytesAtRest();

// Expects exit code 2, nothing on standard output, and one line on standard error that has all of
// `words` in it.
void ExpectRefusal(const std::vector<std::string>& arguments, const std::vector<std::string>& words,
                   const RunOptions& options = {});
void ExpectRefused(const RunResult& result, const std::vector<std::string>& words);

// The object that `generate --json` prints, after checking that it succeeded.
Json Generate(std::vector<std::string> arguments);
std::vector<int> Ids(const Json& result);

// The prompt of tests that want any story.
inline constexpr const char* kStory = "Once upon a time, there was a";

std::filesystem::path Binary();
std::string OuroDemo();
std::string RavenDemo();
std::string Golden(const std::string& name);

// A folder that goes away with the object.
class Scratch : public TemporaryFolder {
 public:
  std::string operator/(const std::string& name) const { return (path() / name).string(); }
  std::string Write(const std::string& name, const std::string& text) const;
  std::vector<std::string> Names() const;  // of what lies in it, sorted
};

std::string Slurp(const std::filesystem::path& file);

}  // namespace loopspec::test

#include "tests/tools/cli.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/support/temporary_folder.h"

namespace loopspec::test {
namespace {

using Clock = std::chrono::steady_clock;

// The home of all programs that this process calls: empty at first, and nobody else's. What steps
// cost on this machine is kept there by the first of them, as it is for a user.
std::string Home() {
  static const TemporaryFolder home;
  return home.path().string();
}

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Pipe {
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  }
  ~Pipe() {
    for (int& end : ends) Close(end);
  }
  static void Close(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
  int& read_end() { return ends[0]; }
  int& write_end() { return ends[1]; }
  std::array<int, 2> ends = {-1, -1};
};

[[noreturn]] void Become(const std::vector<std::string>& arguments, const RunOptions& options,
                         Pipe& in, Pipe& out, Pipe& err) {
  dup2(in.read_end(), STDIN_FILENO);
  dup2(err.write_end(), STDERR_FILENO);  // a pipe, or the terminal's other side
  int output = out.write_end();
  if (!options.output_file.empty()) output = open(options.output_file.c_str(), O_WRONLY);
  dup2(output, STDOUT_FILENO);
  signal(SIGINT, SIG_DFL);
  if (options.file_limit > 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {options.file_limit, options.file_limit};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  const std::string binary = Binary();
  std::vector<std::string> words = {binary};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> settings = {"LC_ALL=C.UTF-8", "PATH=/usr/bin:/bin"};
  const bool own_home = std::any_of(options.environment.begin(), options.environment.end(),
                                    [](const auto& setting) { return setting.first == "HOME"; });
  if (!own_home) settings.push_back("HOME=" + Home());
  // Most tests are about the CPU: with the usual --device auto they run there on every machine.
  const char* gpus = options.gpu ? std::getenv("CUDA_VISIBLE_DEVICES") : "-1";
  if (gpus != nullptr) settings.push_back(std::string("CUDA_VISIBLE_DEVICES=") + gpus);
  if (!options.colour) settings.push_back("NO_COLOR=1");
  for (const char* sanitizer : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* value = std::getenv(sanitizer); value != nullptr)
      settings.push_back(std::string(sanitizer) + "=" + value);
  }
  for (const auto& [name, value] : options.environment) settings.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& setting : settings) envp.push_back(setting.data());
  envp.push_back(nullptr);
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
  execve(binary.c_str(), argv.data(), envp.data());
  _exit(127);
}

// A terminal in place of a pipe: what is written to one end is read at the other.
void MakeTerminal(Pipe& pipe) {
  Pipe::Close(pipe.read_end());
  Pipe::Close(pipe.write_end());
  if (openpty(&pipe.read_end(), &pipe.write_end(), nullptr, nullptr, nullptr) != 0) std::abort();
  fcntl(pipe.read_end(), F_SETFD, FD_CLOEXEC);
}

// Whether the process has a handler for the signal.
bool Catches(pid_t process, int signal_number) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    return (std::stoull(line.substr(7), nullptr, 16) >> (signal_number - 1) & 1) != 0;
  }
  return false;
}

// Reads what has come. Closes the end when nothing more will.
void Drain(int& end, std::string& text) {
  char block[1 << 16];
  const ssize_t count = read(end, block, sizeof(block));
  if (count > 0) {
    text.append(block, static_cast<size_t>(count));
  } else {
    Pipe::Close(end);
  }
}

// A binary that does not start, for want of a library say, is told once and no test begins: each
// would look for what it has not written.
class BinaryStarts : public testing::Environment {
 public:
  void SetUp() override {
    const RunResult run = Call({"--version"});
    ASSERT_EQ(run.code, 0) << Binary() << " does not start: "
                           << (run.err.empty() ? "it says nothing" : run.err);
  }
};
[[maybe_unused]] const testing::Environment* const kBinaryStarts =
    testing::AddGlobalTestEnvironment(new BinaryStarts);

}  // namespace

std::filesystem::path Binary() {
  return std::filesystem::path(LOOPSPEC_BINARY_DIR) / "bin" / "loopspec";
}

RunResult Call(const std::vector<std::string>& arguments, const RunOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  Home();  // made here, not by the child
  Pipe in, out, err;
  if (options.error_terminal) MakeTerminal(err);
  const auto start = Clock::now();
  const pid_t child = fork();
  if (child == 0) Become(arguments, options, in, out, err);
  Pipe::Close(in.read_end());
  Pipe::Close(out.write_end());
  Pipe::Close(err.write_end());
  RunResult result;
  size_t written = 0;
  bool signalled = false, called = false;
  double caught = 0;
  while (out.read_end() >= 0 || err.read_end() >= 0) {
    if (written == options.input.size()) Pipe::Close(in.write_end());
    std::array<pollfd, 3> waits = {pollfd{out.read_end(), POLLIN, 0},
                                   {err.read_end(), POLLIN, 0},
                                   {in.write_end(), POLLOUT, 0}};
    const bool watched = options.interrupt_after > 0 || options.interrupt_when || options.kill_when;
    poll(waits.data(), waits.size(), watched ? 1 : 100);
    if (waits[0].revents != 0) {
      Drain(out.read_end(), result.out);
    }
    if (waits[1].revents != 0) Drain(err.read_end(), result.err);
    if (waits[2].revents != 0) {
      const ssize_t count = write(in.write_end(), options.input.data() + written,
                                  std::min<size_t>(options.input.size() - written, 4096));
      if (count < 0) {
        Pipe::Close(in.write_end());
      } else {
        written += static_cast<size_t>(count);
      }
    }
    if (options.close_output_early && !result.out.empty()) Pipe::Close(out.read_end());
    if (options.signal_after_output != 0 && !result.out.empty() && !signalled) {
      kill(child, options.signal_after_output);
      signalled = true;
    }
    if (options.after_output && !result.out.empty() && !called) {
      options.after_output();
      called = true;
    }
    if (options.interrupt_after > 0 && caught == 0 && Catches(child, SIGINT)) caught = Since(start);
    if (options.interrupt_after > 0 && caught > 0 &&
        Since(start) > caught + options.interrupt_after && !signalled) {
      kill(child, SIGINT);
      signalled = true;
    }
    if (options.kill_when && !signalled && options.kill_when()) {
      kill(child, SIGKILL);
      signalled = true;
    }
    const bool reached = (!options.interrupt_at.empty() &&
                          result.err.find(options.interrupt_at) != std::string::npos) ||
                         (options.interrupt_when && !signalled && options.interrupt_when());
    if (((options.interrupt_after_error && !result.err.empty()) || reached) && !signalled) {
      kill(child, SIGINT);
      signalled = true;
    }
    if (Since(start) > options.timeout) {
      result.timed_out = true;
      kill(child, SIGKILL);
      break;
    }
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.peak_bytes = static_cast<size_t>(usage.ru_maxrss) * 1024;
  for (const timeval& part : {usage.ru_utime, usage.ru_stime})
    result.cpu_seconds +=
        static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
  return result;
}

size_t BytesAtRest() {
  return Call({"--version"}).peak_bytes;
}

Json RunResult::json() const {
  Json parsed = Json::parse(out, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    ADD_FAILURE() << "not JSON: " << out.substr(0, 400) << "\nstderr: " << err;
    return Json::object();
  }
  return parsed;
}

void ExpectRefused(const RunResult& result, const std::vector<std::string>& words) {
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("loopspec: ")) << result.err;
  for (const std::string& word : words) {
    EXPECT_NE(result.err.find(word), std::string::npos)
        << "no \"" << word << "\" in: " << result.err;
  }
}

void ExpectRefusal(const std::vector<std::string>& arguments, const std::vector<std::string>& words,
                   const RunOptions& options) {
  std::string line;
  for (const std::string& argument : arguments) line += argument.substr(0, 80) + " ";
  SCOPED_TRACE(line);
  ExpectRefused(Call(arguments, options), words);
}

Json Generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "generate");
  arguments.push_back("--json");
  // One thread, unless the test asks: on a busy machine threads wait for each other.
  if (std::find(arguments.begin(), arguments.end(), "--threads") == arguments.end()) {
    arguments.insert(arguments.end(), {"--threads", "1"});
  }
  std::string line;
  for (const std::string& argument : arguments) line += argument.substr(0, 80) + " ";
  SCOPED_TRACE(line);
  const RunResult result = Call(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  if (result.code != 0)
    return {{"token_ids", Json::array()}, {"text", ""}, {"stats", Json::object()}};
  return result.json();
}

std::vector<int> Ids(const Json& result) {
  return result.at("token_ids").get<std::vector<int>>();
}

std::string OuroDemo() {
  return std::string(LOOPSPEC_SOURCE_DIR) + "/models/ouro-demo";
}
std::string RavenDemo() {
  return std::string(LOOPSPEC_SOURCE_DIR) + "/models/raven-demo";
}
std::string Golden(const std::string& name) {
  return std::string(LOOPSPEC_BINARY_DIR) + "/goldens/" + name;
}

std::string Scratch::Write(const std::string& name, const std::string& text) const {
  std::filesystem::create_directories((path() / name).parent_path());
  std::ofstream(path() / name, std::ios::binary) << text;
  return (path() / name).string();
}

std::vector<std::string> Scratch::Names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string Slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace loopspec::test

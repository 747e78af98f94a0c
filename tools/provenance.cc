#include "tools/provenance.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <iterator>

#include "backends/cpu/matmul.h"
#include "commit.h"
#include "hub/pull.h"

namespace loopspec::tools {
namespace {

// As a shell takes it.
std::string Quoted(const std::string& word) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string VersionText() {
  const std::string commit = LOOPSPEC_COMMIT;
  return commit.empty() ? LOOPSPEC_VERSION
                        : fmt::format("{} (commit {})", LOOPSPEC_VERSION, commit);
}

std::string VersionLines() {
  const std::string architectures = LOOPSPEC_CUDA_ARCHITECTURES;
  const char* const server = LOOPSPEC_HAS_SERVER ? "serve" : "no serve";
  return fmt::format("loopspec {}\nbackends: cpu ({}){}\nparts: {}, {}", VersionText(),
                     cpu::ChooseMatMul(DType::kBF16, DType::kBF16).name,
                     architectures.empty() ? "" : fmt::format(", cuda (sm {})", architectures),
                     server, hub::CanPull() ? "pull" : "no pull");
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  gmtime_r(&now, &day);
  return fmt::format("{:04}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::string command;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\0', at), all.size());
    // The program without its folder: reports are passed on, and paths are private.
    command += at == 0 ? "loopspec" : " " + Quoted(all.substr(at, end - at));
    at = end + 1;
  }
  return command;
}

}  // namespace loopspec::tools

#include "experiments/scoring/programs.h"

namespace loopspec::measure {
namespace {

constexpr std::string_view kFence = "```";

// A fence that opens a block stands at the start of a line and names a language or nothing; the
// first fence of an answer that continues a block closes it.
bool Opens(std::string_view answer, size_t fence) {
  const bool text_before =
      answer.substr(0, fence).find_first_not_of(" \t\r\n") != std::string_view::npos;
  const std::string_view info = answer.substr(fence + kFence.size());
  return info.starts_with("python") || info.starts_with("py\n") || !text_before;
}

}  // namespace

std::string ExtractCode(std::string_view answer) {
  const size_t first = answer.find(kFence);
  if (first == std::string_view::npos) return std::string(answer);
  if (!Opens(answer, first)) return std::string(answer.substr(0, first));
  const size_t line_end = answer.find('\n', first);
  if (line_end == std::string_view::npos) return {};
  const std::string_view code = answer.substr(line_end + 1);
  return std::string(code.substr(0, code.find(kFence)));
}

}  // namespace loopspec::measure

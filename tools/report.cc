#include "tools/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/json.h"
#include "tools/progress.h"
#include "tools/word_wrap.h"

namespace loopspec::tools {

OrderedJson StatsJson(const ModelFacts& facts, const std::vector<int>& depths,
                      const Choice& result) {
  const Statistics& s = result.statistics;
  OrderedJson sources = OrderedJson::array(), early = OrderedJson::array();
  for (const Token& token : result.tokens) {
    sources.push_back(token.source);
    early.push_back(token.early);
  }
  OrderedJson histogram = OrderedJson::object();
  for (size_t rows = 0; rows < s.rows_histogram.size(); ++rows) {
    if (s.rows_histogram[rows] > 0) histogram[std::to_string(rows)] = s.rows_histogram[rows];
  }
  const double busy = s.busy_seconds();
  const auto share = [&](double seconds) { return busy > 0 ? seconds / busy : 0.0; };
  return {{"decode", depths.empty() ? "ar" : "loopspec"},
          {"device", facts.device},
          {"compute", facts.compute},
          {"kv_type", facts.kv_type},
          {"depths", depths},
          {"recurrence", facts.recurrence},
          {"prompt_tokens", s.prompt_tokens},
          {"decoded_tokens", s.decoded_tokens},
          {"prefill_seconds", s.prefill_seconds},
          {"first_token_seconds", s.first_token_seconds},
          {"decode_seconds", s.decode_seconds},
          {"tokens_per_second", s.tokens_per_second},
          {"accepted", s.accepted},
          {"fallback", s.fallback},
          {"gamma", s.gamma},
          {"tokens_per_pass", s.tokens_per_pass},
          {"guesses", s.guesses},
          {"guesses_adopted", s.guesses_adopted},
          {"early_tokens", s.early},
          {"gate_evaluated", s.gate_evaluated},
          {"gate_opened", s.gate_opened},
          {"steps", s.recurrences},
          {"rows_mean", s.rows_mean},
          {"rows_peak", s.rows_peak},
          {"rows_histogram", histogram},
          {"time_shares",
           {{"prelude", share(s.prelude_seconds)},
            {"recur", share(s.recur_seconds)},
            {"readout", share(s.readout_seconds)},
            {"host", share(s.host_seconds)}}},
          {"bytes_read", s.bytes_read},
          {"sources", sources},
          {"early", early}};
}

std::string HumanBytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

std::string HumanSeconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string HumanCount(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.1f} M", count / 1e6);
  if (count >= 1e4) return fmt::format("{:.1f} k", count / 1e3);
  return fmt::format("{:.0f}", count);
}

void NoteCut(size_t tokens, const char* by) {
  fmt::print(stderr, "{}\n",
             Wrapped(fmt::format("loopspec: the text was cut after {} tokens ({})", tokens, by)));
}

std::string ExplainFloor(double share) {
  if (share <= 1.0) return "";
  return "over 100 %: part of what is read stays in the caches, which are faster than memory";
}

bool ColourOnStdout() {
  return CanErase(STDOUT_FILENO) && std::getenv("NO_COLOR") == nullptr;
}
bool ColourOnStderr() {
  return CanErase(STDERR_FILENO) && std::getenv("NO_COLOR") == nullptr;
}

std::string SourceColour(int source, bool early) {
  // As on the server's page, from the least computation to the most: blue, cyan, green and olive
  // for drafts, amber for what began early, red for what no draft was right about.
  if (early) return "\033[4;33m";
  constexpr const char* kColours[] = {"91", "94", "36", "32", "33"};
  return fmt::format("\033[{}m",
                     kColours[std::min(static_cast<size_t>(source), std::size(kColours) - 1)]);
}

}  // namespace loopspec::tools

#include "experiments/run_totals.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode/depths.h"

namespace loopspec::experiments {
namespace {

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

double Ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

}  // namespace

void RunTotals::Add(const RunRecord& record) {
  ++runs;
  const auto decoded = static_cast<double>(record.tokens.size());
  times_of_texts[record.item][record.repeat] = {decoded, record.statistics.decode_seconds};
  AddSeconds(times, record.statistics);
  if (record.equal) {
    ++compared;
    equal += *record.equal ? 1 : 0;
  }
  if (record.repeat != 0) return;
  ++texts;
  longest = std::max(longest, record.prompt_tokens + static_cast<int64_t>(record.tokens.size()));
  tokens += static_cast<int64_t>(record.tokens.size());
  first_bytes_read += record.statistics.bytes_read;
  AddCounts(statistics, record.statistics);
  if (!record.correct) return;
  ++answered;
  correct += *record.correct ? 1 : 0;
}

int RunTotals::repeats() const {
  size_t most = 0;
  for (const auto& [text, repeats] : times_of_texts) most = std::max(most, repeats.size());
  return static_cast<int>(most);
}

SpecFigures FiguresOf(const RunTotals& totals, const RunTotals& baseline,
                      std::span<const int> depths, int recurrence, double bandwidth) {
  SpecFigures f;
  const std::vector<double> rates = RatesOf(totals.times_of_texts);
  if (rates.empty()) return f;
  const Statistics& s = totals.statistics;
  f.rate = Median(rates);
  f.rate_low = *std::min_element(rates.begin(), rates.end());
  f.rate_high = *std::max_element(rates.begin(), rates.end());
  f.speedup = SpeedupOf(totals.times_of_texts, baseline.times_of_texts);
  if (&totals != &baseline) f.spread = SpreadOf(totals.times_of_texts, baseline.times_of_texts);
  f.texts = totals.texts;
  f.tokens = totals.tokens;
  f.repeats = totals.repeats();
  f.gamma = Gamma(s.accepted, s.fallback, depths, recurrence);
  f.tokens_per_pass = Share(totals.tokens * recurrence, s.recurrences);
  for (const int64_t accepted : s.accepted) f.accepted.push_back(Share(accepted, totals.tokens));
  f.fallback = Share(s.fallback, totals.tokens);
  if (s.gate_evaluated > 0) f.gate = Share(s.gate_opened, s.gate_evaluated);
  if (s.guesses > 0) f.adopted = Share(s.guesses_adopted, s.guesses);
  f.early = Share(s.early, totals.tokens);
  f.rows_mean = s.rows_mean;
  f.rows_peak = s.rows_peak;
  const Statistics& t = totals.times;
  if (bandwidth > 0) f.floor_share = Ratio(t.bytes_read / bandwidth, t.busy_seconds());
  const auto per_token = [](const RunTotals& r) {
    return Ratio(r.first_bytes_read, static_cast<double>(r.tokens));
  };
  f.memory_allows = Ratio(per_token(baseline), per_token(totals));
  f.acceptance_share = depths.empty() ? 1.0 : f.gamma * depths[0] / recurrence;
  f.schedule_share = Ratio(f.tokens_per_pass, f.gamma);
  return f;
}

std::string SpecFigures::Verdict(const std::string& baseline_name) const {
  const double kernels = floor_share.value_or(1.0);
  if (baseline_name.empty()) {
    if (!floor_share) return "";
    return fmt::format("reads weights, keys and values at {:.0f} % of the memory's speed",
                       100 * kernels);
  }
  if (!Enough() || !(memory_allows > 0))
    return fmt::format("{} tokens are too few for a speedup, expected {} or more", tokens,
                       kLeastTokens);
  if (!Significant())
    return fmt::format(
        "{:.2f}x as fast as {}, from {:.2f}x to {:.2f}x: not significant; more texts, or a machine "
        "with nothing else to do, would tell more",
        speedup, baseline_name, spread->low, spread->high);
  std::string text = fmt::format(
      "{:.2f}x as fast as {}; if reading memory were all that takes time it would be {:.2f}x",
      speedup, baseline_name, memory_allows);
  if (speedup > memory_allows)
    return text + ", which caches beat, since part of what is read stays in them";
  const double least = std::min({kernels, acceptance_share, schedule_share});
  if (least >= 0.97) return text;
  return text + (least == kernels ? "; most of the rest is time in the kernels beside reading"
                 : least == acceptance_share
                     ? "; most of the rest is lost to drafts that are not accepted"
                     : "; most of the rest is lost to the schedule: branches that wait or are not "
                       "begun");
}

}  // namespace loopspec::experiments

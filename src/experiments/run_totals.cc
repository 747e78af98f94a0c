#include "experiments/run_totals.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode/depths.h"

namespace loopspec::measure {
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
  seconds[record.repeat] += record.times.decode;
  counted[record.repeat] += std::max(0.0, static_cast<double>(record.tokens.size()) - 1);
  Accumulate(times, record.times);
  bytes_read += record.bytes_read;
  if (record.equal) {
    ++compared;
    equal += *record.equal ? 1 : 0;
  }
  if (record.repeat != 0) return;
  tokens += static_cast<int64_t>(record.tokens.size());
  first_bytes_read += record.bytes_read;
  Accumulate(statistics, record.statistics);
  if (!record.correct) return;
  ++answered;
  correct += *record.correct ? 1 : 0;
}

std::vector<double> RunTotals::Rates() const {
  std::vector<double> rates;
  for (const auto& [repeat, time] : seconds) rates.push_back(Ratio(counted.at(repeat), time));
  return rates;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

WayFigures FiguresOf(const RunTotals& totals, const RunTotals& baseline,
                     std::span<const int> depths, int recurrence, double bandwidth) {
  WayFigures f;
  const std::vector<double> rates = totals.Rates();
  if (rates.empty()) return f;
  const DecodeStatistics& s = totals.statistics;
  f.rate = Median(rates);
  f.rate_low = *std::min_element(rates.begin(), rates.end());
  f.rate_high = *std::max_element(rates.begin(), rates.end());
  f.speedup = Ratio(f.rate, Median(baseline.Rates()));
  f.gamma = Gamma(s.accepted, s.fallback, depths, recurrence);
  f.tokens_per_pass = Share(totals.tokens * recurrence, s.steps);
  for (const int64_t accepted : s.accepted) f.accepted.push_back(Share(accepted, totals.tokens));
  f.fallback = Share(s.fallback, totals.tokens);
  if (s.gate_evaluated > 0) f.gate = Share(s.gate_opened, s.gate_evaluated);
  if (s.guesses > 0) f.adopted = Share(s.adopted, s.guesses);
  f.early = Share(s.early, totals.tokens);
  f.rows_mean = s.rows_mean();
  f.rows_peak = s.rows_peak;
  const RequestTimes& t = totals.times;
  const double busy = t.prelude + t.recur + t.readout + t.host;
  if (bandwidth > 0) f.floor_share = Ratio(totals.bytes_read / bandwidth, busy);
  const auto per_token = [](const RunTotals& r) {
    return Ratio(r.first_bytes_read, static_cast<double>(r.tokens));
  };
  f.memory_allows = Ratio(per_token(baseline), per_token(totals));
  f.acceptance_share = depths.empty() ? 1.0 : f.gamma * depths[0] / recurrence;
  f.schedule_share = Ratio(f.tokens_per_pass, f.gamma);
  return f;
}

std::string WayFigures::Verdict(bool baseline) const {
  const double kernels = floor_share.value_or(1.0);
  if (baseline) {
    if (!floor_share) return "";
    return fmt::format("reads at {:.0f} % of the memory's speed", 100 * kernels);
  }
  std::string text = fmt::format("memory allows {:.2f}x over the first way", memory_allows);
  if (memory_allows > 0)
    text += fmt::format(", {:.2f} of that is reached", speedup / memory_allows);
  const double least = std::min({kernels, acceptance_share, schedule_share});
  if (least >= 0.97) return text;
  return text + (least == kernels            ? "; most is lost in the kernels"
                 : least == acceptance_share ? "; most is lost by drafts that are not accepted"
                                             : "; most is lost by the schedule: rows that wait or "
                                               "are left out");
}

}  // namespace loopspec::measure

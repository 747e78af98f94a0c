// Records added up: what a way of decoding showed over all its texts, and the figures that reports
// give for it.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "experiments/run_record.h"
#include "experiments/speed_interval.h"

namespace loopspec::experiments {

struct RunTotals {
  int64_t runs = 0;   // over all repeats
  int64_t texts = 0;  // different ones
  TextTimes times_of_texts;
  // Of the first repeat: the others decode the same again.
  int64_t tokens = 0;
  Statistics statistics;  // counts alone
  double first_bytes_read = 0;
  int64_t longest = 0;                // positions of the longest text, its prompt included
  int64_t compared = 0, equal = 0;    // texts, over all repeats
  int64_t answered = 0, correct = 0;  // texts of the first repeat
  // Over all repeats.
  Statistics times;  // seconds and bytes read alone

  void Add(const RunRecord& record);
  int repeats() const;
};

// Fewer tokens than these say nothing about a speed: no ratio is given.
inline constexpr int64_t kLeastTokens = 200;

// The figures of one way of decoding beside the baseline's.
struct SpecFigures {
  double rate = 0, rate_low = 0, rate_high = 0;  // tokens per second: median, smallest, largest
  double speedup = 0;                            // over the baseline
  std::optional<SpeedSpread> spread;             // of the speedup, over texts and repeats
  int64_t texts = 0, tokens = 0;                 // that were decoded, of one repeat
  int repeats = 0;
  double gamma = 0;               // the paper's formula: from accepted proposals alone
  double tokens_per_pass = 0;     // per R recurrences as they happened
  std::vector<double> accepted;   // shares of tokens by proposal
  double fallback = 0;            // share of the rest
  std::optional<double> gate;     // share of later readouts whose gate opened
  std::optional<double> adopted;  // share of guesses that the draft confirmed
  double early = 0;               // share of tokens whose branch had started on a guess
  double rows_mean = 0;
  int rows_peak = 0;
  // Time that reading alone takes over the time of the steps; nothing where the bandwidth is
  // unknown.
  std::optional<double> floor_share;
  // How much faster than the baseline reading alone would let it be: the baseline's bytes per
  // token over its own.
  double memory_allows = 0;
  double acceptance_share = 0;  // gamma over its bound R / d1
  double schedule_share = 0;    // tokens per pass over gamma

  // Whether there are tokens enough for a speed to mean anything.
  bool Enough() const { return tokens >= kLeastTokens; }
  // Whether the spread of the speedup leaves out 1: else it may be noise alone.
  bool Significant() const { return !spread || spread->low > 1 || spread->high < 1; }
  // How near the speedup is to what the memory would allow, and what costs most of the rest, in one
  // sentence. `baseline_name`: what the speedup is over; empty for the baseline itself.
  std::string Verdict(const std::string& baseline_name) const;
};

SpecFigures FiguresOf(const RunTotals& totals, const RunTotals& baseline,
                      std::span<const int> depths, int recurrence, double bandwidth);

}  // namespace loopspec::experiments

// What `loopspec bench` shows: one table in four forms.
#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "experiments/run_totals.h"

namespace loopspec::experiments {

// One decoding spec.
struct BenchSpec {
  std::string name;  // as it was given
  std::vector<int> depths;
  std::string sampler;          // "greedy", "cascade", "coupled"
  std::string second_proposal;  // "gated", "residual", "non-residual"
  bool comparable = false;      // its tokens must be those of the first one of its sampler
  RunTotals totals;
};

struct BenchResult {
  std::string model, device, chip, compute;
  std::string kv_type;  // how keys and values were kept: "bf16", "loops:int8*8,last@64"
  // The weights: size, element type and their SHA-256, which is worked out for pages alone.
  int64_t parameters = 0;
  std::string dtype, weights;
  int threads = 0;  // of a CPU
  uint64_t seed = 0;
  std::string version, date, command;
  std::string what;        // what was decoded: "8 prompts of p.txt", "task gsm8k_cot"
  std::string simulation;  // assumed rates; empty: the model decided
  int recurrence = 1;
  int cells = 256;       // branches alive at once
  double bandwidth = 0;  // bytes per second that memory gives; 0: unknown
  size_t prompts = 0;
  int repeats = 1;
  bool interrupted = false;
  std::vector<BenchSpec> specs;  // that were run; the first is the baseline

  SpecFigures Figures(const BenchSpec& spec) const;
};

OrderedJson BenchJson(const BenchResult& result);
// A line of names and one for each way of decoding.
std::string BenchCsv(const BenchResult& result);
std::string BenchTable(const BenchResult& result);
std::string BenchHtml(const BenchResult& result);

// Why reading faster than memory is no mistake; nothing for shares up to 1.
std::string ExplainShare(double share);

}  // namespace loopspec::experiments

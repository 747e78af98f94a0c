// The texts that `loopspec bench` decodes: a file of prompts, a benchmark task, made ones, or its
// own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/load/loaded_model.h"
#include "experiments/measurement.h"
#include "fields/max_tokens.h"

namespace loopspec::tools {

struct BenchSource {
  std::string prompts;           // a file
  std::string task, benchmarks;  // or a task
  int prompt_tokens = 0;         // or made ones of this length
  std::optional<int> shots;      // of a task
  int limit = 0;                 // 0: all
  bool chat = false;             // in the model's chat template
  std::vector<std::string> template_args, stop;
  std::optional<int> max_tokens;  // else the task's, or kBenchTokens
  std::optional<int> max_length;  // of prompt and answer; longer prompts lose their beginning
};

inline constexpr int kBenchTokens = kDefaultTokens;  // as everywhere

struct BenchJobs {
  std::vector<experiments::MeasuredJob> jobs;
  int max_tokens = kBenchTokens;
  std::vector<std::string> stop;
  std::string what;  // "8 prompts of p.txt"
  std::string note;  // what reports must say about the prompts; usually nothing

  size_t longest_prompt() const;
};

// All of them, checked before any runs: an error names the file and the line. Throws Error.
BenchJobs MakeBenchJobs(const BenchSource& source, const LoadedModel& loaded);

}  // namespace loopspec::tools

// Several decoding specs over the same prompts, interleaved, so that a slow moment of the machine
// does not always meet the same one. Every finished text is recorded at once; what is recorded
// already is not run again.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "experiments/run_record.h"
#include "experiments/tasks/tasks.h"
#include "loopspec/engine.h"

namespace loopspec::experiments {

// One decoding spec: how a text is decoded.
struct MeasuredSpec {
  std::string name;
  Request request;           // all but the prompt
  Engine* engine = nullptr;  // that runs it
  // Specs of the same non-empty word must decode the same tokens: the first of them is run
  // first and the others are compared with it.
  std::string same_text = {};
};

struct MeasuredJob {
  std::string item;
  std::vector<int32_t> tokens;             // the prompt
  uint64_t seed = 0;                       // added to the request's
  std::optional<std::string> answer = {};  // expected behind the last "####" of the text
};

struct Measurement {
  std::string group;
  std::vector<MeasuredSpec> specs;
  std::vector<MeasuredJob> jobs;
  int repeats = 1;
  std::vector<std::string> stop;  // strings that end a text
};

// All finished runs by name, and where they are written.
class Records {
 public:
  using Sink = std::function<void(const RunRecord&)>;
  explicit Records(Sink sink = {}) : sink_(std::move(sink)) {}

  // A run that was finished before: not written again.
  void Restore(RunRecord record);
  void Add(RunRecord record);
  const RunRecord* Find(const std::string& key) const;
  // In the order in which they were finished.
  const std::vector<RunRecord>& all() const { return all_; }

 private:
  Sink sink_;
  std::vector<RunRecord> all_;
  std::map<std::string, size_t> by_key_;
};

struct MeasureHooks {
  std::function<bool()> interrupted = [] { return false; };
  // Called before each run and after the last, with what is done of all, found ones included.
  std::function<void(int64_t done, int64_t total)> progress = [](int64_t, int64_t) {};
};

// The number of runs that a measurement consists of, and how many of them are recorded.
int64_t CountRuns(const Measurement& measurement);
int64_t CountDone(const Measurement& measurement, const Records& records);

// Runs what is missing. False when interrupted: the text in work is dropped, the others are kept.
// Throws Error.
bool RunMeasurement(const Measurement& measurement, const MeasureHooks& hooks, Records& records);

// Prompts longer than max_length - 1 - max_tokens lose their beginning, as the paper's authors cut
// them.
void CutPrompt(int max_length, int max_tokens, std::vector<int32_t>& tokens);

}  // namespace loopspec::experiments

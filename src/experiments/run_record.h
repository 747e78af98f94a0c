// What one decoded text showed, as measurements keep it: one line of JSON each, so that a run can
// be taken up again after a break.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "loopspec/token.h"

namespace loopspec::experiments {

struct RunRecord {
  // Which run it was: these four are its name.
  std::string group;  // what is compared with each other: task and sampling of an experiment
  std::string way;    // of decoding
  std::string item;   // prompt
  int repeat = 0;

  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;  // as decoded
  std::string finish;           // "stop", "length"
  Statistics statistics;        // counts, seconds and bytes read
  // Whether the tokens are those of the group's first way of decoding, where they must be: greedy
  // decoding and the coupled sampler.
  std::optional<bool> equal;
  std::optional<bool> correct;  // where the expected answer is known
  std::string text;             // up to the stop string

  std::string Key() const;
};

OrderedJson ToJson(const RunRecord& record);
// Throws Error naming what is missing or wrong; `what` names the source.
RunRecord ParseRunRecord(const Json& json, const std::string& what);

// Counts, which every repeat of a run has in common, and seconds with bytes read, which it has not.
void AddCounts(Statistics& sum, const Statistics& add);
void AddSeconds(Statistics& sum, const Statistics& add);

}  // namespace loopspec::experiments

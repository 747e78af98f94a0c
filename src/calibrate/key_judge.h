// What plans of keys change in what a model says, against exact keys and beside int8 ones.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "calibrate/key_reader.h"
#include "kv/key_plan.h"

namespace loopspec {

using TokenTexts = std::vector<std::vector<int32_t>>;

struct JudgedKeys {
  KeyPlan plan;
  double agreed = 0;      // share of positions with the likeliest token of exact keys
  double distance = 0;    // mean total variation distance from exact keys
  double added = 0;       // the same from int8 keys: what the plan adds to them
  double perplexity = 0;  // of the texts' own next tokens
  double gamma = 0;       // of greedy drafts at the readout depths
};

struct KeyJudgement {
  int64_t positions = 0;
  double perplexity = 0, gamma = 0;  // with exact keys
  JudgedKeys int8;
  std::vector<JudgedKeys> plans = {};  // in the order in which they were given
};

// Reads every text exactly, with int8 keys and by every plan. `progress` is called with the
// positions that were read, of all that will be.
KeyJudgement JudgePlans(KeyReader& reader, const TokenTexts& texts,
                        const std::vector<KeyPlan>& plans, int span,
                        const std::function<void(int64_t done, int64_t total)>& progress = {});

// Whether a plan is as good as int8: what it adds to int8's error is no more than that error, and
// both together are at most 1.3 times it.
bool AsGoodAsInt8(const KeyJudgement& judgement, const JudgedKeys& judged);

// The plan of fewest bytes that is as good as int8; of equal ones the nearest to exact keys. Null:
// none is.
const JudgedKeys* ProposePlan(const KeyJudgement& judgement, const ModelSpec& spec, int readouts);

}  // namespace loopspec

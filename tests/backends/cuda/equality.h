// LoopSpec against autoregressive decoding on one backend, greedy and coupled texts in turn: the
// same tokens, and the logits that verify them the same bits.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "calibrate/agreement.h"

namespace loopspec {

struct EqualityRequest {
  std::filesystem::path folder;
  int tokens = 1000;   // to compare for each set of depths
  int text = 400;      // tokens of one text at most; the next one starts from another prompt
  double seconds = 0;  // stop at the end of a text when this is over; 0: never
  KvType kv_type = KvType::kCompute;
  std::string key_plan;                      // with kLoops: "int8*8,last@64"
  std::vector<std::vector<int>> depth_sets;  // empty: EqualityDepths of the model
};

struct EqualityResult {
  struct Set {
    std::vector<int> depths;
    int max_rows = 0;
    int64_t tokens = 0, equal_tokens = 0, equal_logits = 0;
    int64_t drafted = 0;  // tokens that came from a draft
    int64_t steps = 0;    // recurrences
  };
  std::vector<Set> sets;
  int texts = 0;
  int64_t tokens = 0;  // of autoregressive decoding
  int64_t autoregressive_steps = 0;
  std::string first_difference;  // empty: none
  bool out_of_time = false;

  bool equal() const { return first_difference.empty() && tokens > 0; }
};

// Depth sets worth comparing for a model of depth R: one, two and three proposals, dividing R or
// not.
std::vector<std::vector<int>> EqualityDepths(int recurrence);

// Throws Error when the checkpoint cannot be run.
EqualityResult CompareDecoders(const EqualityRequest& request, const BackendMaker& make_backend);

}  // namespace loopspec

// One choice of a submission, as the scheduler keeps it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/timer.h"
#include "decode/loopspec.h"
#include "engine/schedule/prefix_cache.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/token_stream.h"
#include "loopspec/request.h"

namespace loopspec {

struct Sequence {
  uint64_t submission = 0;  // in order of arrival
  uint64_t tenant = 0;      // who asks
  double weight = 1;        // of the tenant
  int priority = 0;         // within it
  int choice = 0;
  DecodeRequest request;
  int prompt_logprobs = -1;
  OnLogits on_logits;
  bool score_only = false;
  bool report_prefill = false;  // and then ...
  int part = kPageSize;         // ... so many positions of the prompt come next
  std::shared_ptr<TokenStream> stream;

  Stage stage = Stage::kWaiting;
  std::unique_ptr<LoopSpec> decoder;  // from admission on
  PagePlanes reads;                   // planes that its text depends on
  PagePlanes prompt_planes;           // that its pages of the prompt hold, prefilled or found
  int64_t prefilled = 0;              // positions of the prompt that lie in KV pages
  int64_t committed = 0;              // positions that do, the prompt's included
  std::vector<PromptLogprob> scores;
  size_t reported = 0;             // tokens that the stream has
  size_t traced = 0;               // events of the branches that it has, where they are asked for
  std::vector<std::byte> swapped;  // keys and values, while preempted
  size_t first_readout = 0;        // in the step at hand

  Timer waited;    // since submission
  Timer admitted;  // since admission
  Timer decoded;   // since the prompt was read
  ChoiceResult result;

  // Every position of the prompt is computed here, none taken from the cache.
  bool scored() const { return prompt_logprobs >= 0 || on_logits; }
  bool running() const { return stage == Stage::kPrefill || stage == Stage::kDecode; }
  // Planes that pages of the answer hold where tokens were decided without drafts.
  PagePlanes undrafted_planes() const {
    PagePlanes planes = reads;
    if (!planes.readouts.empty()) planes.readouts = {planes.readouts.back()};
    return planes;
  }
  // Positions that are still to be computed, at most.
  int64_t work_left() const {
    return std::ssize(to_prefill()) - prefilled + request.max_tokens -
           static_cast<int64_t>(reported);
  }
  // The prompt without its last token, which is the first branch.
  std::span<const int32_t> to_prefill() const {
    return std::span(request.prompt).first(request.prompt.size() - 1);
  }
};

// All that have not ended, the oldest first.
using Sequences = std::vector<std::unique_ptr<Sequence>>;

inline int CountRunning(const Sequences& sequences) {
  return static_cast<int>(std::count_if(sequences.begin(), sequences.end(),
                                        [](const auto& sequence) { return sequence->running(); }));
}

}  // namespace loopspec

// One choice of a request, as the scheduler keeps it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/timer.h"
#include "decode/loopspec.h"
#include "engine/pages/prefix_cache.h"
#include "engine/schedule/schedule.h"
#include "engine/token_stream.h"

namespace loopspec {

struct Sequence {
  std::shared_ptr<const ResolvedRequest> request;  // shared with the other choices of it
  int choice = 0;
  uint64_t submission = 0;  // in order of arrival
  std::shared_ptr<TokenStream> stream;
  std::shared_ptr<DecodeObserver> observer;  // keeps its statistics

  Stage stage = Stage::kWaiting;
  int tenant = 0;                     // its place in Tenants
  int64_t last_token = 0;             // the step that gave it its last token
  std::unique_ptr<LoopSpec> decoder;  // from admission on
  PagePlanes reads;                   // planes that its text depends on
  PagePlanes prompt_planes;           // that its pages of the prompt hold, prefilled or found
  int64_t prefilled = 0;              // positions of the prompt that lie in KV pages
  // Where others read on otherwise after the same beginning, so the next shall hit there; 0:
  // nowhere.
  int64_t fork = 0;
  int64_t committed = 0;  // positions that do, the prompt's included
  int part = kPageSize;   // positions of the prompt that come next, where progress is told
  std::vector<Token> scores;
  bool scores_told = false;        // the stream has them
  size_t reported = 0;             // tokens that the stream has
  std::vector<std::byte> swapped;  // keys and values, while preempted
  size_t first_readout = 0;        // in the step at hand

  Timer waited;    // since submission
  Timer admitted;  // since admission
  Timer decoded;   // since the prompt was read

  Statistics& statistics() { return observer->statistics(); }
  // What is asked about the prompt is told by the first choice alone.
  std::optional<int> prompt_logprobs() const {
    return choice == 0 ? request->prompt_logprobs : std::nullopt;
  }
  bool wants_logits() const { return choice == 0 && request->on_logits; }
  bool tells_progress() const { return choice == 0 && request->progress; }
  // Every position of the prompt is computed here, none taken from the cache.
  bool scored() const { return prompt_logprobs() || wants_logits(); }
  bool score_only() const { return request->max_tokens == 0; }
  bool running() const { return stage == Stage::kPrefill || stage == Stage::kDecode; }
  // Planes that pages of the answer hold where tokens were decided without drafts.
  PagePlanes undrafted_planes() const {
    PagePlanes planes = reads;
    if (!planes.readouts.empty()) planes.readouts = {planes.readouts.back()};
    return planes;
  }
  // Positions that are still to be computed, at most.
  int64_t work_left() const {
    return std::ssize(to_prefill()) - prefilled + request->max_tokens -
           static_cast<int64_t>(reported);
  }
  // The prompt without its last token, which is the first branch.
  std::span<const int32_t> to_prefill() const {
    return std::span(request->prompt).first(request->prompt.size() - 1);
  }
};

// All that have not ended, the oldest first.
using Sequences = std::vector<std::unique_ptr<Sequence>>;

inline int CountRunning(const Sequences& sequences) {
  return static_cast<int>(std::count_if(sequences.begin(), sequences.end(),
                                        [](const auto& sequence) { return sequence->running(); }));
}

}  // namespace loopspec

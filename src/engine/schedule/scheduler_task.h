// The scheduler's own account of one choice of a submission.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/timer.h"
#include "decode/loopspec.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/token_stream.h"

namespace loopspec {

struct Scheduler::Task {
  enum class Stage { kQueued, kPrefill, kDecode, kAside, kEnded };

  uint64_t submission;  // in order of arrival
  int choice;
  DecodeRequest request;
  int prompt_logprobs;
  bool score_only;
  bool report_prefill;   // and then ...
  int part = kPageSize;  // ... so many positions of the prompt come next
  std::shared_ptr<TokenStream> stream;

  Stage stage = Stage::kQueued;
  std::unique_ptr<LoopSpec> decoder;  // from admission on
  int64_t prefilled = 0;              // positions of the prompt that lie in pages
  int64_t committed = 0;              // positions that do, the prompt's included
  int64_t last_chunk = 0;             // turn of its last chunk, or the one before its admission
  std::vector<PromptLogprob> scores;
  size_t reported = 0;           // tokens that the stream has
  size_t traced = 0;             // events of the branches that it has, where they are asked for
  std::vector<std::byte> saved;  // keys and values, when set aside
  size_t first_readout = 0;      // in the step at hand

  Timer waited;    // since submission
  Timer admitted;  // since admission
  Timer decoded;   // since the first token
  ChoiceResult result;

  // The prompt without its last token, which is the first branch.
  std::span<const int32_t> to_prefill() const {
    return std::span(request.prompt).first(request.prompt.size() - 1);
  }
  bool OlderThan(const Task& other) const {
    return submission != other.submission ? submission < other.submission : choice < other.choice;
  }
};

}  // namespace loopspec

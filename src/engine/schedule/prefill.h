// Chunked prefill: prompts are computed in chunks, one at a time, between steps or beside one.
#pragma once

#include <cstdint>

#include "backends/backend.h"
#include "base/timer.h"
#include "engine/pages/kv_pages.h"
#include "engine/schedule/sequence.h"

namespace loopspec {

class Prefill {
 public:
  // `chunk`: positions at most.
  Prefill(Backend& backend, KvPages& pages, int chunk)
      : backend_(backend), pages_(pages), chunk_(chunk) {}

  // Begins the next chunk of a prompt. Another prompt that begins alike may have come further since
  // this one was admitted: what is cached by now is taken first, and may be all of it. Throws what
  // makes this sequence impossible.
  void Begin(Sequence& sequence);
  // Whose chunk is in flight; null when none is.
  Sequence* sequence() const { return sequence_; }
  double seconds() const { return timer_.Seconds(); }  // since the last chunk was begun
  bool Done();                                         // whether Finish would return at once
  void Finish();                                       // waits; throws as Begin

 private:
  void EndOfPrompt(Sequence& sequence);

  Backend& backend_;
  KvPages& pages_;
  const int chunk_;
  Sequence* sequence_ = nullptr;
  Ticket ticket_ = 0;
  int64_t end_ = 0;  // of the chunk, in the prompt
  Timer timer_;      // since it was begun
};

}  // namespace loopspec

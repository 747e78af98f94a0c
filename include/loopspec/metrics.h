// Where an engine stands, for people and for metrics.
#pragma once

#include <cstdint>
#include <vector>

namespace loopspec {

// Counts run from the start. A sequence is one choice of a request.
struct EngineMetrics {
  int waiting = 0, prefilling = 0, decoding = 0, preempted = 0;  // sequences now
  int pages = 0, pages_free = 0, pages_cached = 0;  // of KV; cached ones may be in use too
  int page_positions = 0;                           // of one page
  int64_t page_bytes = 0;                           // of one page, on all its planes
  int64_t unread_bytes = 0;                         // of tokens that no reader has taken
  int pages_evictable = 0;                          // cached ones that no sequence uses
  int cells = 0, cells_free = 0;                    // which hold branches
  int64_t steps = 0, rows = 0;                      // steps made, branches in them
  std::vector<int64_t> steps_by_rows;               // [n]: steps that had n rows
  int64_t prompt_tokens = 0, cached_tokens = 0, decoded_tokens = 0;
  int64_t finished = 0, cancelled = 0, failed = 0;  // sequences
  int64_t preemptions = 0;
  // Of sequences that have ended.
  std::vector<int64_t> accepted;  // decoded tokens by proposal
  int64_t fallback = 0;           // tokens decided without an accepted draft
  int64_t early = 0;              // tokens whose computation had begun on a guess
  int64_t drafted = 0;            // drafts made, whether or not they were used
};

}  // namespace loopspec

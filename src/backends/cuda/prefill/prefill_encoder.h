// Turns parts of prompts into what the kernels read: rows in chunks of bounded size, the tiles of
// their attention, the pages they lie in. Host code that needs no GPU.
#pragma once

#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/prefill/prefill_plan.h"
#include "kv/kept_planes.h"

namespace loopspec::cuda {

// Rows that go through the model together: ranges of the lists of EncodedPrompt.
struct PromptChunk {
  int row = 0, rows = 0;
  int tile = 0, tiles = 0;
  int tail = 0, tails = 0;
  int stored = 0, stored_pages = 0;
  int far = 0, far_pages = 0;
  int recurrences = 0;  // depths of B that its rows go through; 0: all of them
};

struct EncodedPrompt {
  std::vector<PromptChunk> chunks;
  std::vector<PromptRow> rows;
  std::vector<AttentionTile> tiles;  // of each chunk, those with most keys first
  std::vector<PageTail> tails;
  std::vector<int32_t> pages;
  // With int8 keys: what lies before each chunk, and the numbers 0, 1, ... of `pages`, which are
  // the pages of PromptMemory.
  std::vector<StoredPage> stored;
  std::vector<int32_t> numbers;
  // By a plan of keys: what lies before each chunk's window, read by the plan; the pages of windows
  // that belong to `pages`, [KeptPlanes::pages_per_turn()][pages]; and `numbers` goes on with lists
  // for queries of the second span of a chunk, to which a part of `pages` lies before the window.
  std::vector<StoredPage> far;
  std::vector<int32_t> windows;
};

// `rows`: of a chunk at most. Tokens must be below `vocab`, pages below memory.page_count. `kept`:
// where planes lie, with int8 keys; null without. Parts that share a chunk go as deep as the
// deepest of them: what is beyond a part's own depth is read by nobody. By a plan of keys the
// chunks of a sequence are of two spans at most, since queries of a third would read the last loop
// of the first.
EncodedPrompt EncodePrompt(std::span<const PrefillPlan> parts, const PromptMemory& memory, int rows,
                           int vocab, const KeptPlanes* kept = nullptr);

}  // namespace loopspec::cuda

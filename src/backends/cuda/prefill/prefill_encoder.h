// Turns parts of prompts into what the kernels read: rows in chunks of bounded size, the tiles of
// their attention, the pages they lie in. Host code that needs no GPU.
#pragma once

#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/prefill/prefill_plan.h"

namespace loopspec::cuda {

// Rows that go through the model together: ranges of the lists of EncodedPrompt.
struct PromptChunk {
  int row = 0, rows = 0;
  int tile = 0, tiles = 0;
  int tail = 0, tails = 0;
  int stored = 0, stored_pages = 0;
};

struct EncodedPrompt {
  int recurrences = 0;  // depths of B that its rows go through; set by who knows the model
  std::vector<PromptChunk> chunks;
  std::vector<PromptRow> rows;
  std::vector<AttentionTile> tiles;  // of each chunk, those with most keys first
  std::vector<PageTail> tails;
  std::vector<int32_t> pages;
  // With int8 keys: what lies before each chunk, and the numbers 0, 1, ... of `pages`, which are
  // the pages of PromptMemory.
  std::vector<StoredPage> stored;
  std::vector<int32_t> numbers;
};

// `rows`: of a chunk at most. Tokens must be below `vocab`, pages below memory.page_count.
EncodedPrompt EncodePrompt(std::span<const PrefillPlan> parts, const PromptMemory& memory, int rows,
                           int vocab, bool int8_keys = false);

}  // namespace loopspec::cuda

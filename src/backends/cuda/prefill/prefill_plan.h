// What the kernels of a prompt read about it: its rows, the tiles of its attention, and where the
// model's keys and values lie. Rows of several sequences follow each other without gaps; nothing
// that is computed for one depends on where it stands.
#pragma once

#include <cstdint>

#include "backends/cuda/host/device_model.h"

namespace loopspec::cuda {

// Positions of a tile of queries or keys of attention; a tile begins at a multiple of them.
inline constexpr int kAttentionTile = 128;

// One position of a prompt.
struct alignas(16) PromptRow {
  int64_t place;  // of its page and slot in PromptMemory, in elements: plane 0, head 0
  int32_t position;
  int32_t token;
};

// The queries of one sequence at positions [tile * kAttentionTile, ...), as far as they are there.
struct AttentionTile {
  int32_t tile;
  int32_t row;          // where the tile's first position would stand among the rows: may be < 0
  int32_t first, last;  // positions of the tile that are there: [first, last), from its beginning
  int32_t pages;        // its sequence's pages: index into the page list
  int32_t page_count;   // that hold something
};

// The values of a page from `slot` on, of every plane, are cleared: attention multiplies them by
// zero, and what was never written might not be finite.
struct PageTail {
  int32_t page;
  int32_t slot;
};

// Positions of a page, from its first, that lie before the chunk.
struct StoredPage {
  int32_t page;  // of PromptMemory
  int32_t positions;
};

// Key/value memory: [page][plane][kv_head][2][kPageSize][head_stride]. With int8 keys it has one
// plane, and a page for each in a prompt's list (prompt_int8.h).
struct PromptMemory {
  bf16* pages = nullptr;
  int32_t page_count = 0;
  int32_t planes = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t head_stride = 0;
};

// Shapes and buffers that the kernels around the products share. [rows] is as many as a chunk has
// at most.
struct PromptBuffers {
  int32_t hidden = 0, heads = 0, ff = 0;
  int32_t ld_hidden = 0, ld_attention = 0, ld_ff = 0, ld_adapter = 0;
  float eps = 0;
  float attention_scale = 0;  // times log2(e)
  const PromptRow* rows = nullptr;
  float2* rope = nullptr;     // [rows][head_dim / 2]: cosine and sine
  bf16* q = nullptr;          // [rows][heads][head_stride]
  bf16* attention = nullptr;  // [rows][ld_attention]
  bf16* ff_in = nullptr;      // [rows][ld_ff]
};

}  // namespace loopspec::cuda

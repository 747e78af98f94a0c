// Prompts where pages have int8 keys and values.
//
// The kernels of prompts know bf16 keys alone. So each layer's keys and values of the sequences of
// a chunk lie as bf16 in pages of one plane (PromptMemory), which belong to no sequence: products
// write the chunk's own there, they are rounded and stored in the sequences' pages, and what
// attention reads are the rounded ones, as bf16, those of positions before the chunk from the pages
// again.
#pragma once

#include "backends/cuda/prefill/prefill_plan.h"

namespace loopspec::cuda {

// Key/value memory with int8 keys (device/kv_int8.cuh), and which of its pages the chunk's are.
struct Int8Memory {
  bf16* pages = nullptr;  // [page][plane][kv_head][2][kPageSize][KeyWords]
  int32_t planes = 0;
  const int32_t* page_list = nullptr;  // of page i of the bf16 memory
};

// Rounds the keys and values of the rows, in `memory` and into the pages.
void RoundKeys(const PromptRow* rows, int count, const PromptMemory& memory,
               const Int8Memory& pages, int plane, cudaStream_t stream);
// Fetches those of earlier positions.
void FetchKeys(const StoredPage* stored, int count, const PromptMemory& memory,
               const Int8Memory& pages, int plane, cudaStream_t stream);

}  // namespace loopspec::cuda

// What a block of the decode kernel keeps in shared memory beside its ring of weights.
//
// The kernel's parts are separate functions, each with the registers to itself; what they have in
// common lies here, at the start of shared memory. (Spilled registers would be ruinous: the ring
// leaves almost no first-level cache to hold them.)
#pragma once

#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

inline constexpr int kMaxSlots = 5;       // of a warp's ring
inline constexpr int kCachedRows = 32;    // rows of a set whose RowInfo is kept at hand
inline constexpr int kCachedChain = 256;  // entries of chains, likewise
inline constexpr int kCachedUnits = 2;    // attention units of each warp, likewise

// The step's matrices in order, with how often each is gone through.
struct StreamOrder {
  int end[kSets];     // of the set's matrices
  int passes[kSets];  // over each of them; 0: the set has no rows
  int recurrences;
};

// The next slot that a warp reads, and the parity of its barrier.
struct RingPosition {
  int slot;
  uint32_t phase;
};

// What is copied next into a warp's ring.
struct FillerState {
  int set, matrix, repeat, pass;  // matrix = -1: nothing is left
  int tile, tile_end;
  int block, block_end;  // of k
  int slot;
};

// The rows that go through a stack in this step.
struct SetContext {
  int set;
  int rows;
  int recurrence;  // of B, from 0
  int units;
  const RowInfo* infos;  // in `row_cache` where they fit
  const QueryRow* query_rows;
  const AttentionUnit* all_units;
};

struct BlockContext {
  DecodeParams p;
  Op ops[2];  // the current operation and the next
  SetContext set;
  StreamOrder order;
  RingPosition readers[kWarps];
  FillerState fillers[kWarps];
  const int32_t* chains;  // in `chain_cache` where they fit
  float scratch[kWarps];
  uint64_t full[kWarps * kMaxSlots];  // barriers of the rings' slots
  RowInfo row_cache[kCachedRows];
  int32_t chain_cache[kCachedChain];
  AttentionUnit unit_cache[kWarps][kCachedUnits];
  MatrixShare shares[kMaxMatrices];
};

// Shared memory: the context, the warps' sums, then the ring at a multiple of 1 KiB.
inline constexpr int kContextBytes = (static_cast<int>(sizeof(BlockContext)) + 1023) / 1024 * 1024;

static_assert(kContextBytes <= 15 * 1024, "the smallest ring must fit beside it in 99 KiB");

extern __shared__ __align__(1024) char shared_memory[];

__device__ __forceinline__ BlockContext& Context() {
  return *reinterpret_cast<BlockContext*>(shared_memory);
}
__device__ __forceinline__ float* Sums() {
  return reinterpret_cast<float*>(shared_memory + kContextBytes);
}

}  // namespace loopspec::cuda

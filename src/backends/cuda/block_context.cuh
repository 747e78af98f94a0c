// What a block of the decode kernel keeps in shared memory beside its ring of weights.
//
// The kernel's parts are separate functions, each with the registers to itself; what they have in
// common lies here, at the start of shared memory. (Spilled registers would be ruinous: the ring
// leaves almost no first-level cache to hold them.)
#pragma once

#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

inline constexpr int kMaxSlots = 2;       // of a warp's ring
inline constexpr int kCachedRows = 32;    // rows of a set whose RowInfo is kept at hand
inline constexpr int kCachedChain = 256;  // entries of chains, likewise
inline constexpr int kCachedUnits = 4;    // attention units of each warp, likewise
inline constexpr int kOpsAhead = 4;       // operations fetched ahead
inline constexpr int kOpsHeld = 8;

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

// One pass of a warp over its share of a matrix, and what of it is copied next.
inline constexpr int kStreamEnd = -1;    // in place of a matrix: nothing is left
inline constexpr int kNotPrepared = -2;  // it has to be worked out first
struct StreamPass {
  int matrix;
  int tile, tile_end;
  int chunk, chunk_begin, chunk_end;  // that the warp has a block of k in
};

// Where the copies into a warp's ring stand.
struct FillerState {
  StreamPass now;
  int slot;
  int owed;                       // slots that are free but wait for the next pass to be worked out
  int last;                       // matrix up to which one follows the other in a single pass
  int set, matrix, repeat, pass;  // of the last pass that was worked out
};

// Where the operations of a set stand.
struct QueueState {
  int begin, end;   // of the stack's operations
  int left;         // times that they are still gone through
  int at;           // the current operation
  int place;        // and where it is held
  int held;         // operations fetched from it on
  uint32_t stamp;   // and its number
  bool own_inputs;  // its inputs were made by the block for itself
  bool mailed;      // the results of the operation before went by mail
};

// The rows that go through a stack in this step.
struct SetContext {
  int set;
  int rows;
  int recurrence;  // of B, from 0
  int units;
  bool narrow;
  bool fuses;            // one row: the blocks do its row operations for themselves
  bool mails;            // results go by mail where the operation says so
  bool own_stream;       // the blocks have their own copies of the stream
  const RowInfo* infos;  // in `row_cache` where they fit
  const QueryRow* query_rows;
  const AttentionUnit* all_units;
};

struct BlockContext {
  DecodeParams p;
  Op ops[kOpsHeld];  // the current operation and the next ones
  QueueState queue;
  SetContext set;
  StreamOrder order;
  RingPosition readers[kWarps];
  FillerState fillers[kWarps];
  const int32_t* chains;  // in `chain_cache` where they fit
  float scratch[kWarps];
  uint32_t arrivals;                  // of blocks at the grid's barrier, so far
  int traced;                         // clock readings
  uint64_t full[kWarps * kMaxSlots];  // barriers of the rings' slots
  RowInfo row_cache[kCachedRows];
  int32_t chain_cache[kCachedChain];
  AttentionUnit unit_cache[kWarps][kCachedUnits];
  MatrixShare shares[kMaxMatrices];
};

// Shared memory: the context, the warps' sums, then the ring, which starts at a multiple of 1 KiB.
inline constexpr int kContextBytes = (static_cast<int>(sizeof(BlockContext)) + 1023) / 1024 * 1024;

static_assert(kContextBytes <= 15 * 1024, "the smallest ring must fit beside it in 99 KiB");

extern __shared__ __align__(1024) char shared_memory[];

__device__ __forceinline__ BlockContext& Context() {
  return *reinterpret_cast<BlockContext*>(shared_memory);
}
// threadIdx.x where the kernel's loop needs it: what is derived from it there is derived anew each
// time instead of being kept across calls.
__device__ __forceinline__ int ThreadNow() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ const Op& CurrentOp() {
  return Context().ops[Context().queue.place];
}
// Whether the operation's results go by mail, and whether those of the one before did.
__device__ __forceinline__ bool MailsOut(const Op& op) {
  const SetContext& set = Context().set;
  if (!set.mails || (op.flags & kOpMailOut) == 0) return false;
  // What ends a set is for all to see.
  const QueueState& queue = Context().queue;
  return op.type != OpType::kRows || !(queue.at + 1 == queue.end && queue.left == 1);
}
__device__ __forceinline__ bool ArrivesByMail() {
  return Context().queue.mailed;
}
__device__ __forceinline__ uint32_t StampIn() {
  return Context().queue.stamp - 1;
}
__device__ __forceinline__ uint32_t StampOut() {
  return Context().queue.stamp;
}

// Sums of the warps, [piece][warp][row][kSumStride]: the padding keeps a warp's stores off each
// other's banks. A piece has 8, 16 or 32 rows, a group of pieces always 32.
inline constexpr int kSumStride = kTileRows + 4;
inline constexpr int kSumBytes = kWarps * kPassRows * kSumStride * static_cast<int>(sizeof(float));
__device__ __forceinline__ float* Sums() {
  return reinterpret_cast<float*>(shared_memory + kContextBytes);
}

// Before the sums, the same place takes the inputs of a matrix that the block made for itself.
__device__ __forceinline__ bf16* OwnInputs() {
  return reinterpret_cast<bf16*>(shared_memory + kContextBytes);
}
static_assert(kChunkK * static_cast<int>(sizeof(bf16)) <= kSumBytes);

inline constexpr int kRingOffset = kContextBytes + kSumBytes;
static_assert(kRingOffset % 1024 == 0);

}  // namespace loopspec::cuda

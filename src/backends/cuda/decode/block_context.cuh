// What a block of the decode kernel keeps in shared memory beside its rings.
//
// The kernel's parts are separate functions, each with the registers to itself; what they have in
// common lies here, at the start of shared memory. (Spilled registers would be ruinous: the ring
// leaves almost no first-level cache to hold them.)
#pragma once

#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

inline constexpr int kMaxSlots = 3;       // of a warp's ring
inline constexpr int kCachedRows = 32;    // rows of a set whose RowInfo is kept at hand
inline constexpr int kCachedChain = 256;  // entries of chains, likewise
inline constexpr int kCachedPieces = 4;   // of attention, of each warp, likewise
inline constexpr int kStreamedPieces = kCachedPieces;  // whose keys and values may come by the ring
inline constexpr int kOpsAtOnce = 8;  // operations fetched at once, ahead of their time
inline constexpr int kOpsHeld = 2 * kOpsAtOnce;
inline constexpr int kNormsOfRow = 3;  // that a row operation takes at most

// The launch's matrices in order, with how often each is gone through.
struct StreamOrder {
  int end[kSets];     // of the set's matrices
  int passes[kSets];  // over each of them; 0: the launch has no rows of the set
  int recurrences;
};

// One pass of a warp over its share of a matrix, and what of it is copied next.
inline constexpr int kStreamEnd = -1;    // in place of a matrix: nothing is left
inline constexpr int kNotPrepared = -2;  // it has to be worked out first
struct StreamPass {
  int matrix;
  int tile, tile_end;
  int chunk, chunk_begin, chunk_end;  // that the warp has a block of k in
};

// Where a warp's ring stands.
struct alignas(16) RingState {
  StreamPass now;                 // the copies
  uint32_t reads;                 // slots read so far, counted from the ring's size
  uint32_t owed;                  // slots that are free but wait for the next pass to be worked out
  int last;                       // matrix up to which one follows the other in a single pass
  int set, matrix, repeat, pass;  // of the last pass that was worked out
};

// How far a warp has come in the operations of a set. Every warp counts for itself, so that none
// waits for another to count.
struct alignas(16) Cursor {
  uint32_t n;  // operations before the current one
  int at;      // the current one's place in the program
  int left;    // times that the stack is still gone through, this one included; 0: none
  int flags;   // kRun...: what the operations before leave it
};

// An operation as it is being run.
struct alignas(16) Run {
  int place;       // where it is held
  uint32_t stamp;  // its number, which its mail carries; mail that comes to it has the one before
  int flags;       // kRun...
  int recurrence;  // of B, from 0
};
inline constexpr int kRunMailIn = 1;            // its inputs come by mail
inline constexpr int kRunOwnInputs = 2;         // its inputs were made by the block for itself
inline constexpr int kRunFused = kOpFused;      // a row operation that every block does for itself
inline constexpr int kRunMailOut = kOpMailOut;  // its results go by mail
inline constexpr int kRunOwnStream = 16;  // the blocks have their own copies of the residual stream

// The rows that go through a stack in this step.
struct alignas(16) SetContext {
  int begin, end;  // of the stack's operations
  int times;       // that they are gone through
  uint32_t stamp;  // of the first
  int allowed;     // kRunFused and kRunMailOut, as far as operations may be run so
  int rows;
  int set;
  int units;
  int merge_lanes;  // see merge_op.cuh
  bool narrow;
  bool related;                // as in the plan
  const RowInfo* infos;        // in `row_cache` where they fit
  const QueryRow* query_rows;  // in `query_cache`, likewise
  const AttentionUnit* all_units;
};

// One warp's piece of attention: the rows of a unit, one KV head.
struct alignas(16) AttentionPiece {
  const bf16* page;  // the first position's key, in the plane of the stack's first layer
  const bf16* cell;  // likewise the key in the first row's cell
  int begin;         // the first position
  int position, committed, first, count, chain, plane, split, row;  // as in AttentionUnit
  int head;
  int slot;  // of the first query's partial results
};

struct BlockContext {
  DecodeParams p;
  PlanHeader plan;
  Op ops[kOpsHeld];  // the current operation and the next ones
  SetContext set;
  Cursor cursors[kWarps];
  Run runs[kWarps];
  RingState rings[kWarps];
  StreamOrder order;
  const int32_t* chains;  // in `chain_cache` where they fit
  float scratch[kNormsOfRow][kWarps];
  uint32_t arrivals;                  // of blocks at the grid's barrier, so far
  int traced;                         // clock readings
  uint64_t full[kWarps * kMaxSlots];  // barriers of the rings' slots
  uint64_t free[kWarps * kMaxSlots];  // likewise, where a warp of its own copies
  RowInfo row_cache[kCachedRows];
  QueryRow query_cache[kCachedRows];
  int32_t chain_cache[kCachedChain];
  AttentionPiece piece_cache[kWarps][kCachedPieces];
  // Which warps' n-th piece a copier brings, a bit each, and where its keys are in the plane of the
  // stack's first layer.
  uint32_t streamed_warps[kSets][kStreamedPieces];
  const bf16* streamed_keys[kSets][kStreamedPieces][kWarps];
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
__device__ __forceinline__ uint32_t ThreadNow() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
// Likewise gridDim.x.
__device__ __forceinline__ uint32_t BlocksNow() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
  return blocks;
}

// A part of the step's plan, `offset` bytes from its header.
template <typename T>
__device__ const T* At(const PlanHeader* plan, int32_t offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(plan) + offset);
}

// What the warp is at. The operations look here for it: arguments would have to be kept by their
// caller, and so, on the way, by them.
__device__ __forceinline__ Run CurrentRun() {
  return Context().runs[ThreadNow() / 32];
}
__device__ __forceinline__ const Op& OpOf(const Run& run) {
  return Context().ops[run.place];
}
// The plane of the operation's layer, from the row's first.
__device__ __forceinline__ int PlaneOffset(const Run& run) {
  return OpOf(run).layer + run.recurrence * Context().p.core_layers;
}

// Sums of the warps, [piece][warp][row][kSumStride]: the padding keeps a warp's stores off each
// other's banks. Pieces times rows are at most kPassRows.
inline constexpr int kSumStride = kTileRows + 4;
inline constexpr int kSumBytes = kWarps * kPassRows * kSumStride * static_cast<int>(sizeof(float));
__device__ __forceinline__ float* Sums() {
  return reinterpret_cast<float*>(shared_memory + kContextBytes);
}

// The inputs of a matrix that the block made for itself, for a single row. They lie in the second
// half of the sums, of which a single row needs the first only.
__device__ __forceinline__ bf16* OwnInputs() {
  return reinterpret_cast<bf16*>(shared_memory + kContextBytes + kSumBytes / 2);
}
static_assert(kChunkK * static_cast<int>(sizeof(bf16)) <= kSumBytes / 2);

inline constexpr int kRingOffset = kContextBytes + kSumBytes;
static_assert(kRingOffset % 1024 == 0);

// Slots of each warp's ring, and who fills them: the warp itself, or a ninth one that does nothing
// else (copier.cuh), beside which sets have kCopierRows at most: nine warps leave each thread 168
// registers. Inputs of more than 24 rows need the room of a slot.
template <int kRingSlots, int kRowsBesideCopier = 0>
struct RingKind {
  static constexpr int kSlots = kRingSlots;
  static constexpr bool kCopier = kRowsBesideCopier > 0;
  static constexpr int kCopierRows = kRowsBesideCopier;
  static constexpr bool kSharedInputs = kCopierRows > 24;
};

}  // namespace loopspec::cuda

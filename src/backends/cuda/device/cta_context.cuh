// What a CTA of the decode kernel keeps in shared memory besides its rings.
//
// The operations are separate functions, so that each has all registers. What they share lies here,
// at the start of shared memory. (Spilled registers would be ruinous: the rings leave almost no L1
// cache to hold them.)
#pragma once

#include "backends/cuda/device/kernel_params.h"

namespace loopspec::cuda {

inline constexpr int kMaxStages = 3;              // of a warp's ring
inline constexpr int kCachedRows = 32;            // rows of a phase whose RowInfo is kept here
inline constexpr int kCachedChain = 256;          // entries of chains that are kept here
inline constexpr int kCachedPieces = kFewRounds;  // pieces of attention of a warp, kept here
inline constexpr int kOpsAtOnce = 8;              // operations fetched at once, in advance
inline constexpr int kOpsHeld = 2 * kOpsAtOnce;
inline constexpr int kNormsOfRow = 3;  // that a row operation takes at most

// The launch's matrices in order, and how often each is read.
struct StreamOrder {
  int end[kPhases];     // of the phase's matrices
  int passes[kPhases];  // over each of them; 0: the launch does not run the phase
  int recurrences;
};

// One pass of a warp over its share of a matrix, and which part of it is copied next. The last two
// are there for kernels that take weights of few bits.
inline constexpr int kStreamEnd = -1;    // in place of a matrix: nothing is left
inline constexpr int kNotPrepared = -2;  // the next pass has to be computed first
struct StreamPass {
  int matrix;
  int tile, tile_end;
  int chunk, chunk_begin, chunk_end;  // chunks in which the warp has a block of k
  WeightForm form;
  int8_t tiles_of_stage;  // blocks of so many tiles share a stage
};

// The state of a warp's ring between operations.
struct alignas(16) RingState {
  StreamPass now;                   // what is copied next
  uint32_t reads;                   // stages read so far, plus the ring's size
  uint32_t owed;                    // free stages that wait for the next pass to be computed
  int last;                         // matrix up to which matrices follow each other, one pass each
  int phase, matrix, repeat, pass;  // of the last pass that was computed
};

// How an operation runs in this step, where OpFlag says what is fixed about it.
enum class RunFlag : int32_t {
  kReceives = 1,      // its inputs come through the low-latency exchange
  kLocalInputs = 2,   // its inputs were made by this CTA for itself
  kReplicated = 4,    // a row operation that every CTA does for itself
  kSends = 8,         // its results go through the low-latency exchange
  kLocalStream = 16,  // every CTA has its own copy of the residual stream
};
using RunFlags = Flags<RunFlag>;
// The two that an operation may allow keep their bits.
static_assert(static_cast<int>(RunFlag::kReplicated) == static_cast<int>(OpFlag::kReplicate) &&
              static_cast<int>(RunFlag::kSends) == static_cast<int>(OpFlag::kSend));
inline constexpr RunFlags AsRun(OpFlags how) {
  return RunFlags::FromBits(how.bits);
}

// How far a warp has come in the operations of a phase. Every warp keeps its own count, so that
// none has to wait for another one's.
struct alignas(16) Cursor {
  uint32_t n;      // operations before the current one
  int at;          // the current one's place in the program
  int left;        // runs of the stack still to do, this one included; 0: the phase is over
  RunFlags flags;  // what the operations before mean for it
};

// An operation as it runs in this step.
struct alignas(16) Run {
  int place;       // index into `ops`
  uint32_t epoch;  // its number, which everything it sends carries; what it receives carries the
                   // number before
  RunFlags flags;
  int recurrence;  // of B, from 0
};
// What the pieces of attention in a phase are. Each kind has code of its own, as short as it can
// be.
enum class PieceKind {
  kSplits,       // single splits
  kSpans,        // spans of splits, each of which is a partial
  kMergedSpans,  // spans of splits, several of which are a partial
};

// The rows that go through a stack in this step.
struct alignas(16) PhaseContext {
  int begin, end;   // of the stack's operations
  int times;        // that the stack is run
  uint32_t epoch;   // of the first
  OpFlags allowed;  // kReplicate and kSend, as far as the phase's rows permit
  int rows;
  int index;  // a Phase
  int units;
  int combine_lanes;  // see attention/combine_op.cuh
  bool small_batch;
  PieceKind pieces;
  int spans;                   // whole units; unless pieces are single splits, the first
  PhaseRelation relation;      // as in the plan
  const RowInfo* infos;        // in `row_cache` where they fit
  const QueryRow* query_rows;  // in `query_cache` where they fit
  const AttentionUnit* all_units;
  const KeySpan* later_spans;  // [recurrence - 1][unit]; null: planes follow each other
};

// One warp's piece of attention: a unit for one KV head.
struct alignas(16) AttentionPiece {
  const bf16* page;  // the first position's key, in the plane of the stack's first layer
  const bf16* cell;  // the key in the first row's cell, in the same plane
  int begin;         // the first position
  int position, committed, first, count, chain, plane, row;  // as in AttentionUnit
  int partial;                                               // number of the first, in each row
  int slot;                             // of the first query's: partial times heads plus head
  int16_t splits, whole, merged, head;  // as in AttentionUnit; the KV head
};

struct CtaContext {
  DecodeParams p;
  PlanHeader plan;
  Op ops[kOpsHeld];  // the current operation and the next ones
  PhaseContext phase;
  Cursor cursors[kWarps];
  Run runs[kWarps];
  RingState rings[kWarps];
  StreamOrder order;
  const int32_t* chains;  // in `chain_cache` where they fit
  float scratch[kNormsOfRow][kWarps];
  uint32_t arrivals;                    // of CTAs at the grid's barrier, so far
  uint64_t looked;                      // when a wait last looked at the clock (watchdog.cuh)
  uint64_t patience;                    // nanoseconds that the launch's waits may still count
  uint32_t given_up;                    // whether waits for other CTAs end at once
  int traced;                           // clock readings
  uint64_t full[kWarps * kMaxStages];   // mbarriers of the rings' stages: full
  uint64_t empty[kWarps * kMaxStages];  // stages are empty; used where a producer warp fills them
  RowInfo row_cache[kCachedRows];
  QueryRow query_cache[kCachedRows];
  int32_t chain_cache[kCachedChain];
  AttentionPiece piece_cache[kWarps][kCachedPieces];
  // Whose keys the producer warp fetches, in a few rounds, for each warp.
  KeySpan key_spans[kFewRounds][kWarps];
  int16_t key_heads[kFewRounds][kWarps];
  MatrixShare shares[kMaxMatrices];
};

// Shared memory: the context, the warps' sums, then the rings, which start at a multiple of 1 KiB.
inline constexpr int kContextBytes = (static_cast<int>(sizeof(CtaContext)) + 1023) / 1024 * 1024;

static_assert(kContextBytes <= 15 * 1024, "the smallest ring must fit beside it in 99 KiB");

extern __shared__ __align__(1024) char shared_memory[];

__device__ __forceinline__ CtaContext& Context() {
  return *reinterpret_cast<CtaContext*>(shared_memory);
}
// threadIdx.x for the kernel's loop: read anew each time, so that the compiler keeps nothing
// derived from it in a register across a call.
__device__ __forceinline__ uint32_t ThreadNow() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
// gridDim.x, read anew each time as well.
__device__ __forceinline__ uint32_t CtasNow() {
  uint32_t ctas;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));
  return ctas;
}

// A part of the step's plan, `offset` bytes from its header.
template <typename T>
__device__ const T* At(const PlanHeader* plan, int32_t offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(plan) + offset);
}

// What the warp runs now. Operations read it here: arguments would occupy registers of the caller,
// which is the kernel's loop.
__device__ __forceinline__ Run CurrentRun() {
  return Context().runs[ThreadNow() / 32];
}
__device__ __forceinline__ const Op& OpOf(const Run& run) {
  return Context().ops[run.place];
}
// The plane of the operation's layer, relative to the row's first plane.
__device__ __forceinline__ int PlaneOffset(const Run& run) {
  return OpOf(run).layer + run.recurrence * Context().p.shapes.core_layers;
}

// Where the layer's keys lie in pages, in planes from the place that the plan names: that of the
// recurrence's first layer, or of the stack's where recurrences follow each other in a page.
__device__ __forceinline__ int PageOffset(const Run& run) {
  return OpOf(run).layer + run.recurrence * Context().p.shapes.recurrence_planes;
}

// Sums of the warps, [piece][warp][row][kSumStride]: the padding avoids bank conflicts between a
// warp's stores. Pieces times rows are at most kPassRows.
inline constexpr int kSumStride = kTileRows + 4;
inline constexpr int kSumBytes = kWarps * kPassRows * kSumStride * static_cast<int>(sizeof(float));
__device__ __forceinline__ float* Sums() {
  return reinterpret_cast<float*>(shared_memory + kContextBytes);
}

// The inputs of a matrix that the CTA made for itself, for a single row. They lie in the second
// half of the sums, because a single row needs only the first half.
__device__ __forceinline__ bf16* LocalInputs() {
  return reinterpret_cast<bf16*>(shared_memory + kContextBytes + kSumBytes / 2);
}
static_assert(kChunkK * static_cast<int>(sizeof(bf16)) <= kSumBytes / 2);

inline constexpr int kRingOffset = kContextBytes + kSumBytes;
static_assert(kRingOffset % 1024 == 0);

// Stages of each warp's ring, and who fills them: the warp itself, or a producer warp, the ninth
// (decode/producer.cuh). Kernels with a producer warp take phases of kProducerRows rows at most:
// nine warps leave each thread 168 registers. Inputs of more than 24 rows then need the room of one
// more stage in shared memory.
//
// And whether pages have int8 keys and values, and whether some weights have few bits.
template <int kRingStages, int kRowsWithProducer = 0, bool kWithInt8Keys = false,
          bool kWithPackedWeights = false>
struct RingKind {
  static constexpr int kStages = kRingStages;
  static constexpr bool kProducer = kRowsWithProducer > 0;
  static constexpr int kProducerRows = kRowsWithProducer;
  static constexpr bool kSharedInputs = kProducerRows > 24;
  static constexpr bool kInt8Keys = kWithInt8Keys;
  static constexpr bool kPackedWeights = kWithPackedWeights;
};

}  // namespace loopspec::cuda

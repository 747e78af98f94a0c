// What the decode kernel reads: the model's program (fixed), the step's plan (new every step), and
// where all memory is.
//
// The kernel is persistent: one block per multiprocessor runs through a step, operation by
// operation. Between them stands a barrier over the grid; where few rows are under way, results go
// from block to block by mail instead (mail.cuh). A launch depends on the step by the contents of
// the plan, and by which of its sets it takes: those of up to 24 and of up to 32 rows have kernels
// of their own.
#pragma once

#include <cstdint>

#include "backends/cuda/host/device_model.h"
#include "backends/cuda/host/tensor_maps.h"

namespace loopspec::cuda {

inline constexpr int kThreads = 256;  // of a block: eight warps share the k of every product
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kCopierThreads = 32;  // beside them, where a warp of its own copies
inline constexpr int kPassRows = 32;       // batch rows that one pass over the weights serves
inline constexpr int kNarrowRows = 8;  // of a narrow set, whose results may go by mail (mail.cuh)
inline constexpr int kChunkK = kWarps * kBlockK;  // a chunk of k: one block of k for each warp
inline constexpr int kMaxMatrices = 384;          // of one model
inline constexpr int kMaxHidden = 8192;           // a block holds a row of the stream in registers
inline constexpr int kOwnHidden = 2048;           // widest one of which every block may hold a copy

// ---- The program: what the model does, laid down once
// ------------------------------------------------------------------

enum class MatrixKind : int16_t {
  kQkv,      // rotates q and k; q to its buffer, k and v to the row's cell
  kQkvRaw,   // q and k as they come, for kQkNorm; v to the cell
  kGateUp,   // SwiGLU
  kPartial,  // plain sums of one chunk of k, added up by the next row operation
  kHead,     // logits
};

// One block's share of one matrix: tiles by chunks of k. Where the chunks are all there are, their
// sums are added up at once; otherwise each leaves its own partial sum.
struct alignas(16) MatrixShare {
  int32_t tile_begin, tile_end;
  int16_t chunk_begin, chunk_end;
  int16_t blocks;  // of k in the whole matrix
  MatrixKind kind;
};
static_assert(sizeof(MatrixShare) == 16);

// Where a matrix lies, for copies without the copy engine.
struct alignas(16) MatrixSource {
  const bf16* weights;
  int32_t ld;
};

enum class OpType : int32_t { kRows, kMatrix, kQkNorm, kAttention, kMerge };

// Where a row operation takes the residual stream from.
enum class RowSource : int32_t {
  kState,    // the cell's state; the embedding when the row is new and there is no prelude
  kEmbed,    // the token's embedding
  kCopy,     // the cell's state, into C's own copy
  kAdd,      // x + norm(sum of partials)
  kReplace,  // sum of partials + bias
};
// What it leaves for the next matrix.
enum class RowOutput : int32_t { kNone, kNormed, kAdapter };
// Inputs of a matrix product.
enum class Activation : int32_t { kHidden, kAttention, kFeedForward, kAdapter };

struct alignas(16) OpHead {
  OpType type;
  int32_t flags;   // kOp...
  int32_t matrix;  // kMatrix: index into the shares
  int32_t layer;   // within its stack: offset of the plane
};
struct alignas(16) Op : OpHead {
  Activation input;
  RowSource source;
  RowOutput output;
  int32_t chunks[2];  // partial sums to add up, [narrow]
  const float* bias;
  const float* post_norm;  // on the sum of partials
  const float* loop_norm;  // on the stream itself
  const float* pre_norm;   // on what goes into the next matrix; null: the stream as it is
  const float* q_norm;
  const float* k_norm;
};
inline constexpr int32_t kOpRope = 1;           // also fills the row's rotary table
inline constexpr int32_t kOpFinishPrelude = 2;  // e = x, x = initial state
inline constexpr int32_t kOpFused = 4;    // its results can stay in the blocks, for the next matrix
inline constexpr int32_t kOpMailOut = 8;  // in sets that use mail: what it makes goes so
inline constexpr int32_t kOpChunks = 32;  // shares of wide sets have several chunks of k;
                                          // those of narrow ones likewise: the bit after it

// ---- The plan: what one step does
// ---------------------------------------------------------------------------------------

inline constexpr int kSets = 3;  // rows in P, in B, in C
enum RowSet { kSetPrelude = 0, kSetCore = 1, kSetCoda = 2 };

struct RowInfo {
  int32_t cell;
  int32_t token;
  int32_t position;
  int32_t depth;
  int32_t plane;    // of the stack's first block in the first recurrence
  int32_t partial;  // its first slot of attention partials
  int32_t splits;   // and how many it has
};

// A row as attention sees it.
struct QueryRow {
  int32_t row;  // index into the set
  int32_t partial;
  int32_t position;
};

// Positions of an attention partial: as many as a warp can have on their way at once.
inline constexpr int SplitPositions(int head_stride) {
  return head_stride <= 64 ? 64 : 4096 / head_stride;
}

// Lanes, of four elements each, that a piece of merging has (merge_op.cuh): as few as give each of
// the grid's `warps` at most one piece of the `elements` that there are in all rows. More than
// eight leave no registers for mail, and are more than a head has where head_stride is 32.
inline constexpr int MergeLanes(int elements, int warps, int head_stride, bool narrow) {
  const int most = narrow || head_stride < 64 ? 8 : 16;
  int lanes = 1;
  while (lanes < most && elements > 4 * lanes * warps) lanes *= 2;
  return lanes;
}

// Queries that a warp takes at once: a unit has as many rows as make so many query heads of a KV
// head, or one.
inline constexpr int kUnitQueries = 8;

// One warp's piece of attention: `count` rows of one sequence and plane over the positions of one
// split.
struct alignas(16) AttentionUnit {
  int32_t first;  // into the set's query rows
  int32_t count;
  int32_t split;
  int32_t plane;      // as in RowInfo
  int32_t position;   // of the first row; when positions of the split are uncommitted, it is the
                      // only one
  int32_t committed;  // positions below lie in pages
  int32_t cell;       // of the first row
  int32_t chain;      // its chain: index into the plan's chains
  int32_t page;
  int32_t row, partial;  // of the first row, as in QueryRow
};

// Where the units of one row's own stand among the others. They look up cells and take longest.
// Pieces are dealt in rounds over all of the grid's `warps`: at the end of the last full round they
// are with warps that have none of the rest, or few do.
inline constexpr size_t OwnUnitsAt(size_t others, size_t own, int kv_heads, int warps) {
  const auto heads = static_cast<size_t>(kv_heads), each = static_cast<size_t>(warps);
  const size_t full = (others + own) * heads / each * each / heads;
  return full < own ? 0 : full - own < others ? full - own : others;
}

struct CommitInfo {
  int32_t cell;
  int32_t page;
  int32_t slot;  // position within the page
};

// A value between blocks, with the number of the operation that made it.
struct alignas(8) Mail {
  uint32_t value;
  uint32_t stamp;
};

struct PlanHeader {
  uint32_t barrier[kSets];  // arrivals of blocks, by a launch's first set; zero when a step begins
  uint32_t stamp[kSets];    // of the set's first operation; no operation before had it
  int32_t recurrences;
  int32_t related;  // whether rows of B attend to each other within the step (step_encoder.h)
  int32_t commits;
  int32_t rows[kSets];
  int32_t units[kSets];
  // Byte offsets from the header.
  int32_t row_at[kSets];
  int32_t query_rows_at[kSets];
  int32_t unit_at[kSets];
  int32_t chains_at;
  int32_t chain_count;
  int32_t commits_at;
  int32_t readouts_at;
};

// ---- Everything the kernel is launched with
// -----------------------------------------------------------------------------

struct DecodeParams {
  // Program.
  const Op* ops;
  int32_t ops_begin[kSets], ops_end[kSets];  // per stack
  int32_t core_start;                        // the operation before the first recurrence
  const MatrixShare* shares[2];              // [narrow]: [block][matrix]
  const MatrixSource* sources;               // [matrix]
  const TensorMap* maps;                     // [matrix]: for the copy engine, where there is one
  int32_t matrices;
  int32_t matrices_end[kSets];  // matrices are numbered P, B, C

  // Shapes.
  int32_t hidden, heads, kv_heads, head_dim, head_stride;  // head_stride: head_dim padded
  int32_t group;                                           // query heads of a kv head
  float one_over_hidden;
  int32_t q_size, kv_size, ff, vocab;
  int32_t core_layers, prelude_layers, planes;
  int32_t split;       // positions per attention partial, at fixed absolute places
  int32_t row_stride;  // stride of buffers with a row dimension
  int32_t ld_hidden, ld_attention, ld_ff, ld_adapter;
  float eps, attention_scale;  // the latter times log2(e)
  float embed_scale;
  double state_scale;
  uint64_t state_seed;
  int32_t adapter;
  const double* rope_frequencies;  // [head_dim / 2]
  DeviceMatrix embedding;

  // Memory by cell.
  float* state;       // [cell][hidden]
  bf16* prelude_out;  // e: [cell][hidden]
  bf16* cell_kv;      // [cell][plane][kv_head][2][head_stride]
  bf16* page_kv;      // [page][plane][kv_head][2][kPageSize][head_stride]

  // Memory by row.
  float* coda_x;      // [row][hidden]
  float* own_stream;  // [block][hidden]: each block's copy, for sets of one row
  // Inputs of matrices: as input_layout.cuh says, or rows one after the other (prompts).
  bf16* act_hidden;
  bf16* act_attention;
  bf16* act_ff;
  bf16* act_adapter;     // state | e
  bf16* q;               // [row][head][head_stride]
  float* qk_raw;         // [row][q_size + kv_size]
  float* partials;       // [chunk][row][hidden]
  float2* rope;          // [set][row][head_dim / 2]
  float* attention_o;    // [slot][head][head_stride]
  float2* attention_ml;  // [slot][head]: maximum and sum
  float* logits;         // [readout][vocab]

  // Mail between the blocks, of narrow sets; inputs of matrices by pairs of elements.
  int32_t mail;          // whether the model's shapes allow it
  Mail* mail_sums;       // [row][hidden]
  Mail* mail_hidden;     // [row][ld_hidden / 2]
  Mail* mail_ff;         // [row][ld_ff / 2]
  Mail* mail_attention;  // [row][ld_attention / 2]
  Mail* mail_qkv;        // [row][heads + 2 kv_heads][head_dim / 2]: q, then k and v of each head
  Mail* mail_o;          // [slot][head][head_dim]
  Mail* mail_ml;         // [slot][head][2]

  int32_t copy_interval[2];  // [narrow]: cycles between a copier's copies

  PlanHeader* plan;
  int32_t sets_begin, sets_end;  // that the launch takes
  uint64_t* clock;  // [set][2], on the host: nanoseconds when the set began, and when it ended
  uint64_t* trace;  // null, or clock readings of the (last) launch when a set begins and after
                    // every operation, for finding where time goes
};

}  // namespace loopspec::cuda

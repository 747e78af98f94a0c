// The program: what the model does, written down once. A list of operations, and for every matrix
// which CTA reads which of its tiles.
#pragma once

#include <cstdint>

#include "backends/cuda/program/flags.h"
#include "backends/cuda/program/geometry.h"

namespace loopspec::cuda {

// A step runs in phases. Each has rows of its own and a stack of operations of its own.
inline constexpr int kPhases = 3;
enum Phase {
  kPhasePrelude = 0,  // P
  kPhaseCore = 1,     // B
  kPhaseCoda = 2,     // C
};

enum class MatrixKind : int8_t {
  kQkv,      // rotates q and k; q to its buffer, k and v to the row's cell
  kQkvRaw,   // q and k without rotation, for kFinishQk; v to the cell
  kGateUp,   // SwiGLU
  kPartial,  // sums over one chunk of k or over all, added up by the next row operation
  kHead,     // logits
};

// One CTA's share of one matrix: a range of tiles by a range of chunks of k. With all chunks the
// CTA adds up the whole sum; with one chunk (split-K) it leaves a partial sum.
struct alignas(16) MatrixShare {
  int32_t tile_begin, tile_end;
  int16_t chunk_begin, chunk_end;
  int16_t k_blocks;  // blocks of k in the whole matrix
  MatrixKind kind;
  WeightForm form;
};
static_assert(sizeof(MatrixShare) == 16);

// Inputs of a matrix product.
enum class Activation : int8_t { kHidden, kAttention, kFeedForward, kAdapter };

// A whole matrix, for steps with more rows than one pass serves (program/wide_work.h).
struct WideMatrix {
  int32_t tiles;
  int16_t k_blocks;  // blocks of k
  int16_t chunks;    // partial sums, of a chunk of k each; 1: sums are whole
  MatrixKind kind;
  Activation input;
  WeightForm form;
};

// Where a matrix lies, for copies on GPUs without TMA.
struct alignas(16) MatrixSource {
  const void* weights;  // rows or units, as DeviceMatrix has them
  int32_t ld;
};

// kFinishQk: what q and k need besides the rotation, and that (norms of Raven olmo, Huginn's bias).
enum class OpType : int32_t { kRows, kMatrix, kFinishQk, kAttention, kCombine };

// Where a row operation takes the residual stream from.
enum class RowSource : int8_t {
  kState,    // the cell's state; the embedding when the row is new and there is no prelude
  kEmbed,    // the token's embedding
  kCopy,     // the cell's state, into C's own copy
  kAdd,      // x + norm(sum of partials)
  kReplace,  // sum of partials + bias
  kUpdate,   // sum of partials times bias: u, kept by cell; the state gets its initial value
  kInject,   // the cell's state with u: decay in `bias`
};
// What it leaves for the next matrix.
enum class RowOutput : int8_t { kNone, kNormed, kAdapter };
// What is fixed about an operation. How it runs in a given step is a RunFlag (cta_context.cuh).
enum class OpFlag : int32_t {
  kRope = 1,               // also fills the row's rotary table
  kFinishPrelude = 2,      // e = x, x = initial state
  kReplicate = 4,          // for a single row every CTA may do it itself and keep the result, a
                           // normed input of the matrix that follows
  kSend = 8,               // small batches may send its results through the low-latency exchange
  kWritesKeys = 16,        // its results include keys and values, which attention reads from cells
  kChunks = 32,            // shares have several chunks of k in larger batches,
  kChunksSmallBatch = 64,  // and in small ones
};
using OpFlags = Flags<OpFlag>;
inline constexpr OpFlag ChunksFlag(bool small_batch) {
  return static_cast<OpFlag>(static_cast<int32_t>(OpFlag::kChunks) << (small_batch ? 1 : 0));
}
static_assert(ChunksFlag(true) == OpFlag::kChunksSmallBatch);

struct alignas(16) OpHead {
  OpType type;
  OpFlags flags;
  int32_t matrix;  // kMatrix: index into the shares
  int32_t layer;   // within its stack: offset of the plane
};
struct alignas(16) Op : OpHead {
  Activation input;
  RowSource source;
  RowOutput output;
  int32_t chunks[2];       // partial sums to add up, [small_batch]
  const float* bias;       // by channel: added to the sum, or what kUpdate and kInject say
  const float* post_norm;  // on the sum of partials
  const float* loop_norm;  // on the stream itself
  const float* pre_norm;   // on what goes into the next matrix; null: the stream as it is
  const float* q_norm;
  const float* k_norm;
  const float* qk_bias;  // [heads + kv_heads][head_dim]
  const float* scales;   // kMatrix, of int8: of each output
};

}  // namespace loopspec::cuda

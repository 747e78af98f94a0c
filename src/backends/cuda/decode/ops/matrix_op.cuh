// A matrix product of one step: a CTA's tiles of the weights times all rows of the batch.
//
// The weights are the long side (16 rows) of the matrix instruction, batch rows the short one (8),
// padded. A chunk of k is one block of k for each of the eight warps: a warp holds its inputs for
// all rows in registers and adds in the order of k; then the warps' sums are added in the order of
// the warps, and chunks in the order of chunks. So a row's result is the same whatever other rows
// are in the batch, and however tiles and chunks are divided among the CTAs.
//
// A piece is one tile by one chunk. The warps multiply a few pieces each on their own before their
// sums are added: the less often they wait for each other, the more evenly the ring is emptied.
#pragma once

#include "backends/cuda/decode/cta_context.cuh"
#include "backends/cuda/decode/kernel_params.h"
#include "backends/cuda/decode/ops/matrix_epilogue.cuh"
#include "backends/cuda/decode/ops/matrix_inputs.cuh"
#include "backends/cuda/decode/stream/weight_ring.cuh"
#include "backends/cuda/device/instructions.cuh"

namespace loopspec::cuda {

// The warp's parts of kPieces pieces, one stage each. Every piece has two accumulators, so that an
// instruction need not wait for the one before. Weights are loaded from the stage kEarly steps
// before they are multiplied. Returns a value that depends on the last loads.
template <int kPieces, int kEarly, typename Ring, int kTiles, int kShared>
__device__ __forceinline__ uint32_t MultiplyStages(const uint32_t (&stages)[kPieces],
                                                   const KBlockInputs<kTiles, kShared>& in,
                                                   float (&c)[kPieces][kTiles][2][4]) {
  constexpr int kSteps = kBlockK / 16;
  uint32_t a[kEarly][kPieces][4];
  uint4 shared[kShared > 0 ? kShared : 1];
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) Ring::Read(stages[piece], i, a[i][piece]);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    uint32_t(&now)[kPieces][4] = a[i % kEarly];
#pragma unroll
    for (int n = 0; n < kShared; ++n) {
      if (i % 2 == 0) shared[n] = in.Shared(i / 2, n);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4& b = n < in.kHeld ? in.b[i / 2][n] : shared[n - in.kHeld];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        Mma(c[piece][n][i % 2], now[piece][0], now[piece][1], now[piece][2], now[piece][3],
            i % 2 == 0 ? b.x : b.z, i % 2 == 0 ? b.y : b.w);
      }
    }
    if (i + kEarly < kSteps) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        Ring::Read(stages[piece], i + kEarly, now[piece]);
    }
  }
  uint32_t last = 0;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece)
    last |= a[(kSteps - 2) % kEarly][piece][0] | a[(kSteps - 1) % kEarly][piece][0];
  return last;
}

// Which outputs a thread computes when the warps' sums are added: columns c and c + 8 of one row of
// one piece of the group.
template <int kRows>
struct OutputOfThread {
  // Pieces whose sums are added together. A single row leaves half of the room for its inputs.
  static constexpr int kGroup = kRows == 1 ? kPassRows / 2 : kPassRows / kRows;
  int piece = static_cast<int>(threadIdx.x) / (8 * kRows);
  int row = static_cast<int>(threadIdx.x) % (8 * kRows) / 8;
  int column = static_cast<int>(threadIdx.x) % 8;
  // Of the warp's first lane: what follows is done by whole warps.
  int first_piece = static_cast<int>(threadIdx.x & ~31u) / (8 * kRows);
};
template <int kRows>
__device__ __forceinline__ float* SumsOf(int piece, int warp, int row) {
  return Sums() + ((piece * kWarps + warp) * kRows + row) * kSumStride;
}
template <int kRows, int kTiles>
__device__ __forceinline__ void StoreSums(int piece, const float (&c)[kTiles][2][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int row = n * 8 + 2 * t;
    float* at = SumsOf<kRows>(piece, static_cast<int>(threadIdx.x / 32), row) + g;
    if (row < kRows) {
      at[0] = c[n][0][0] + c[n][1][0];
      at[8] = c[n][0][2] + c[n][1][2];
    }
    if (row + 1 < kRows) {
      at[kSumStride] = c[n][0][1] + c[n][1][1];
      at[kSumStride + 8] = c[n][0][3] + c[n][1][3];
    }
  }
}
template <int kRows>
__device__ __forceinline__ float2 AddSums(int piece, const OutputOfThread<kRows>& mine) {
  const float* at = SumsOf<kRows>(piece, 0, mine.row) + mine.column;
  float2 sum = make_float2(at[0], at[8]);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {  // warps without a block of k have stored zeros
    sum.x += at[w * kRows * kSumStride];
    sum.y += at[w * kRows * kSumStride + 8];
  }
  return sum;
}

// A warp's part of the CTA's share of a product, for rows [first_row, first_row + rows), at most
// kRows of them.
template <int kRows, Inputs kInputs, typename Kind>
class MatrixPass {
 public:
  static constexpr int kTiles = (kRows + 7) / 8;
  // Steps that weights are loaded ahead: as many as registers allow.
  static constexpr int kEarly = kTiles > 1 ? 2 : Kind::kProducer ? 4 : 8;
  // Tiles of eight rows whose inputs do not fit in registers.
  static constexpr int kShared = Kind::kSharedInputs && kTiles > 2 ? kTiles - 2 : 0;
  static_assert(KBlockInputs<kTiles, kShared>::kSharedBytes <= kStageBytes);
  static constexpr bool kLate = kShared > 0;  // see TileOutputs

  __device__ __forceinline__ MatrixPass(const Run& run, int first_row, int rows)
      : share_(Context().shares[OpOf(run).matrix]), source_(run, first_row, rows) {
    if constexpr (kShared > 0) in_.place = SharedInputs<Kind>();
  }

  // The inputs of a chunk, before its tiles.
  __device__ __forceinline__ void Request(int chunk) { source_.Request(chunk, HasKBlock(chunk)); }
  __device__ __forceinline__ void Load(int chunk) { source_.Load(chunk, HasKBlock(chunk), in_); }

  // Multiplies the next kPieces tiles of a chunk and stores their sums at `piece` and the
  // following. `wait`: first wait for all warps, which may still be reading the sums that are
  // there.
  template <int kPieces>
  __device__ __forceinline__ void Multiply(int chunk, int piece, bool wait) {
    float c[kPieces][kTiles][2][4] = {};
    if (HasKBlock(chunk)) {
      uint32_t stages[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) stages[i] = ring_.Wait(i);
      if constexpr (kShared > 0) WaitForCopies();
      const uint32_t last = MultiplyStages<kPieces, kEarly, Ring<Kind>>(stages, in_, c);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) ring_.Refill(last);
    }
    if (wait) CtaSync();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) StoreSums<kRows>(piece + i, c[i]);
  }
  __device__ __forceinline__ void Save() const {
    ring_.Save();
  }

  __device__ __forceinline__ const MatrixShare& share() const {
    return share_;
  }

 private:
  __device__ __forceinline__ bool HasKBlock(int chunk) const {
    return chunk * kWarps + static_cast<int>(threadIdx.x / 32) < share_.k_blocks;
  }

  MatrixShare share_;
  InputSource<kRows, kInputs> source_;
  KBlockInputs<kTiles, kShared> in_;
  Ring<Kind> ring_;
};

// The outputs of a CTA's tiles. kLate: registers are scarce during the products, so the epilogue is
// set up after them.
template <int kRows, bool kLate>
class TileOutputs {
 public:
  __device__ __forceinline__ TileOutputs(int first_row, int rows)
      : first_row_(first_row), rows_(rows), epilogue_(Make()) {}

  // Ahead of the products.
  __device__ __forceinline__ void Prepare(const OutputOfThread<kRows>& mine, int tile) {
    if constexpr (!kLate) epilogue_.Prepare(tile, mine.column);
  }
  __device__ __forceinline__ void Store(const OutputOfThread<kRows>& mine, int tile,
                                        const float2& sum, bool there) {
    if constexpr (kLate) {
      Epilogue epilogue = Make();
      epilogue.Prepare(tile, mine.column);
      epilogue.Store(tile, mine.column, sum.x, sum.y, there);
    } else {
      epilogue_.Store(tile, mine.column, sum.x, sum.y, there);
    }
  }

 private:
  __device__ __forceinline__ Epilogue Make() const {
    const Run run = CurrentRun();
    const int row = OutputOfThread<kRows>().row;
    return Epilogue(run, Context().shares[OpOf(run).matrix], first_row_ + row, row < rows_);
  }

  int first_row_, rows_;
  Epilogue epilogue_;  // unless kLate
};

// The loops are short and not unrolled, with few decisions inside. Each operation runs once per
// layer, so its code is no longer in the instruction cache and takes longer to fetch than to
// execute; and conditions that are computed early are spilled to memory.

// Tiles of one chunk; up to kGroup of them before the warps' sums are added.
template <int kRows, Inputs kInputs, typename Kind>
__device__ __forceinline__ void RunTiles(const Run& run, int first_row, int rows) {
  // Two at a time where the ring has both and registers suffice. With a producer warp one by one,
  // so that stages are released as early as possible.
  constexpr int kPieces = kRows <= 8 && Kind::kStages == 2 && !Kind::kProducer ? 2 : 1;
  MatrixPass<kRows, kInputs, Kind> pass(run, first_row, rows);
  if (pass.share().tile_begin == pass.share().tile_end) return;
  const int chunk = pass.share().chunk_begin, end = pass.share().tile_end;
  pass.Request(chunk);
  const OutputOfThread<kRows> mine;
  TileOutputs<kRows, pass.kLate> outputs(first_row, rows);
  outputs.Prepare(mine, pass.share().tile_begin + mine.piece);
  pass.Load(chunk);
#pragma unroll 1
  for (int first = pass.share().tile_begin; first < end; first += mine.kGroup) {
    const int count = min(mine.kGroup, end - first);
    const bool again = first > pass.share().tile_begin;
    int piece = 0;
#pragma unroll 1
    for (; piece + kPieces <= count; piece += kPieces)
      pass.template Multiply<kPieces>(chunk, piece, again && piece == 0);
    if (kPieces > 1 && piece < count) pass.template Multiply<1>(chunk, piece, again && piece == 0);
    CtaSync();
    if (mine.first_piece < count) {
      const float2 sum = AddSums<kRows>(mine.piece, mine);
      outputs.Store(mine, first + mine.piece, sum, mine.piece < count);
    }
    // The next products overwrite the sums only after another CTA barrier (`wait` above, or the end
    // of the operation or pass).
    if (first + mine.kGroup < end) outputs.Prepare(mine, first + mine.kGroup + mine.piece);
  }
  pass.Save();
}

// Several chunks of each tile; their sums are added in order. Where the exchange is enabled only
// small batches take this path: shares for larger batches then have a single chunk. Wider models
// take it for QKV and gate/up, and every tile loads its inputs again, from the L2 cache.
template <int kRows, Inputs kInputs, typename Kind>
__device__ __forceinline__ void RunChunks(const Run& run, int first_row, int rows) {
  MatrixPass<kRows, kInputs, Kind> pass(run, first_row, rows);
  if (pass.share().tile_begin == pass.share().tile_end) return;
  const int begin = pass.share().chunk_begin, end = pass.share().chunk_end;
  pass.Request(begin);
  const OutputOfThread<kRows> mine;
  TileOutputs<kRows, pass.kLate> outputs(first_row, rows);
#pragma unroll 1
  for (int tile = pass.share().tile_begin; tile < pass.share().tile_end; ++tile) {
    outputs.Prepare(mine, tile);
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int first = begin; first < end; first += mine.kGroup) {
      const int count = min(mine.kGroup, end - first);
#pragma unroll 1
      for (int piece = 0; piece < count; ++piece) {
        pass.Load(first + piece);
        if (first + piece + 1 < end) {
          pass.Request(first + piece + 1);
        } else if (tile + 1 < pass.share().tile_end) {
          pass.Request(begin);
        }
        pass.template Multiply<1>(first + piece, piece,
                                  piece == 0 && (first > begin || tile > pass.share().tile_begin));
      }
      CtaSync();
      if (mine.piece == 0) {
#pragma unroll 1
        for (int piece = 0; piece < count; ++piece) {
          const float2 part = AddSums<kRows>(piece, mine);
          sum = first + piece == begin ? part : make_float2(sum.x + part.x, sum.y + part.y);
        }
      }
    }
    if (mine.first_piece == 0) outputs.Store(mine, tile, sum, mine.piece == 0);
  }
  pass.Save();
}

template <int kRows, bool kChunks, Inputs kInputs, typename Kind>
__device__ __forceinline__ void RunShare(const Run& run, int first_row, int rows) {
  if constexpr (kChunks) {
    RunChunks<kRows, kInputs, Kind>(run, first_row, rows);
  } else {
    RunTiles<kRows, kInputs, Kind>(run, first_row, rows);
  }
}

// Separate functions, so that each has all registers.
template <int kRows, bool kChunks, typename Kind>
__device__ __noinline__ void OnePass() {
  const Run run = CurrentRun();
  const int rows = Context().phase.rows;
  if constexpr (kRows == 1 && !kChunks) {
    if (run.flags.Has(RunFlag::kLocalInputs)) {
      RunShare<kRows, kChunks, Inputs::kLocal, Kind>(run, 0, rows);
      return;
    }
  }
  if constexpr (kRows <= kSmallBatchRows) {
    if (run.flags.Has(RunFlag::kReceives)) {
      RunShare<kRows, kChunks, Inputs::kExchange, Kind>(run, 0, rows);
      return;
    }
  }
  RunShare<kRows, kChunks, Inputs::kMemory, Kind>(run, 0, rows);
}
// More rows than one pass over the weights serves.
template <bool kChunks, typename Kind>
__device__ __noinline__ void ManyPasses() {
  const Run run = CurrentRun();
#pragma unroll 1
  for (int first = 0; first < Context().phase.rows; first += kPassRows) {
    if (first > 0) {
      CatchUp<Kind>(static_cast<int>(threadIdx.x / 32));
      CtaSync();
    }
    RunShare<kPassRows, kChunks, Inputs::kMemory, Kind>(
        run, first, min(kPassRows, Context().phase.rows - first));
  }
}

template <bool kChunks, typename Kind>
__device__ __forceinline__ void RunMatrix() {
  const int rows = Context().phase.rows;
  if (rows == 1) {
    OnePass<1, kChunks, Kind>();
  } else if (rows <= 4) {
    OnePass<4, kChunks, Kind>();
  } else if (rows <= 8) {
    OnePass<8, kChunks, Kind>();
  } else if (rows <= 16) {
    OnePass<16, kChunks, Kind>();
  } else if constexpr (Kind::kProducer) {
    OnePass<Kind::kProducerRows, kChunks, Kind>();
  } else {
    if (rows <= kPassRows) {
      OnePass<kPassRows, kChunks, Kind>();
    } else {
      ManyPasses<kChunks, Kind>();
    }
  }
}

// `flags`: of the operation.
template <typename Kind>
__device__ __forceinline__ void MatrixOp(OpFlags flags) {
  if (!flags.Has(ChunksFlag(Context().phase.small_batch))) {
    RunMatrix<false, Kind>();
  } else {
    RunMatrix<true, Kind>();
  }
}

}  // namespace loopspec::cuda

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

#include <type_traits>

#include "backends/cuda/decode/ops/matrix_epilogue.cuh"
#include "backends/cuda/decode/ops/matrix_inputs.cuh"
#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/packed_weights.cuh"
#include "backends/cuda/device/weight_ring.cuh"

namespace loopspec::cuda {

// What a lane loads from a stage at a time, load by load: of bf16 rows the weights of one step.
template <typename Ring>
struct RowWeights {
  static constexpr int kSteps = 1;
  uint32_t a[4];

  __device__ __forceinline__ void Load(uint32_t stage, int load, bool) {
    Ring::Read(stage, load, a);
  }
  __device__ __forceinline__ uint32_t AnyBits() const { return a[0]; }
  __device__ __forceinline__ void Expand(int, uint32_t (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = a[i];
  }
};
// Of units of few bits the codes of several.
template <WeightForm kForm>
struct UnitWeights : PackedWeights<kForm> {
  __device__ __forceinline__ void Load(uint32_t stage, int load, bool biased) {
    constexpr int kLoads = kUnitSteps / PackedWeights<kForm>::kSteps;  // of a unit
    const int unit = UnitBytes(biased ? WeightForm::kInt4Bias : kForm);
    PackedWeights<kForm>::Load(stage + static_cast<uint32_t>(load / kLoads * unit), load % kLoads,
                               biased);
  }
};

// The warp's parts of kPieces pieces, one stage each. Every piece has two accumulators, so that an
// instruction need not wait for the one before. Weights are loaded from the stage about kEarly
// steps before they are multiplied. `biased`: as PackedWeights has it. Returns a value that depends
// on the last loads.
template <typename Weights, int kPieces, int kEarly, int kTiles, int kShared>
__device__ __forceinline__ uint32_t MultiplyStages(const uint32_t (&stages)[kPieces], bool biased,
                                                   const KBlockInputs<kTiles, kShared>& in,
                                                   float (&c)[kPieces][kTiles][2][4]) {
  constexpr int kSteps = kBlockK / 16, kLoads = kSteps / Weights::kSteps;
  constexpr int kAhead = kEarly / Weights::kSteps > 2 ? kEarly / Weights::kSteps : 2;
  Weights loaded[kAhead][kPieces];
  uint4 shared[kShared > 0 ? kShared : 1];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) loaded[i][piece].Load(stages[piece], i, biased);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int load = i / Weights::kSteps;
    Weights(&now)[kPieces] = loaded[load % kAhead];
    uint32_t a[kPieces][4];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) now[piece].Expand(i % Weights::kSteps, a[piece]);
#pragma unroll
    for (int n = 0; n < kShared; ++n) {
      if (i % 2 == 0) shared[n] = in.Shared(i / 2, n);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4& b = n < in.kHeld ? in.b[i / 2][n] : shared[n - in.kHeld];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        Mma(c[piece][n][i % 2], a[piece][0], a[piece][1], a[piece][2], a[piece][3],
            i % 2 == 0 ? b.x : b.z, i % 2 == 0 ? b.y : b.w);
      }
    }
    if ((i + 1) % Weights::kSteps == 0 && load + kAhead < kLoads) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        now[piece].Load(stages[piece], load + kAhead, biased);
    }
  }
  uint32_t last = 0;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    last |= loaded[(kLoads - 2) % kAhead][piece].AnyBits() |
            loaded[(kLoads - 1) % kAhead][piece].AnyBits();
  }
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
// kRows of them. kForm: of the weights; kInt4 stands for kInt4Bias too.
template <int kRows, Inputs kInputs, WeightForm kForm, typename Kind>
class MatrixPass {
  using Weights =
      std::conditional_t<kForm == WeightForm::kBF16, RowWeights<Ring<Kind>>,
                         UnitWeights<kForm == WeightForm::kBF16 ? WeightForm::kInt8 : kForm>>;

 public:
  static constexpr bool kPacked = kForm != WeightForm::kBF16;
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
  // there. `tile`: where in the share the tile is; needed in shares of one chunk (kOneChunk).
  template <int kPieces, bool kOneChunk>
  __device__ __forceinline__ void Multiply(int chunk, int piece, bool wait, int tile) {
    float c[kPieces][kTiles][2][4] = {};
    if (HasKBlock(chunk)) {
      uint32_t blocks[kPieces];
      bool ends = true;  // the stage, which may have blocks of several tiles
      if constexpr (kPacked) {
        static_assert(kPieces == 1 && kPackedTilesOfStage == 2);
        blocks[0] = ring_.WaitStage();
        if constexpr (kOneChunk) {
          if (tile % 2 == 1) blocks[0] += BlockBytesHere();
          ends = tile % 2 == 1 || tile + 1 == share_.tile_end - share_.tile_begin;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) blocks[i] = ring_.Wait(i);
      }
      if constexpr (kShared > 0) WaitForCopies();
      const uint32_t last = MultiplyStages<Weights, kPieces, kEarly>(blocks, Biased(), in_, c);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) ring_.Refill(last, ends);
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

  __device__ __forceinline__ uint32_t BlockBytesHere() const {
    return static_cast<uint32_t>(BlockBytes(Biased() ? WeightForm::kInt4Bias : kForm));
  }
  __device__ __forceinline__ bool Biased() const {
    return kForm == WeightForm::kInt4 && share_.form == WeightForm::kInt4Bias;
  }

  MatrixShare share_;
  InputSource<kRows, kInputs> source_;
  KBlockInputs<kTiles, kShared> in_;
  Ring<Kind> ring_;
};

// The scales of int8 weights, for a thread's outputs of a tile. Sums of a chunk of k are multiplied
// before chunks are added, so that the bits are the same where chunks are added elsewhere.
template <WeightForm kForm>
class OutputScales {
 public:
  __device__ __forceinline__ void Request(int, int) {}
  __device__ __forceinline__ float2 Times(const float2& sum) const { return sum; }
};
template <>
class OutputScales<WeightForm::kInt8> {
 public:
  __device__ __forceinline__ void Request(int tile, int column) {
    const float* from = OpOf(CurrentRun()).scales + tile * kTileRows + column;
    scales_ = make_float2(__ldg(from), __ldg(from + 8));
  }
  __device__ __forceinline__ float2 Times(const float2& sum) const {
    return make_float2(__fmul_rn(sum.x, scales_.x), __fmul_rn(sum.y, scales_.y));
  }

 private:
  float2 scales_;
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
template <int kRows, Inputs kInputs, WeightForm kForm, typename Kind>
__device__ __forceinline__ void RunTiles(const Run& run, int first_row, int rows) {
  // Two at a time where the ring has both and registers suffice. With a producer warp one by one,
  // so that stages are released as early as possible.
  constexpr int kPieces =
      kRows <= 8 && Kind::kStages == 2 && !Kind::kProducer && kForm == WeightForm::kBF16 ? 2 : 1;
  MatrixPass<kRows, kInputs, kForm, Kind> pass(run, first_row, rows);
  if (pass.share().tile_begin == pass.share().tile_end) return;
  const int chunk = pass.share().chunk_begin, end = pass.share().tile_end;
  pass.Request(chunk);
  const OutputOfThread<kRows> mine;
  TileOutputs<kRows, pass.kLate> outputs(first_row, rows);
  OutputScales<kForm> scales;
  const auto prepare = [&](int first) {
    const int tile = min(first + mine.piece, end - 1);
    scales.Request(tile, mine.column);
    outputs.Prepare(mine, first + mine.piece);
  };
  prepare(pass.share().tile_begin);
  pass.Load(chunk);
#pragma unroll 1
  for (int first = pass.share().tile_begin; first < end; first += mine.kGroup) {
    const int count = min(mine.kGroup, end - first);
    const int tile = first - pass.share().tile_begin;
    const bool again = tile > 0;
    int piece = 0;
#pragma unroll 1
    for (; piece + kPieces <= count; piece += kPieces)
      pass.template Multiply<kPieces, true>(chunk, piece, again && piece == 0, tile + piece);
    if (kPieces > 1 && piece < count)
      pass.template Multiply<1, true>(chunk, piece, again && piece == 0, tile + piece);
    CtaSync();
    if (mine.first_piece < count) {
      const float2 sum = scales.Times(AddSums<kRows>(mine.piece, mine));
      outputs.Store(mine, first + mine.piece, sum, mine.piece < count);
    }
    // The next products overwrite the sums only after another CTA barrier (`wait` above, or the end
    // of the operation or pass).
    if (first + mine.kGroup < end) prepare(first + mine.kGroup);
  }
  pass.Save();
}

// Several chunks of each tile; their sums are added in order. Where the exchange is enabled only
// small batches take this path: shares for larger batches then have a single chunk. Wider models
// take it for QKV and gate/up, and every tile loads its inputs again, from the L2 cache.
template <int kRows, Inputs kInputs, WeightForm kForm, typename Kind>
__device__ __forceinline__ void RunChunks(const Run& run, int first_row, int rows) {
  MatrixPass<kRows, kInputs, kForm, Kind> pass(run, first_row, rows);
  if (pass.share().tile_begin == pass.share().tile_end) return;
  const int begin = pass.share().chunk_begin, end = pass.share().chunk_end;
  pass.Request(begin);
  const OutputOfThread<kRows> mine;
  TileOutputs<kRows, pass.kLate> outputs(first_row, rows);
#pragma unroll 1
  for (int tile = pass.share().tile_begin; tile < pass.share().tile_end; ++tile) {
    outputs.Prepare(mine, tile);
    OutputScales<kForm> scales;
    scales.Request(tile, mine.column);
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
        pass.template Multiply<1, false>(
            first + piece, piece, piece == 0 && (first > begin || tile > pass.share().tile_begin),
            0);
      }
      CtaSync();
      if (mine.piece == 0) {
#pragma unroll 1
        for (int piece = 0; piece < count; ++piece) {
          const float2 part = scales.Times(AddSums<kRows>(piece, mine));
          sum = first + piece == begin
                    ? part
                    : make_float2(__fadd_rn(sum.x, part.x), __fadd_rn(sum.y, part.y));
        }
      }
    }
    if (mine.first_piece == 0) outputs.Store(mine, tile, sum, mine.piece == 0);
  }
  pass.Save();
}

template <int kRows, bool kChunks, Inputs kInputs, WeightForm kForm, typename Kind>
__device__ __forceinline__ void RunShare(const Run& run, int first_row, int rows) {
  if constexpr (kChunks) {
    RunChunks<kRows, kInputs, kForm, Kind>(run, first_row, rows);
  } else {
    RunTiles<kRows, kInputs, kForm, Kind>(run, first_row, rows);
  }
}

// Separate functions, so that each has all registers.
template <int kRows, bool kChunks, WeightForm kForm, typename Kind>
__device__ __noinline__ void OnePass() {
  const Run run = CurrentRun();
  const int rows = Context().phase.rows;
  if constexpr (kRows == 1 && !kChunks) {
    if (run.flags.Has(RunFlag::kLocalInputs)) {
      RunShare<kRows, kChunks, Inputs::kLocal, kForm, Kind>(run, 0, rows);
      return;
    }
  }
  if constexpr (kRows <= kSmallBatchRows) {
    if (run.flags.Has(RunFlag::kReceives)) {
      RunShare<kRows, kChunks, Inputs::kExchange, kForm, Kind>(run, 0, rows);
      return;
    }
  }
  RunShare<kRows, kChunks, Inputs::kMemory, kForm, Kind>(run, 0, rows);
}
// More rows than one pass over the weights serves.
template <bool kChunks, WeightForm kForm, typename Kind>
__device__ __noinline__ void ManyPasses() {
  const Run run = CurrentRun();
#pragma unroll 1
  for (int first = 0; first < Context().phase.rows; first += kPassRows) {
    if (first > 0) {
      CatchUp<Kind>(static_cast<int>(threadIdx.x / 32));
      CtaSync();
    }
    RunShare<kPassRows, kChunks, Inputs::kMemory, kForm, Kind>(
        run, first, min(kPassRows, Context().phase.rows - first));
  }
}

// Where there is code for three forms of weights, there is less of it for numbers of rows: every
// instance takes a while to compile.
template <bool kChunks, WeightForm kForm, typename Kind>
__device__ __forceinline__ void RunMatrixOfForms() {
  const int rows = Context().phase.rows;
  if (rows == 1) {
    OnePass<1, kChunks, kForm, Kind>();
    return;
  }
  if constexpr (kForm != WeightForm::kBF16) {
    if (rows <= 4) {
      OnePass<4, kChunks, kForm, Kind>();
      return;
    }
  }
  if (rows <= 8) {
    OnePass<8, kChunks, kForm, Kind>();
  } else if constexpr (Kind::kProducer) {
    OnePass<Kind::kProducerRows, kChunks, kForm, Kind>();
  } else {
    ManyPasses<kChunks, kForm, Kind>();
  }
}

template <bool kChunks, WeightForm kForm, typename Kind>
__device__ __forceinline__ void RunMatrix() {
  const int rows = Context().phase.rows;
  if (rows == 1) {
    OnePass<1, kChunks, kForm, Kind>();
  } else if (rows <= 4) {
    OnePass<4, kChunks, kForm, Kind>();
  } else if (rows <= 8) {
    OnePass<8, kChunks, kForm, Kind>();
  } else if (rows <= 16) {
    OnePass<16, kChunks, kForm, Kind>();
  } else if constexpr (Kind::kProducer) {
    OnePass<Kind::kProducerRows, kChunks, kForm, Kind>();
  } else {
    if (rows <= kPassRows) {
      OnePass<kPassRows, kChunks, kForm, Kind>();
    } else {
      ManyPasses<kChunks, kForm, Kind>();
    }
  }
}

template <bool kChunks, WeightForm kForm, typename Kind>
__device__ __forceinline__ void RunMatrixIn() {
  if constexpr (Kind::kPackedWeights) {
    RunMatrixOfForms<kChunks, kForm, Kind>();
  } else {
    RunMatrix<kChunks, kForm, Kind>();
  }
}
template <WeightForm kForm, typename Kind>
__device__ __forceinline__ void MatrixOfForm(OpFlags flags) {
  if (!flags.Has(ChunksFlag(Context().phase.small_batch))) {
    RunMatrixIn<false, kForm, Kind>();
  } else {
    RunMatrixIn<true, kForm, Kind>();
  }
}

// `flags`: of the operation.
template <typename Kind>
__device__ __forceinline__ void MatrixOp(OpFlags flags) {
  if constexpr (Kind::kPackedWeights) {
    const WeightForm form = Context().shares[OpOf(CurrentRun()).matrix].form;
    if (form == WeightForm::kInt8) return MatrixOfForm<WeightForm::kInt8, Kind>(flags);
    if (IsInt4(form)) return MatrixOfForm<WeightForm::kInt4, Kind>(flags);
  }
  MatrixOfForm<WeightForm::kBF16, Kind>(flags);
}

}  // namespace loopspec::cuda

// A matrix product of many rows by the matrix instruction of a warp: the weights are read once for
// all rows.
//
// A CTA computes one item, from stages that a producer warp fills (wide_stages.cuh). The other
// warps multiply, each 16 or 32 outputs with 16 or 32 rows.
//
// The order of additions is that of ops/matrix_op.cuh, so the bits are those of a single row:
// sixteen instructions for each block of k, in turn into two accumulators that are then added; the
// blocks of a chunk in order; then the chunks in order, here or by the row operation.
//
// An operation is over in a few microseconds, so its code has to be short: what runs once is
// fetched from memory.
#pragma once

#include "backends/cuda/decode/wide/wide_epilogue.cuh"
#include "backends/cuda/decode/wide/wide_stages.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/wide_context.cuh"

namespace loopspec::cuda {

// kDown x kAcross warps, each of kM tiles of 16 outputs and of kTiles tiles of eight rows.
// kManyChunks: whole sums may be of several chunks.
template <bool kManyChunks, int kDown, int kAcross, int kM, int kTiles, int kStageCount, int kBox>
struct WideTile {
  static constexpr int kOutputs = kDown * kM * kTileRows, kRows = kAcross * kTiles * 8;
  static constexpr int kStages = kStageCount;
  static constexpr int kWarpsHere = kDown * kAcross, kThreadsHere = (kWarpsHere + 1) * 32;
  using Stages = WideStages<kOutputs, kRows, kStages, kBox>;
};

template <MatrixKind kKind, bool kManyChunks, int kDown, int kAcross, int kM, int kTiles,
          int kStages, int kBox>
class WideProduct {
  using Tile = WideTile<kManyChunks, kDown, kAcross, kM, kTiles, kStages, kBox>;
  using Stages = typename Tile::Stages;
  static constexpr int kWarpsHere = Tile::kWarpsHere, kPerBlock = Stages::kPerBlock,
                       kStageBytes = Stages::kStageBytes;

 public:
  static __device__ __forceinline__ void RunOp(const DecodeParams& params, const WideRun& run,
                                               const WideProductParams& how) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (threadIdx.x == 0) Stages::Init(kWarpsHere);
    LetNextOperationStart();
    __syncthreads();
    const WideItemPlace item(run, how, Tile::kOutputs, Tile::kRows);
    if (warp == kWarpsHere) {
      if (threadIdx.x % 32 == 0) Stages::Produce(item, how);
      return;
    }
    WideProduct product(warp);
    product.Multiply(item.loads);
    // The inputs have arrived, but this warp has not waited itself for the operations before.
    WaitForOperationsBefore();
    product.Store(params, run, how, item);
  }

 private:
  explicit __device__ __forceinline__ WideProduct(int warp)
      : down_(warp % kDown), across_(warp / kDown) {}

  // The lane's operands for 32 elements of k.
  struct Operands {
    uint32_t a[2][kM][4];   // [16 elements of k][16 outputs]
    uint32_t b[kTiles][4];  // [8 rows][8 elements of k]

    __device__ __forceinline__ void Load(uint32_t weights, uint32_t inputs, int h) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        LoadMatrix((inputs ^ static_cast<uint32_t>(h * 64)) + static_cast<uint32_t>(n * 1024),
                   b[n]);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int m = 0; m < kM; ++m)
          LoadMatrix((weights ^ static_cast<uint32_t>((2 * h + step) * 32)) +
                         static_cast<uint32_t>(m * kTileRows * 128),
                     a[step][m]);
      }
    }
    __device__ __forceinline__ void Multiply(float (&c)[kM][kTiles][2][4]) const {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          Mma(c[m][n][0], a[0][m][0], a[0][m][1], a[0][m][2], a[0][m][3], b[n][0], b[n][1]);
          Mma(c[m][n][1], a[1][m][0], a[1][m][1], a[1][m][2], a[1][m][3], b[n][2], b[n][3]);
        }
      }
    }
    // Depends on all loads.
    __device__ __forceinline__ uint32_t Mark() const {
      uint32_t mark = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mark |= b[n][0];
#pragma unroll
      for (int m = 0; m < kM; ++m) mark |= a[0][m][0] | a[1][m][0];
      return mark;
    }
  };
  static_assert(kWideStageK == 64);

  static constexpr bool kChunks = kManyChunks && kKind != MatrixKind::kPartial;

  // Operands are loaded one step ahead of the products that take them.
  __device__ __forceinline__ void Multiply(int loads) {
    // Both operands by `ldmatrix`, whose lanes name 16-byte parts of rows: part c of row r is at
    // c ^ r % 8, and the next parts of k are found by flipping bits of the address.
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    const uint32_t weights = Stages::Stage(0) +
                             static_cast<uint32_t>(down_ * kM * kTileRows * Stages::kRowBytes) +
                             row * Stages::kRowBytes + (half ^ row % 8) * 16;
    const uint32_t inputs =
        Stages::Stage(0) +
        static_cast<uint32_t>(Stages::kInputs + across_ * kTiles * 8 * Stages::kRowBytes) +
        lane % 8 * Stages::kRowBytes + (lane / 8 ^ lane % 8) * 16;
    const uint32_t full = Stages::Full(0);
    uint32_t stage = 0, parity = 0;
    const auto wait = [&] {
      WaitBarrier(full + stage * 8, parity);
      __syncwarp();  // lanes may have left the loop at different times
    };
    Operands first, second;
    wait();
    first.Load(weights, inputs, 0);
#pragma unroll 1
    for (int n = 0; n < loads; n += kPerBlock) {
      float c[kM][kTiles][2][4] = {};
#pragma unroll
      for (int s = 0; s < kPerBlock; ++s) {
        second.Load(weights + stage * kStageBytes, inputs + stage * kStageBytes, 1);
        first.Multiply(c);
        const uint32_t used = full + (kStages + stage) * 8;
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
        if (s + 1 < kPerBlock || n + kPerBlock < loads) {
          wait();
          first.Load(weights + stage * kStageBytes, inputs + stage * kStageBytes, 0);
        }
        second.Multiply(c);
        // The warp has read the stage before: all lanes' loads are waited for.
        const uint32_t all = __ballot_sync(0xFFFFFFFFu, second.Mark() == 0x7FC1A5D3u);
        if (lane == 0) Arrive(After(all, used));
      }
      // Adds the block's sums to those of the blocks before, and a chunk's to those of the chunks
      // before.
      const bool begins = n % Stages::kPerChunk == 0;
      if (kChunks && n > 0 && begins)
        ForEachSum([&](float& sum, int m, int t, int e) { AddChunk(sum, m, 4 * t + e, n); });
      ForEachSum([&](float& sum, int m, int t, int e) {
        const float v = c[m][t][0][e] + c[m][t][1][e];
        sum = begins ? v : sum + v;
      });
    }
    // What the missing blocks of a short chunk add elsewhere: it turns -0 into 0.
    if (loads % Stages::kPerChunk != 0)
      ForEachSum([](float& sum, int, int, int) { sum = __fadd_rn(sum, 0.0f); });
    if (kChunks && loads > Stages::kPerChunk)
      ForEachSum(
          [&](float& sum, int m, int t, int e) { sum = __fadd_rn(before_[m][4 * t + e], sum); });
  }

  // The chunk that has just ended at load n.
  __device__ __forceinline__ void AddChunk(float sum, int m, int i, int n) {
    if constexpr (kChunks)
      before_[m][i] = n == Stages::kPerChunk ? sum : __fadd_rn(before_[m][i], sum);
  }

  template <typename F>  // f(float& sum, int m, int n, int e)
  __device__ __forceinline__ void ForEachSum(F f) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) f(sum_[m][4 * n + e], m, n, e);
      }
    }
  }

  __device__ __forceinline__ void Store(const DecodeParams& p, const WideRun& run,
                                        const WideProductParams& how,
                                        const WideItemPlace& item) const {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const int first = item.row + across_ * kTiles * 8 + 2 * t;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int tile = item.output / kTileRows + down_ * kM + m;
      if (tile >= how.matrix.tiles) return;
      TileEpilogue<kKind, kTiles * 4, true> epilogue(
          p, run, {tile, g, item.block / kWarps, how.plane_offset}, first);
      epilogue.LoadEarly();
      epilogue.Store(sum_[m]);
    }
  }

  int down_, across_;
  // Initialised, because the compiler does not see that there is always a first block.
  float sum_[kM][kTiles * 4] = {};
  float before_[kChunks ? kM : 1][kChunks ? kTiles * 4 : 1] = {};  // of chunks before
};

}  // namespace loopspec::cuda

// A matrix product of many rows: the weights are read once for all of them.
//
// A CTA computes one item (program/wide_work.h): a tile of outputs by rows for one chunk of k. A
// producer warp brings weights and inputs into shared memory by TMA, some stages of kWideStageK
// elements of k ahead. The other warps multiply, each 16 or 32 outputs with 16 or 32 rows.
//
// The order of additions is that of ops/matrix_op.cuh, so the bits are those of a single row:
// sixteen instructions for each block of k, in turn into two accumulators that are then added; the
// blocks of a chunk in order; the row operation adds the chunks in order.
//
// An operation is over in a few microseconds, so its code has to be short: what runs once is
// fetched from memory.
#pragma once

#include "backends/cuda/decode/instructions.cuh"
#include "backends/cuda/decode/ops/input_layout.cuh"
#include "backends/cuda/decode/wide/wide_context.cuh"
#include "backends/cuda/decode/wide/wide_epilogue.cuh"
#include "backends/cuda/program/wide_work.h"

namespace loopspec::cuda {

struct WideProductParams {
  WideMatrix matrix;
  WideWork work;
  const TensorMap* map;
  const bf16* input;     // in the order of ops/input_layout.cuh
  int32_t ld;            // elements of a row of it
  int32_t plane_offset;  // of the layer, relative to the row's first plane
};

// kDown x kAcross warps, each of kM tiles of 16 outputs and of kTiles tiles of eight rows. kBox:
// rows of weights that one copy brings.
template <int kDown, int kAcross, int kM, int kTiles, int kStages, int kBox>
struct WideTile {
  static constexpr int kOutputs = kDown * kM * kTileRows, kRows = kAcross * kTiles * 8;
  static_assert(kOutputs % kBox == 0 && kRows % kPassRows == 0);
  static constexpr int kWarpsHere = kDown * kAcross, kThreadsHere = (kWarpsHere + 1) * 32;
  static constexpr int kStageBytes = (kOutputs + kRows) * kWideStageK * 2;
  // Shared memory: mbarriers (full, then empty), and the stages.
  static constexpr int kStagesOffset = 1024;
  static constexpr int kSharedBytes = kStagesOffset + kStages * kStageBytes;
};

template <MatrixKind kKind, int kDown, int kAcross, int kM, int kTiles, int kStages, int kBox>
class WideProduct : WideTile<kDown, kAcross, kM, kTiles, kStages, kBox> {
  using Tile = WideTile<kDown, kAcross, kM, kTiles, kStages, kBox>;
  using Tile::kOutputs;
  using Tile::kRows;
  using Tile::kStageBytes;
  using Tile::kStagesOffset;
  using Tile::kWarpsHere;

 public:
  static __device__ __forceinline__ void RunOp(const DecodeParams& params, const WideRun& run,
                                               const WideProductParams& how) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        InitBarrier(Full(i), 1);
        InitBarrier(Empty(i), kWarpsHere);
      }
      FenceBarrierInit();
    }
    LetNextOperationStart();
    __syncthreads();
    const Item item(run, how);
    if (warp == kWarpsHere) {
      if (threadIdx.x % 32 == 0) Produce(item, how);
      return;
    }
    WideProduct product(warp);
    product.Multiply(item.loads);
    // The inputs have arrived, but this warp has not waited itself for the operations before.
    WaitForOperationsBefore();
    product.Store(params, run, how, item);
  }

 private:
  static constexpr int kPerBlock = kBlockK / kWideStageK;

  struct Item {
    int output, row, block;  // its first of each; blocks of k
    int groups;              // of kPassRows rows that exist; there is no memory for others
    int loads;

    __device__ __forceinline__ Item(const WideRun& run, const WideProductParams& how) {
      const WideItem item = WideItem::Of(how.work, static_cast<int>(blockIdx.x));
      output = item.output_tile * kOutputs;
      row = item.row_tile * kRows;
      groups = min(kRows / kPassRows, (run.rows - row + kPassRows - 1) / kPassRows);
      block = item.chunk * kWarps;
      loads = min(kWarps, how.matrix.k_blocks - block) * kPerBlock;
    }
  };

  static __device__ __forceinline__ uint32_t Full(int stage) {
    return SharedAddress(shared_memory) + static_cast<uint32_t>(stage) * 8;
  }
  static __device__ __forceinline__ uint32_t Empty(int stage) { return Full(kStages + stage); }
  static __device__ __forceinline__ uint32_t Stage(int stage) {
    return SharedAddress(shared_memory) +
           static_cast<uint32_t>(kStagesOffset + stage * kStageBytes);
  }

  // Load n goes to stage n % kStages. Weights depend on no operation before; inputs do.
  static __device__ __forceinline__ void RequestWeights(const Item& item,
                                                        const WideProductParams& how, int n,
                                                        int stage) {
    ExpectBytes(Full(stage),
                static_cast<uint32_t>((kOutputs + item.groups * kPassRows) * kWideStageK * 2));
#pragma unroll
    for (int box = 0; box < kOutputs / kBox; ++box) {
      CopyBox(Stage(stage) + static_cast<uint32_t>(box * kBox * kWideStageK * 2), how.map,
              item.block * kBlockK + n * kWideStageK, item.output + box * kBox, Full(stage));
    }
  }
  // A group of kPassRows rows by kWideStageK elements is contiguous (ops/input_layout.cuh).
  static __device__ __forceinline__ void RequestInputs(const Item& item,
                                                       const WideProductParams& how, int n,
                                                       int stage) {
    constexpr int kElements = kPassRows * kWideStageK;
    const size_t stride = static_cast<size_t>(kPassRows) * static_cast<size_t>(how.ld);
    const bf16* from = how.input + static_cast<size_t>(item.row / kPassRows) * stride +
                       static_cast<size_t>(item.block * (kBlockK / kWideStageK) + n) * kElements;
    uint32_t to = Stage(stage) + static_cast<uint32_t>(kOutputs * kWideStageK * 2);
    for (int group = 0; group < item.groups; ++group) {
      CopyLasting(to, from, kElements * 2, Full(stage));
      from += stride;
      to += kElements * 2;
    }
  }
  static __device__ __forceinline__ void Produce(const Item& item, const WideProductParams& how) {
    const int first = min(kStages, item.loads);
    for (int n = 0; n < first; ++n) RequestWeights(item, how, n, n);
    WaitForOperationsBefore();
    FenceBeforeCopies();
    for (int n = 0; n < first; ++n) RequestInputs(item, how, n, n);
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int n = kStages; n < item.loads; ++n) {
      WaitBarrier(Empty(stage), parity);
      RequestWeights(item, how, n, stage);
      RequestInputs(item, how, n, stage);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  explicit __device__ __forceinline__ WideProduct(int warp)
      : down_(warp % kDown), across_(warp / kDown) {}

  // The lane's operands for 32 elements of k.
  struct Operands {
    uint32_t a[2][kM][4];  // [16 elements of k][16 outputs]
    uint4 b[kTiles];

    __device__ __forceinline__ void Load(uint32_t weights, uint32_t inputs, int h) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        b[n] = LoadShared16(inputs + static_cast<uint32_t>(n / 4 * kPassRows * kWideStageK * 2 +
                                                           h * kPassRows * 64 + n % 4 * 8 * 64));
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
          Mma(c[m][n][0], a[0][m][0], a[0][m][1], a[0][m][2], a[0][m][3], b[n].x, b[n].y);
          Mma(c[m][n][1], a[1][m][0], a[1][m][1], a[1][m][2], a[1][m][3], b[n].z, b[n].w);
        }
      }
    }
    // Depends on all loads.
    __device__ __forceinline__ uint32_t Mark() const {
      uint32_t mark = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mark |= b[n].x;
#pragma unroll
      for (int m = 0; m < kM; ++m) mark |= a[0][m][0] | a[1][m][0];
      return mark;
    }
  };
  static_assert(kWideStageK == 64);

  // Operands are loaded one step ahead of the products that take them.
  __device__ __forceinline__ void Multiply(int loads) {
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    const uint32_t weights = Stage(0) +
                             static_cast<uint32_t>(down_ * kM * kTileRows * kWideStageK * 2) +
                             row * 128 + (half ^ row % 8) * 16;
    // Groups of kPassRows rows; within them 32 elements of k, then rows.
    const uint32_t inputs =
        Stage(0) +
        static_cast<uint32_t>(kOutputs * kWideStageK * 2 +
                              across_ * kTiles / 4 * kPassRows * kWideStageK * 2 +
                              across_ * kTiles % 4 * 8 * 64) +
        lane * 16;
    const uint32_t full = Full(0);
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
      // Adds the block's sums to those of the blocks before.
      const bool begins = n == 0;
      ForEachSum([&](float& sum, int m, int t, int e) {
        const float v = c[m][t][0][e] + c[m][t][1][e];
        sum = begins ? v : sum + v;
      });
    }
    // What the missing blocks of a short chunk add elsewhere: it turns -0 into 0.
    if (loads < kWarps * kPerBlock)
      ForEachSum([](float& sum, int, int, int) { sum = __fadd_rn(sum, 0.0f); });
  }

  template <typename F>  // f(float& sum, int m, int n, int e)
  __device__ __forceinline__ void ForEachSum(F f) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) f(sum_[m][n][e], m, n, e);
      }
    }
  }

  // The epilogue of the fragments as the lane has them: outputs g and g + 8 of a tile for two
  // neighbouring rows of every eight. Loads of a tile's rows are in flight together.
  __device__ __forceinline__ void Store(const DecodeParams& p, const WideRun& run,
                                        const WideProductParams& how, const Item& item) const {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const int first = item.row + across_ * kTiles * 8 + 2 * t;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int tile = item.output / kTileRows + down_ * kM + m;
      if (tile >= how.matrix.tiles) return;
      const auto epilogue =
          MakeEpilogue<kKind>(p, run, {tile, g, item.block / kWarps, how.plane_offset});
      typename decltype(epilogue)::Loaded loaded[2 * kTiles];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int row = first + i / 2 * 8 + i % 2;
        if (row < run.rows) loaded[i] = epilogue.Load(row);
      }
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int row = first + i / 2 * 8 + i % 2;
        if (row < run.rows)
          epilogue.Store(row, loaded[i], sum_[m][i / 2][i % 2], sum_[m][i / 2][2 + i % 2]);
      }
    }
  }

  int down_, across_;
  // Initialised, because the compiler does not see that there is always a first block.
  float sum_[kM][kTiles][4] = {};
};

}  // namespace loopspec::cuda

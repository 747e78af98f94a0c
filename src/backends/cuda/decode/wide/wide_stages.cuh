// What the products of many rows have in common, whichever instruction multiplies: a CTA computes
// one item (program/wide_work.h), and a producer warp brings its weights and inputs into shared
// memory by TMA, some stages of kWideStageK elements of k ahead.
#pragma once

#include "backends/cuda/decode/wide/wide_product_kernels.h"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/wide_context.cuh"
#include "backends/cuda/program/wide_work.h"

namespace loopspec::cuda {

// An item: its first output, row and block of k, how many of its rows are copied, and how many
// loads there are, of kWideStageK elements of k each.
struct WideItemPlace {
  int output, row, block;
  int rows;  // that exist, rounded up to eight; there may be no memory for others
  int loads;

  __device__ __forceinline__ WideItemPlace(const WideRun& run, const WideProductParams& how,
                                           int tile_outputs, int tile_rows) {
    const WideItem item = WideItem::Of(how.work, static_cast<int>(blockIdx.x));
    output = item.output_tile * tile_outputs;
    row = item.row_tile * tile_rows;
    rows = min(tile_rows, (run.rows - row + 7) / 8 * 8);
    block = item.chunk * kWarps;
    loads = min(BlocksOfItem(how.matrix), how.matrix.k_blocks - block) * (kBlockK / kWideStageK);
  }
};

// The ring of stages of a tile of kOutputs x kRows: weights, then inputs, both in the 128-byte
// swizzle. Weights of few bits are units, a tile of 16 outputs after the other; kInt4 has room for
// biases. kBox: rows of weights that one copy brings.
template <int kOutputs, int kRows, int kStages, int kBox, WeightForm kForm = WeightForm::kBF16>
struct WideStages {
  static_assert(kOutputs % kBox == 0 && kRows % 8 == 0 && kWideStageK == kWideInputGroup);
  static_assert(kWideStageK == kUnitK && kBox % kTileRows == 0);
  static constexpr int kRowBytes = kWideStageK * 2;
  static constexpr int kMostUnitBytes =
      UnitBytes(kForm == WeightForm::kInt4 ? WeightForm::kInt4Bias : kForm);
  static constexpr int kInputs = (kOutputs / kTileRows * kMostUnitBytes + 1023) / 1024 * 1024;
  static constexpr int kStageBytes = kInputs + kRows * kRowBytes;
  static_assert(kBox * kRowBytes % 1024 == 0 && kStageBytes % 1024 == 0);  // the swizzle's period
  static constexpr int kPerBlock = kBlockK / kWideStageK, kPerChunk = kWarps * kPerBlock;
  // Shared memory: mbarriers (full, then empty), and the stages.
  static constexpr int kStagesOffset = 1024;
  static constexpr int kSharedBytes = kStagesOffset + kStages * kStageBytes;

  static __device__ __forceinline__ uint32_t Full(int stage) {
    return SharedAddress(shared_memory) + static_cast<uint32_t>(stage) * 8;
  }
  static __device__ __forceinline__ uint32_t Empty(int stage) { return Full(kStages + stage); }
  static __device__ __forceinline__ uint32_t Stage(int stage) {
    return SharedAddress(shared_memory) +
           static_cast<uint32_t>(kStagesOffset + stage * kStageBytes);
  }

  // By one thread; a CTA barrier must follow. `warps`: that give stages back.
  static __device__ __forceinline__ void Init(uint32_t warps) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(Full(i), 1);
      InitBarrier(Empty(i), warps);
    }
    FenceBarrierInit();
  }

  // Load n goes to stage n % kStages. Weights depend on no operation before; inputs do. Weights
  // leave the L2 cache to what the next operations read, their code included.
  static __device__ __forceinline__ void RequestWeights(const WideItemPlace& item,
                                                        const WideProductParams& how, int n,
                                                        int stage) {
    const int unit_bytes = UnitBytes(kForm == WeightForm::kInt4 ? how.matrix.form : kForm);
    ExpectBytes(Full(stage),
                static_cast<uint32_t>(kOutputs / kTileRows * unit_bytes + item.rows * kRowBytes));
#pragma unroll
    for (int box = 0; box < kOutputs / kBox; ++box) {
      if constexpr (kForm != WeightForm::kBF16) {
        constexpr int kTiles = kBox / kTileRows;
        CopyTile(Stage(stage) + static_cast<uint32_t>(box * kTiles * unit_bytes), how.map,
                 item.output / kTileRows + box * kTiles, item.block * kPerBlock + n, Full(stage));
        continue;
      }
      CopyBox(Stage(stage) + static_cast<uint32_t>(box * kBox * kRowBytes), how.map,
              item.block * kBlockK + n * kWideStageK, item.output + box * kBox, Full(stage),
              kEvictFirst);
    }
  }
  static __device__ __forceinline__ void RequestInputs(const WideItemPlace& item,
                                                       const WideProductParams& how, int n,
                                                       int stage) {
    const size_t group = static_cast<size_t>(item.block * kPerBlock + n);
    CopyLasting(
        Stage(stage) + kInputs,
        how.input + (group * static_cast<size_t>(how.input_rows) + static_cast<size_t>(item.row)) *
                        kWideStageK,
        static_cast<uint32_t>(item.rows * kRowBytes), Full(stage));
  }
  // All loads of an item, by one thread.
  static __device__ __forceinline__ void Produce(const WideItemPlace& item,
                                                 const WideProductParams& how) {
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
};

}  // namespace loopspec::cuda

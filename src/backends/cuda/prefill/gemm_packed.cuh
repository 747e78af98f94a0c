// Products of prompts with weights of few bits (gemm_packed.h). Weights are the long side of the
// matrix instruction, so that each warp makes its operand of codes in registers, while the products
// of the stage before run; inputs are its other operand, from shared memory. Sums then stand by
// outputs, and go through shared memory to stand by rows, as the epilogues want them. Included by a
// file for each form of weights.
#pragma once

#include <algorithm>

#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/device/packed_weights.cuh"
#include "backends/cuda/prefill/gemm_epilogue.cuh"
#include "backends/cuda/prefill/gemm_packed.h"
#include "backends/cuda/prefill/gemm_tiles.cuh"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

constexpr int kConsumers = 2;  // warpgroups that multiply, 64 outputs of the tile each
constexpr int kThreadsOfGemm = (kConsumers + 1) * kWarpgroup;
constexpr int kOutputsOfGroup = kPackedGemmOutputs / kConsumers;
static_assert(kGemmK == kUnitK);

template <WeightForm kForm, int kRows>
struct PackedStages {
  // kInt4 has room for biases.
  static constexpr int kMostUnitBytes =
      UnitBytes(kForm == WeightForm::kInt4 ? WeightForm::kInt4Bias : kForm);
  static constexpr int kInputBytes = kRows * kGemmK * 2;
  static constexpr int kBytes = kInputBytes + kPackedGemmOutputs / kTileRows * kMostUnitBytes;
  // Of each consumer, 64 rows by its outputs on their way from one order to the other. With rows
  // four banks apart neither order has more than two accesses to a bank.
  static constexpr int kTurnStride = kOutputsOfGroup + 4;  // floats
  static constexpr int kTurnBytes = 64 * kTurnStride * static_cast<int>(sizeof(float));
  static constexpr int kCount = ((224 << 10) - kConsumers * kTurnBytes) / kBytes;
  static constexpr int kTurn = kCount * kBytes;                      // offset
  static constexpr int kBarriers = kTurn + kConsumers * kTurnBytes;  // full, then empty
  // Boxes begin at multiples of 1024 bytes, which the array itself need not.
  static constexpr int kShared = kBarriers + 2 * kCount * 8 + 1024;
  static_assert(kBytes % kSwizzleRows == 0 && kCount >= 4);
  static_assert(kShared <= 227 << 10);
};

// Units of a tile's outputs for one step of k.
__device__ __forceinline__ void CopyUnits(uint32_t shared, const TensorMap* map, int unit, int tile,
                                          uint32_t barrier, uint64_t hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(0), "r"(unit), "r"(tile), "l"(hint)
      : "memory");
}

// One thread fills the ring, for all of the CTA's tiles.
template <WeightForm kForm, int kRows>
__device__ void Produce(const TensorMap& input, const TensorMap& units, const GemmShape& shape,
                        WeightForm form, uint32_t shared) {
  using Ring = PackedStages<kForm, kRows>;
  const TileOrder<kRows, kPackedGemmOutputs> order(shape);
  const uint32_t full = shared + Ring::kBarriers, empty = full + Ring::kCount * 8;
  const int unit_bytes = UnitBytes(kForm == WeightForm::kInt4 ? form : kForm);
  const auto copy_weights = [&](int stage, int k, int column) {
    ExpectBytes(
        full + stage * 8,
        static_cast<uint32_t>(Ring::kInputBytes + kPackedGemmOutputs / kTileRows * unit_bytes));
    CopyUnits(shared + stage * Ring::kBytes + Ring::kInputBytes, &units, k, column / kTileRows,
              full + stage * 8, shape.weights_hint);
  };
  const auto copy_inputs = [&](int stage, int k, int row) {
#pragma unroll
    for (int box = 0; box < kRows / kGemmRows; ++box) {
      CopyBox(shared + stage * Ring::kBytes + box * (kGemmRows * kGemmK * 2), &input, k * kGemmK,
              shape.first_row + row + box * kGemmRows, full + stage * 8, kEvictNormal);
    }
  };
  FillRing<Ring::kCount>(order, shape.k_stages, static_cast<int>(blockIdx.x),
                         static_cast<int>(gridDim.x), empty, copy_weights, copy_inputs);
}

// A warp's weights of a stage: four steps of 16 outputs by 16 of k.
template <WeightForm kForm>
struct StageWeights {
  uint32_t a[kUnitSteps][4];

  __device__ __forceinline__ void Take(uint32_t unit, bool biased) {
    using Weights = PackedWeights<kForm>;
    Weights loads[kUnitSteps / Weights::kSteps];
#pragma unroll
    for (int i = 0; i < kUnitSteps / Weights::kSteps; ++i) loads[i].Load(unit, i, biased);
#pragma unroll
    for (int i = 0; i < kUnitSteps; ++i)
      loads[i / Weights::kSteps].Expand(i % Weights::kSteps, a[i]);
  }
};

template <WeightForm kForm, int kRows, typename Epilogue>
__device__ void Consume(const GemmShape& shape, WeightForm form, const float* scales,
                        uint32_t shared, int consumer, const Epilogue& epilogue) {
  using Ring = PackedStages<kForm, kRows>;
  const TileOrder<kRows, kPackedGemmOutputs> order(shape);
  const uint32_t full = shared + Ring::kBarriers, empty = full + Ring::kCount * 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  const int g = lane / 4, t = lane % 4;
  const bool biased = form == WeightForm::kInt4Bias;
  const uint32_t my_unit =
      shared + Ring::kInputBytes +
      static_cast<uint32_t>((consumer * 4 + warp) *
                            UnitBytes(kForm == WeightForm::kInt4 ? form : kForm));
  RingPlace<Ring::kCount> at;
  for (int tile = static_cast<int>(blockIdx.x); tile < order.count();
       tile += static_cast<int>(gridDim.x)) {
    int row, column;
    order.At(tile, row, column);
    const int outputs_from = column + consumer * kOutputsOfGroup;
    float scale[2] = {1.0f, 1.0f};  // of outputs g and g + 8
    if constexpr (kForm == WeightForm::kInt8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int output = min(outputs_from + warp * kTileRows + g + 8 * i, shape.outputs - 1);
        scale[i] = __ldg(scales + output);
      }
    }
    float sums[kRows / 2];
    StageWeights<kForm> weights[2];
    int before = 0;
    const auto multiply = [&](StageWeights<kForm>& now, int k) {
      WaitBarrier(full + at.stage * 8, at.parity);
      __syncwarp();
      now.Take(my_unit + at.stage * Ring::kBytes, biased);
      const uint64_t b = DescribeByRows(shared + at.stage * Ring::kBytes);
      PinSums(sums);
      BeginProducts();
#pragma unroll
      for (int i = 0; i < kGemmK / 16; ++i)
        MultiplyByRows(sums, now.a[i], b + i * kNextK, k > 0 || i > 0);
      CommitProducts();
      PinSums(sums);
      // The products of the stage before are done.
      WaitForProducts<1>();
      if (k > 0 && lane == 0) Arrive(empty + before * 8);
      before = at.stage;
      at.Next();
    };
    static_assert(kBlockK % (2 * kGemmK) == 0);  // of which rows of weights are multiples
#pragma unroll 1
    for (int k = 0; k < shape.k_stages; k += 2) {
      multiply(weights[0], k);
      multiply(weights[1], k + 1);
    }
    WaitForProducts<0>();
    PinSums(sums);
    if (lane == 0) Arrive(empty + before * 8);

    // By rows, 64 at a time: thread (g, t) has outputs g and g + 8 of rows 8 j + 2 t, 8 j + 2 t +
    // 1, and gets rows g and g + 8 of its warp's 16 rows.
    const uint32_t turn = shared + Ring::kTurn + consumer * Ring::kTurnBytes;
    constexpr int kStride = Ring::kTurnStride * static_cast<int>(sizeof(float));
    const uint32_t to = turn + static_cast<uint32_t>(2 * t * kStride + (warp * kTileRows + g) * 4),
                   from = turn + static_cast<uint32_t>((warp * 16 + g) * kStride + 2 * t * 4);
#pragma unroll
    for (int part = 0; part < kRows / 64; ++part) {
      WarpgroupSync(consumer);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          StoreShared4(to + static_cast<uint32_t>((8 * j + e % 2) * kStride + e / 2 * 8 * 4),
                       __float_as_uint(sums[part * 32 + 4 * j + e] * scale[e / 2]));
        }
      }
      WarpgroupSync(consumer);
      float turned[32];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 two = LoadShared8(from + static_cast<uint32_t>(8 * i * kStride + 8 * j * 4));
          turned[4 * j + 2 * i] = __uint_as_float(two.x);
          turned[4 * j + 2 * i + 1] = __uint_as_float(two.y);
        }
      }
      const int my_row = row + part * 64 + warp * 16 + g;
      epilogue.Store(turned, epilogue.Load(my_row, shape.rows), my_row, shape.rows, outputs_from,
                     shape.outputs);
    }
  }
}

template <WeightForm kForm, int kRows, typename Epilogue>
__global__ void __launch_bounds__(kThreadsOfGemm, 1)
    PackedGemmKernel(const __grid_constant__ TensorMap input,
                     const __grid_constant__ TensorMap units,
                     const __grid_constant__ GemmShape shape, WeightForm form, const float* scales,
                     const __grid_constant__ Epilogue epilogue) {
  using Ring = PackedStages<kForm, kRows>;
  extern __shared__ std::byte memory[];
  const uint32_t shared = (SharedAddress(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Ring::kCount; ++s) {
      InitBarrier(shared + Ring::kBarriers + s * 8, 1);
      InitBarrier(shared + Ring::kBarriers + (Ring::kCount + s) * 8, kConsumers * 4);
    }
    FenceBarrierInit();
    PrefetchMap(&input);
    PrefetchMap(&units);
  }
  __syncthreads();
  StartNextKernel();
  // The same in all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kConsumers) {
    FewerRegisters<24>();
    if (threadIdx.x == kConsumers * kWarpgroup)
      Produce<kForm, kRows>(input, units, shape, form, shared);
    __syncwarp();
  } else {
    MoreRegisters<240>();
    WaitForKernelBefore();
    Consume<kForm, kRows>(shape, form, scales, shared, group, epilogue);
  }
}

template <WeightForm kForm, int kRows, typename Epilogue>
void Launch(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
            const GemmShape& shape, const Epilogue& epilogue) {
  const int tiles = (shape.rows + kRows - 1) / kRows *
                    ((shape.outputs + kPackedGemmOutputs - 1) / kPackedGemmOutputs);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, launch.multiprocessors)));
  config.blockDim = dim3(kThreadsOfGemm);
  config.dynamicSmemBytes = PackedStages<kForm, kRows>::kShared;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Check(cudaLaunchKernelEx(&config, PackedGemmKernel<kForm, kRows, Epilogue>, input.map,
                           weights.maps[0], shape, weights.matrix.form, weights.matrix.scales,
                           epilogue),
        "launching a matrix product");
}

// Of the two heights that whose tiles are likely done first: a tile takes as long as it is high,
// and its start and end as long as a few rows.
inline int PackedGemmHeight(const GemmLaunch& launch, int rows, int outputs) {
  int best = 0, least = 0;
  for (const int height : kPackedGemmRows) {
    const int tiles =
        (rows + height - 1) / height * ((outputs + kPackedGemmOutputs - 1) / kPackedGemmOutputs);
    const int rounds = (tiles + launch.multiprocessors - 1) / launch.multiprocessors;
    const int time = rounds * (height + 16);
    if (best == 0 || time <= least) {
      best = height;
      least = time;
    }
  }
  return best;
}

template <WeightForm kForm, typename Epilogue>
void PrepareEpilogue() {
  Check(cudaFuncSetAttribute(PackedGemmKernel<kForm, 128, Epilogue>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             PackedStages<kForm, 128>::kShared),
        "preparing matrix products");
  Check(cudaFuncSetAttribute(PackedGemmKernel<kForm, 256, Epilogue>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             PackedStages<kForm, 256>::kShared),
        "preparing matrix products");
}

}  // namespace

template <WeightForm kForm, typename Epilogue>
void RunPackedGemm(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
                   const GemmRows& rows, int outputs, const Epilogue& epilogue) {
  const GemmShape shape{rows.rows, outputs, weights.matrix.ld / kGemmK, rows.first_row,
                        rows.rows <= kRowsTogether ? kEvictFirst : kEvictNormal};
  const int height = launch.width != 0 && launch.width <= 256
                         ? (launch.width <= 128 ? 128 : 256)
                         : PackedGemmHeight(launch, rows.rows, outputs);
  if (height == 128) {
    Launch<kForm, 128>(launch, weights, input, shape, epilogue);
  } else {
    Launch<kForm, 256>(launch, weights, input, shape, epilogue);
  }
}

template <WeightForm kForm>
void PreparePackedGemm() {
  PrepareEpilogue<kForm, StoreSums>();
  PrepareEpilogue<kForm, StoreSwiGlu>();
  PrepareEpilogue<kForm, StoreQkv<64>>();
  PrepareEpilogue<kForm, StoreQkv<128>>();
}

}  // namespace loopspec::cuda

// The instances of one form.
#define LOOPSPEC_PACKED_GEMM_OF(form, epilogue)                                       \
  template void RunPackedGemm<form, epilogue>(const GemmLaunch&, const GemmWeights&,  \
                                              const GemmInput&, const GemmRows&, int, \
                                              const epilogue&);
#define LOOPSPEC_PACKED_GEMM(form)             \
  namespace loopspec::cuda {                   \
  LOOPSPEC_PACKED_GEMM_OF(form, StoreSums)     \
  LOOPSPEC_PACKED_GEMM_OF(form, StoreSwiGlu)   \
  LOOPSPEC_PACKED_GEMM_OF(form, StoreQkv<64>)  \
  LOOPSPEC_PACKED_GEMM_OF(form, StoreQkv<128>) \
  template void PreparePackedGemm<form>();     \
  }

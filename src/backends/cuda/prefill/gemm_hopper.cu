#include "backends/cuda/prefill/gemm_hopper.h"

#include <algorithm>

#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/prefill/gemm_epilogue.cuh"
#include "backends/cuda/prefill/gemm_packed.h"
#include "backends/cuda/prefill/gemm_tiles.cuh"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

constexpr int kConsumers = 2;  // warpgroups that multiply, 64 rows of the tile each
constexpr int kThreadsOfGemm = (kConsumers + 1) * kWarpgroup;
constexpr int kRowBytes = kGemmK * 2;
constexpr int kInputBytes = kGemmRows * kRowBytes;

template <int kWidth>
struct Stages {
  static constexpr int kWeightBytes = kWidth * kRowBytes;
  static constexpr int kBytes = kInputBytes + kWeightBytes;
  static constexpr int kCount = (216 << 10) / kBytes;
  static constexpr int kBarriers = kCount * kBytes;  // offset: full, then empty
  // Boxes begin at multiples of 1024 bytes, which the array itself need not.
  static constexpr int kShared = kBarriers + 2 * kCount * 8 + 1024;
  static_assert(kWeightBytes / 2 % kSwizzleRows == 0 && kInputBytes % kSwizzleRows == 0);
  static_assert(kShared <= 227 << 10);
};

// One thread fills the ring, for all of the CTA's tiles. Each CTA of a cluster brings its own
// inputs, and its part of the weights for all.
template <int kWidth, int kCluster>
__device__ void Produce(const TensorMap& input, const TensorMap& weights, const GemmShape& shape,
                        uint32_t shared, int rank) {
  using Ring = Stages<kWidth>;
  const TileOrder<kCluster * kGemmRows, kWidth> order(shape);
  const uint32_t full = shared + Ring::kBarriers, empty = full + Ring::kCount * 8;
  const auto copy_weights = [&](int stage, int k, int column) {
    ExpectBytes(full + stage * 8, Ring::kBytes);
    constexpr int kHalf = Ring::kWeightBytes / 2;
    const uint32_t to = shared + stage * Ring::kBytes + kInputBytes;
    if constexpr (kCluster == 1) {
      CopyBox(to, &weights, k * kGemmK, column, full + stage * 8, shape.weights_hint);
      CopyBox(to + kHalf, &weights, k * kGemmK, column + kWidth / 2, full + stage * 8,
              shape.weights_hint);
    } else {
      CopyBoxToAll(to + rank * kHalf, &weights, k * kGemmK, column + rank * kWidth / 2,
                   full + stage * 8, 0b11, shape.weights_hint);
    }
  };
  const auto copy_inputs = [&](int stage, int k, int row) {
    CopyBox(shared + stage * Ring::kBytes, &input, k * kGemmK,
            shape.first_row + row + rank * kGemmRows, full + stage * 8, kEvictNormal);
  };
  FillRing<Ring::kCount>(order, shape.k_stages, static_cast<int>(blockIdx.x) / kCluster,
                         static_cast<int>(gridDim.x) / kCluster, empty, copy_weights, copy_inputs);
}

template <int kWidth, int kCluster, typename Epilogue>
__device__ void Consume(const GemmShape& shape, uint32_t shared, int rank, int consumer,
                        const Epilogue& epilogue) {
  using Ring = Stages<kWidth>;
  const TileOrder<kCluster * kGemmRows, kWidth> order(shape);
  const uint32_t full = shared + Ring::kBarriers, empty = full + Ring::kCount * 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  // A warp gives a stage back to every CTA that writes into it: lane r to CTA r.
  const auto give_back = [&](int stage) {
    if (lane < kCluster) {
      if constexpr (kCluster == 1) {
        Arrive(empty + stage * 8);
      } else {
        ArriveAt(empty + stage * 8, lane);
      }
    }
  };
  RingPlace<Ring::kCount> at;
  for (int tile = static_cast<int>(blockIdx.x) / kCluster; tile < order.count();
       tile += static_cast<int>(gridDim.x) / kCluster) {
    int row, column;
    order.At(tile, row, column);
    row += rank * kGemmRows + consumer * 64 + warp * 16 + lane / 4;
    const auto ahead = epilogue.Load(row, shape.rows);
    float sums[kWidth / 2];
    int before = 0;
    for (int k = 0; k < shape.k_stages; ++k) {
      WaitBarrier(full + at.stage * 8, at.parity);
      const uint32_t from = shared + at.stage * Ring::kBytes;
      const uint64_t a = DescribeByRows(from + consumer * (64 * kRowBytes));
      const uint64_t b = DescribeByRows(from + kInputBytes);
      PinSums(sums);
      BeginProducts();
#pragma unroll
      for (int i = 0; i < kGemmK / 16; ++i)
        MultiplyShared(sums, a + i * kNextK, b + i * kNextK, k > 0 || i > 0);
      CommitProducts();
      PinSums(sums);
      // The products of the stage before are done.
      WaitForProducts<1>();
      if (k > 0) give_back(before);
      before = at.stage;
      at.Next();
    }
    WaitForProducts<0>();
    PinSums(sums);
    give_back(before);
    epilogue.Store(sums, ahead, row, shape.rows, column, shape.outputs);
  }
}

template <int kWidth, int kCluster, typename Epilogue>
__global__ void __launch_bounds__(kThreadsOfGemm, 1)
    GemmKernel(const __grid_constant__ TensorMap input, const __grid_constant__ TensorMap weights,
               const __grid_constant__ GemmShape shape, const __grid_constant__ Epilogue epilogue) {
  using Ring = Stages<kWidth>;
  extern __shared__ std::byte memory[];
  const uint32_t shared = (SharedAddress(memory) + 1023) & ~1023u;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int s = 0; s < Ring::kCount; ++s) {
      InitBarrier(shared + Ring::kBarriers + s * 8, 1);
      InitBarrier(shared + Ring::kBarriers + (Ring::kCount + s) * 8, kCluster * kConsumers * 4);
    }
    FenceBarrierInit();
    PrefetchMap(&input);
    PrefetchMap(&weights);
  }
  if constexpr (kCluster == 1) {
    __syncthreads();
  } else {
    ClusterSync();
  }
  StartNextKernel();
  // The same in all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kConsumers) {
    FewerRegisters<24>();
    if (threadIdx.x == kConsumers * kWarpgroup)
      Produce<kWidth, kCluster>(input, weights, shape, shared, rank);
    __syncwarp();
  } else {
    MoreRegisters<240>();
    WaitForKernelBefore();
    Consume<kWidth, kCluster>(shape, shared, rank, group, epilogue);
  }
  // A CTA must not end while another may still write into its memory.
  if constexpr (kCluster > 1) ClusterSync();
}

template <int kWidth, int kCluster, typename Epilogue>
void Launch(const GemmLaunch& launch, const TensorMap& weights, const TensorMap& input,
            const GemmShape& shape, const Epilogue& epilogue) {
  const int tiles = (shape.rows + kCluster * kGemmRows - 1) / (kCluster * kGemmRows) *
                    ((shape.outputs + kWidth - 1) / kWidth);
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(kThreadsOfGemm);
  config.dynamicSmemBytes = Stages<kWidth>::kShared;
  config.stream = launch.stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kCluster, 1, 1};
  config.attrs = attributes;
  config.numAttrs = kCluster > 1 ? 2 : 1;
  int clusters = launch.multiprocessors;
  if constexpr (kCluster > 1) {
    // Not every multiprocessor finds a partner.
    config.gridDim = dim3(kCluster);
    Check(
        cudaOccupancyMaxActiveClusters(&clusters, GemmKernel<kWidth, kCluster, Epilogue>, &config),
        "preparing matrix products");
  }
  config.gridDim = dim3(static_cast<unsigned>(std::min(tiles, clusters) * kCluster));
  Check(cudaLaunchKernelEx(&config, GemmKernel<kWidth, kCluster, Epilogue>, input, weights, shape,
                           epilogue),
        "launching a matrix product");
}

template <typename Epilogue>
void Run(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
         const GemmRows& rows, int outputs, const Epilogue& epilogue) {
  const WeightForm form = weights.matrix.form;
  if (form == WeightForm::kInt8)
    return RunPackedGemm<WeightForm::kInt8>(launch, weights, input, rows, outputs, epilogue);
  if (IsInt4(form))
    return RunPackedGemm<WeightForm::kInt4>(launch, weights, input, rows, outputs, epilogue);
  // Weights that are gone through once leave their place to what the next kernels read.
  const GemmShape shape{rows.rows, outputs, weights.matrix.ld / kGemmK, rows.first_row,
                        rows.rows <= kRowsTogether ? kEvictFirst : kEvictNormal};
  constexpr int kStep = Epilogue::kStep;
  const int width = launch.width != 0 && launch.width % kStep == 0
                        ? launch.width
                        : GemmWidth(launch, rows.rows, outputs, kStep);
  const auto with = [&]<int kWidth>(int index) {
    if (launch.cluster == 1) {
      Launch<kWidth, 1>(launch, weights.maps[index], input.map, shape, epilogue);
    } else {
      Launch<kWidth, 2>(launch, weights.maps[index], input.map, shape, epilogue);
    }
  };
  switch (width) {
    case 128:
      return with.template operator()<128>(0);
    case 160:
      if constexpr (160 % kStep == 0) return with.template operator()<160>(1);
      break;
    case 192:
      return with.template operator()<192>(2);
    case 256:
      return with.template operator()<256>(3);
    default:
      break;
  }
  LOOPSPEC_CHECK(false);  // no such width
}

template <int kWidth, int kCluster, typename Epilogue>
void Prepare() {
  Check(cudaFuncSetAttribute(GemmKernel<kWidth, kCluster, Epilogue>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, Stages<kWidth>::kShared),
        "preparing matrix products");
}
template <typename Epilogue>
void PrepareAll() {
  Prepare<128, 1, Epilogue>();
  Prepare<192, 1, Epilogue>();
  Prepare<256, 1, Epilogue>();
  if constexpr (160 % Epilogue::kStep == 0) {
    Prepare<160, 1, Epilogue>();
    Prepare<160, 2, Epilogue>();
  }
  Prepare<128, 2, Epilogue>();
  Prepare<192, 2, Epilogue>();
  Prepare<256, 2, Epilogue>();
}

}  // namespace

GemmWeights DescribeWeights(const DeviceMatrix& matrix) {
  GemmWeights weights{matrix, {}};
  if (matrix.packed()) {
    weights.maps[0] = MakeUnitMap(matrix, kPackedGemmOutputs / kTileRows, 1);
    return weights;
  }
  for (int i = 0; i < kGemmWidthCount; ++i) {
    weights.maps[i] =
        MakeBoxMap(matrix.data, matrix.ld, matrix.rows, matrix.ld, kGemmK, kGemmWidths[i] / 2);
  }
  return weights;
}

GemmInput DescribeInput(const bf16* in, int rows, int ld) {
  return {MakeBoxMap(in, ld, rows, ld, kGemmK, kGemmRows)};
}

int GemmWidth(const GemmLaunch& launch, int rows, int outputs, int step) {
  const int height = launch.cluster * kGemmRows;
  const int clusters = std::max(1, launch.multiprocessors / launch.cluster);
  int best = 0, least = 0;
  for (const int width : kGemmWidths) {
    if (width % step != 0) continue;
    const int tiles = (rows + height - 1) / height * ((outputs + width - 1) / width);
    const int rounds = (tiles + clusters - 1) / clusters;
    // Measured: a tile takes as long as it is wide, and its start and end as long as a few columns.
    const int time = rounds * (width + 8);
    if (best == 0 || time <= least) {
      best = width;
      least = time;
    }
  }
  return best;
}

void GemmSums(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
              const GemmRows& rows, float* out, int outputs, int ld) {
  LOOPSPEC_CHECK(ld % 4 == 0);
  Run(launch, weights, input, rows, outputs, StoreSums{out, ld});
}

void GemmSwiGlu(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
                const GemmRows& rows, bf16* out, int ld) {
  Run(launch, weights, input, rows, weights.matrix.rows, StoreSwiGlu{out, ld});
}

void GemmQkv(const GemmLaunch& launch, const GemmWeights& weights, const GemmInput& input,
             const GemmRows& rows, const PromptBuffers& buffers, const PromptMemory& memory,
             int plane) {
  LOOPSPEC_CHECK(memory.head_dim == memory.head_stride &&
                 (memory.head_dim == 64 || memory.head_dim == 128));
  const auto with_heads = [&]<int kHead>() {
    Run(launch, weights, input, rows, weights.matrix.rows,
        StoreQkv<kHead>{buffers.rows, buffers.rope, buffers.q, memory.pages, buffers.heads,
                        memory.kv_heads, plane});
  };
  if (memory.head_dim == 64) {
    with_heads.template operator()<64>();
  } else {
    with_heads.template operator()<128>();
  }
}

void PrepareGemm(WeightForm form) {
  if (form == WeightForm::kInt8) return PreparePackedGemm<WeightForm::kInt8>();
  if (IsInt4(form)) return PreparePackedGemm<WeightForm::kInt4>();
  PrepareAll<StoreSums>();
  PrepareAll<StoreSwiGlu>();
  PrepareAll<StoreQkv<64>>();
  PrepareAll<StoreQkv<128>>();
}

}  // namespace loopspec::cuda

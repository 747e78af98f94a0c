#include <cooperative_groups.h>

#include "backends/cuda/attention.cuh"
#include "backends/cuda/decode_kernel.h"
#include "backends/cuda/matrix_op.cuh"
#include "backends/cuda/row_op.cuh"
#include "backends/cuda/weight_stream.cuh"

namespace loopspec::cuda {
namespace {

// Every block arrives, then waits for all. The launch is cooperative, so all blocks are resident.
class GridBarrier {
 public:
  __device__ explicit GridBarrier(uint32_t* counter) : counter_(counter) {}

  __device__ void Sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
      target_ += gridDim.x;
      __threadfence();
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_) : "memory");
      uint32_t seen;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter_) : "memory");
      } while (seen < target_);
    }
    __syncthreads();
  }

 private:
  uint32_t* counter_;
  uint32_t target_ = 0;
};

template <typename T>
__device__ const T* At(const PlanHeader* plan, int32_t offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(plan) + offset);
}

template <int kSlots>
constexpr size_t SharedBytes() {
  return static_cast<size_t>(kSlots) * kWarps * kSlotBytes + kSumBuffers<kSlots> * kSumFloats * sizeof(float) +
         kMaxMatrices * sizeof(MatrixShare) + 2 * sizeof(Op) + sizeof(StreamOrder) +
         kWarps * (sizeof(StreamPosition) + sizeof(float)) + 64;
}

template <int kSlots>
__global__ void __launch_bounds__(kThreads, 1) DecodeKernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) char shared[];
  float* sums = reinterpret_cast<float*>(shared + kSlots * kWarps * kSlotBytes);
  auto* shares = reinterpret_cast<MatrixShare*>(sums + kSumBuffers<kSlots> * kSumFloats);
  auto* op_buffer = reinterpret_cast<Op*>(shares + kMaxMatrices);
  auto* positions = reinterpret_cast<StreamPosition*>(op_buffer + 2);
  auto* order = reinterpret_cast<StreamOrder*>(positions + kWarps);
  auto* scratch = reinterpret_cast<float*>(order + 1);

  PlanHeader* plan = p.plan;
  {
    const auto* from = reinterpret_cast<const uint4*>(p.shares + static_cast<size_t>(blockIdx.x) * p.matrices);
    auto* to = reinterpret_cast<uint4*>(shares);
    const int words = p.matrices * static_cast<int>(sizeof(MatrixShare) / sizeof(uint4));
    for (int i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
  }
  const bool timekeeper = blockIdx.x == 0 && threadIdx.x == 0;
  if (timekeeper) p.clock[0] = GlobalClock();
  const int recurrences = plan->recurrences;
  if (threadIdx.x < kSets) {
    order->end[threadIdx.x] = p.matrices_end[threadIdx.x];
    order->passes[threadIdx.x] = (plan->rows[threadIdx.x] + kPassRows - 1) / kPassRows;
    order->recurrences = recurrences;
  }
  const auto* pages = At<int32_t>(plan, plan->pages_at);
  const auto* chains = At<int32_t>(plan, plan->chains_at);
  __syncthreads();

  WeightStream<kSlots> stream(p, *order, shares, positions,
                              static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
  GridBarrier barrier(&plan->barrier);

  for (int set = 0; set < kSets; ++set) {
    const int count = plan->rows[set];
    if (count > 0) {
      const auto* infos = At<RowInfo>(plan, plan->row_at[set]);
      const auto* grouped = At<int32_t>(plan, plan->grouped_at[set]);
      const auto* units = At<AttentionUnit>(plan, plan->unit_at[set]);
      const int unit_count = plan->units[set];
      const int repeats = set == kSetCore ? recurrences : 1;
      int next = set == kSetCore ? p.core_start : p.ops_begin[set];
      int recurrence = 0;
      int parity = 0;
      const auto fetch = [&](int index, int buffer) {
        constexpr int kWords = sizeof(Op) / sizeof(uint32_t);
        if (threadIdx.x < kWords) {
          reinterpret_cast<uint32_t*>(op_buffer + buffer)[threadIdx.x] =
              reinterpret_cast<const uint32_t*>(p.ops + index)[threadIdx.x];
        }
      };
      fetch(next, parity);
      __syncthreads();
      while (true) {
        // The next operation is fetched while this one runs.
        const int now = recurrence;
        int following = set == kSetCore && next == p.core_start ? p.ops_begin[set] : next + 1;
        if (following == p.ops_end[set]) {
          ++recurrence;
          following = recurrence < repeats ? p.ops_begin[set] : -1;
        }
        if (following >= 0) fetch(following, parity ^ 1);
        const Op& op = op_buffer[parity];
        switch (op.type) {
          case OpType::kRows:
            for (int row = blockIdx.x; row < count; row += gridDim.x) {
              if (p.hidden <= 2048) {
                RowOp<2048>(p, op, set, infos, row, scratch);
              } else {
                RowOp<kMaxHidden>(p, op, set, infos, row, scratch);
              }
            }
            break;
          case OpType::kMatrix:
            MatrixOp(p, op, shares[op.matrix], set, infos, count, now, stream, sums);
            break;
          case OpType::kQkNorm:
            for (int row = blockIdx.x; row < count; row += gridDim.x) QkNormOp(p, op, set, infos, row, now, scratch);
            break;
          case OpType::kAttention:
            AttentionOp(p, op, set, infos, grouped, units, unit_count, now, pages, chains);
            break;
          case OpType::kMerge:
            MergeOp(p, infos, count);
            break;
        }
        barrier.Sync();
        if (following < 0) break;
        next = following;
        parity ^= 1;
      }
    }
    if (timekeeper) p.clock[set + 1] = GlobalClock();
  }
}

__global__ void CommitKernel(const __grid_constant__ DecodeParams p) {
  const CommitInfo commit = At<CommitInfo>(p.plan, p.plan->commits_at)[blockIdx.y];
  const int words = p.head_stride / 8;  // of 16 bytes per key or value
  const int total = p.planes * p.kv_heads * 2 * words;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const int word = i % words, which = i / words % 2, vector = i / words / 2;  // vector: (plane, head)
    const bf16* from =
        p.cell_kv + (static_cast<size_t>(commit.cell) * p.planes * p.kv_heads + vector) * 2 * p.head_stride +
        which * p.head_stride + word * 8;
    bf16* to = p.page_kv +
               ((static_cast<size_t>(commit.page) * p.planes * p.kv_heads + vector) * 2 + which) * kPageSize * p.head_stride +
               commit.slot * p.head_stride + word * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
}

template <int kSlots>
bool Prepare(int limit, DecodeLaunch& launch) {
  if (SharedBytes<kSlots>() > static_cast<size_t>(limit)) return false;
  launch.kernel = reinterpret_cast<const void*>(&DecodeKernel<kSlots>);
  launch.shared_bytes = SharedBytes<kSlots>();
  Check(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(launch.shared_bytes)),
        "setting the shared memory of the decode kernel");
  return true;
}

}  // namespace

DecodeLaunch PrepareDecode(int device) {
  int multiprocessors = 0, limit = 0, cooperative = 0;
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "reading the device");
  Check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "reading the device");
  Check(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device), "reading the device");
  if (cooperative == 0) {
    FailText("GPU " + std::to_string(device) + " cannot launch cooperative kernels, which decoding needs");
  }
  DecodeLaunch launch;
  launch.blocks = multiprocessors;
  // 228 KiB (Hopper, Blackwell data centre), 164 KiB (A100), 100 KiB (the rest).
  if (Prepare<10>(limit, launch) || Prepare<6>(limit, launch) || Prepare<4>(limit, launch)) return launch;
  FailText("GPU " + std::to_string(device) + " has " + std::to_string(limit) +
           " bytes of shared memory per block, decoding needs " + std::to_string(SharedBytes<4>()));
}

void LaunchDecode(const DecodeLaunch& launch, const DecodeParams& params, cudaStream_t stream) {
  void* arguments[] = {const_cast<DecodeParams*>(&params)};
  Check(cudaLaunchCooperativeKernel(launch.kernel, dim3(static_cast<unsigned>(launch.blocks)), dim3(kThreads), arguments,
                                    launch.shared_bytes, stream),
        "launching the decode kernel");
}

void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream) {
  if (commits == 0) return;
  CommitKernel<<<dim3(64, static_cast<unsigned>(commits)), 256, 0, stream>>>(params);
  Check(cudaGetLastError(), "launching the commits");
}

}  // namespace loopspec::cuda

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

  // `meanwhile` is run by the second warp while the first one waits.
  template <typename F>
  __device__ __forceinline__ void Sync(F meanwhile) {
    __syncthreads();
    if (threadIdx.x == 0) {
      target_ += gridDim.x;
      // Released for the whole block: the barrier above put its writes before this.
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_) : "memory");
      uint32_t seen;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter_) : "memory");
      } while (seen < target_);
    } else if (threadIdx.x / 32 == 1) {
      meanwhile();
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
  static_assert(kSlots <= kMaxSlots);
  return static_cast<size_t>(kRingOffset<kSlots>) +
         static_cast<size_t>(kSlots) * kWarps * kSlotBytes;
}

template <typename T>
__device__ void CopyToShared(T* to, const T* from, int count) {
  const int words = count * static_cast<int>(sizeof(T) / sizeof(uint32_t));
  for (int i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

__device__ __noinline__ void RowsOp(const Op* op) {
  BlockContext& context = Context();
  for (int row = blockIdx.x; row < context.set.rows; row += gridDim.x) {
    if (op->type == OpType::kQkNorm) {
      QkNormOp(context.p, *op, context.set.set, context.set.infos[row], row, context.set.recurrence,
               context.scratch);
    } else {
      RowOp<2048>(context.p, *op, context.set.set, context.set.infos[row], row, context.scratch);
    }
  }
}
// The same for wide models, which take more registers.
__device__ __noinline__ void WideRowsOp(const Op* op) {
  BlockContext& context = Context();
  for (int row = blockIdx.x; row < context.set.rows; row += gridDim.x) {
    RowOp<kMaxHidden>(context.p, *op, context.set.set, context.set.infos[row], row,
                      context.scratch);
  }
}

// Before the operations of a set: what they all look at comes into shared memory.
__device__ __noinline__ void EnterSet(const PlanHeader* plan, int set) {
  BlockContext& context = Context();
  const int rows = plan->rows[set];
  const auto* infos = At<RowInfo>(plan, plan->row_at[set]);
  if (threadIdx.x == 0) {
    context.set.set = set;
    context.set.rows = rows;
    context.set.recurrence = 0;
    context.set.units = plan->units[set];
    context.set.infos = rows <= kCachedRows ? context.row_cache : infos;
    context.set.query_rows = At<QueryRow>(plan, plan->query_rows_at[set]);
    context.set.all_units = At<AttentionUnit>(plan, plan->unit_at[set]);
  }
  if (rows <= kCachedRows) CopyToShared(context.row_cache, infos, rows);
  __syncthreads();
  CacheUnits();
}

// The order of operations of one set: the stack's own, as often as the step says, after its start
// (B).
class OpCursor {
 public:
  __device__ OpCursor(const DecodeParams& p, int set, int repeats)
      : begin_(p.ops_begin[set]),
        end_(p.ops_end[set]),
        left_(repeats),
        at_(set == kSetCore ? p.core_start : begin_) {
    start_ = set == kSetCore;
  }
  // -1 after the last.
  __device__ int index() const { return at_; }
  __device__ void Next() {
    if (at_ < 0) return;
    at_ = start_ ? begin_ : at_ + 1;
    start_ = false;
    if (at_ == end_) at_ = --left_ > 0 ? begin_ : -1;
  }

 private:
  int begin_, end_, left_, at_;
  bool start_;
};

template <int kSlots>
__device__ __forceinline__ void Run(const Op& op, bool wide) {
  switch (op.type) {
    case OpType::kMatrix:
      MatrixOp<kSlots>(op);
      return;
    case OpType::kAttention:
      AttentionOp(op);
      return;
    case OpType::kMerge:
      MergeOp();
      return;
    case OpType::kQkNorm:
      RowsOp(&op);
      return;
    case OpType::kRows:
      if (wide) {
        WideRowsOp(&op);
      } else {
        RowsOp(&op);
      }
      return;
  }
}

template <int kSlots>
__global__ void __launch_bounds__(kThreads, 1)
    DecodeKernel(const __grid_constant__ DecodeParams params) {
  BlockContext& context = Context();
  PlanHeader* plan = params.plan;
  const bool timekeeper = blockIdx.x == 0 && threadIdx.x == 0;
  CopyToShared(&context.p, &params, 1);
  CopyToShared(context.shares, params.shares + static_cast<size_t>(blockIdx.x) * params.matrices,
               params.matrices);
  const auto* chains = At<int32_t>(plan, plan->chains_at);
  if (plan->chain_count <= kCachedChain)
    CopyToShared(context.chain_cache, chains, plan->chain_count);
  if (threadIdx.x < kSets) {
    context.order.end[threadIdx.x] = params.matrices_end[threadIdx.x];
    context.order.passes[threadIdx.x] = (plan->rows[threadIdx.x] + kPassRows - 1) / kPassRows;
    context.order.recurrences = plan->recurrences;
    context.chains = plan->chain_count <= kCachedChain ? context.chain_cache : chains;
  }
  InitRings();
  if (timekeeper) params.clock[0] = GlobalClock();
  __syncthreads();
  RingFiller<kSlots>(RingAddress<kSlots>()).Start();

  GridBarrier barrier(&plan->barrier);
  int traced = 0;
  if (timekeeper && params.trace != nullptr) params.trace[0] = GlobalClock();
  for (int set = 0; set < kSets; ++set) {
    if (plan->rows[set] > 0) {
      EnterSet(plan, set);
      // Operations are fetched two ahead, while the grid's barrier is waited for.
      OpCursor now(params, set, set == kSetCore ? plan->recurrences : 1);
      OpCursor ahead = now;
      CopyToShared(&context.ops[0], params.ops + ahead.index(), 1);
      ahead.Next();
      if (ahead.index() >= 0) CopyToShared(&context.ops[1], params.ops + ahead.index(), 1);
      ahead.Next();
      __syncthreads();
      for (int parity = 0; now.index() >= 0; parity ^= 1) {
        Run<kSlots>(context.ops[parity], params.hidden > 2048);
        const bool again = set == kSetCore && now.index() == params.ops_end[set] - 1;
        barrier.Sync([&] {
          const int lane = threadIdx.x % 32;
          constexpr int kWords = sizeof(Op) / sizeof(uint32_t);
          if (ahead.index() >= 0 && lane < kWords) {
            reinterpret_cast<uint32_t*>(&context.ops[parity])[lane] =
                reinterpret_cast<const uint32_t*>(params.ops + ahead.index())[lane];
          }
          if (again && lane == 31) ++context.set.recurrence;
        });
        if (timekeeper && params.trace != nullptr) params.trace[++traced] = GlobalClock();
        now.Next();
        ahead.Next();
      }
    }
    if (timekeeper) params.clock[set + 1] = GlobalClock();
  }
}

__global__ void CommitKernel(const __grid_constant__ DecodeParams p) {
  const CommitInfo commit = At<CommitInfo>(p.plan, p.plan->commits_at)[blockIdx.y];
  const int words = p.head_stride / 8;  // of 16 bytes per key or value
  const int total = p.planes * p.kv_heads * 2 * words;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const int word = i % words, which = i / words % 2,
              vector = i / words / 2;  // vector: (plane, head)
    const bf16* from =
        p.cell_kv +
        (static_cast<size_t>(commit.cell) * p.planes * p.kv_heads + vector) * 2 * p.head_stride +
        which * p.head_stride + word * 8;
    bf16* to = p.page_kv +
               ((static_cast<size_t>(commit.page) * p.planes * p.kv_heads + vector) * 2 + which) *
                   kPageSize * p.head_stride +
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
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device),
        "reading the device");
  if (cooperative == 0) {
    FailText("GPU " + std::to_string(device) +
             " cannot launch cooperative kernels, which decoding needs");
  }
  DecodeLaunch launch;
  launch.blocks = multiprocessors;
  // 228 KiB (Hopper, Blackwell data centre), 164 KiB (A100), 100 KiB (the rest).
  if (Prepare<5>(limit, launch) || Prepare<3>(limit, launch) || Prepare<2>(limit, launch))
    return launch;
  FailText("GPU " + std::to_string(device) + " has " + std::to_string(limit) +
           " bytes of shared memory per block, decoding needs " + std::to_string(SharedBytes<2>()));
}

void LaunchDecode(const DecodeLaunch& launch, const DecodeParams& params, cudaStream_t stream) {
  void* arguments[] = {const_cast<DecodeParams*>(&params)};
  Check(cudaLaunchCooperativeKernel(launch.kernel, dim3(static_cast<unsigned>(launch.blocks)),
                                    dim3(kThreads), arguments, launch.shared_bytes, stream),
        "launching the decode kernel");
}

void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream) {
  if (commits == 0) return;
  CommitKernel<<<dim3(64, static_cast<unsigned>(commits)), 256, 0, stream>>>(params);
  Check(cudaGetLastError(), "launching the commits");
}

}  // namespace loopspec::cuda

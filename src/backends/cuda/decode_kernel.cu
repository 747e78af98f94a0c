#include "backends/cuda/attention.cuh"
#include "backends/cuda/decode_kernel.h"
#include "backends/cuda/matrix_op.cuh"
#include "backends/cuda/row_op.cuh"
#include "backends/cuda/weight_stream.cuh"

namespace loopspec::cuda {
namespace {

// Every block arrives, then waits for all. The launch is cooperative, so all blocks are resident.
// `meanwhile` is run by all threads between arriving and waiting.
template <typename F>
__device__ __forceinline__ void GridBarrier(uint32_t* counter, F meanwhile) {
  __syncthreads();
  // Released for the whole block: the barrier above put its writes before this.
  if (ThreadNow() == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  meanwhile();
  if (ThreadNow() == 0) {
    const uint32_t target = Context().arrivals += gridDim.x;
    uint32_t seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < target);
  }
  __syncthreads();
}

template <typename T>
__device__ const T* At(const PlanHeader* plan, int32_t offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(plan) + offset);
}

template <int kSlots>
constexpr size_t SharedBytes() {
  static_assert(kSlots <= kMaxSlots);
  return static_cast<size_t>(kRingOffset) + static_cast<size_t>(kSlots) * kWarps * kSlotBytes;
}

template <typename T>
__device__ void CopyToShared(T* to, const T* from, int count) {
  const int words = count * static_cast<int>(sizeof(T) / sizeof(uint32_t));
  for (int i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

// Rows dealt to the blocks.
template <int kHidden>
__device__ __noinline__ void RowsOp() {
  BlockContext& context = Context();
  const Op* op = &CurrentOp();
  for (int row = blockIdx.x; row < context.set.rows; row += gridDim.x) {
    RowOp<kHidden, false>(context.p, *op,
                          {context.set.infos, context.set.set, row, false, false, ArrivesByMail()},
                          context.scratch);
  }
}
__device__ __noinline__ void QkNormRows() {
  BlockContext& context = Context();
  const Op* op = &CurrentOp();
  for (int row = blockIdx.x; row < context.set.rows; row += gridDim.x) {
    QkNormOp(context.p, *op, context.set.set, context.set.infos[row], row, context.set.recurrence,
             context.scratch);
  }
}
// The only row by every block, for itself.
__device__ __noinline__ void OwnRowsOp() {
  BlockContext& context = Context();
  const Op* op = &CurrentOp();
  RowOp<kOwnHidden, true>(context.p, *op,
                          {context.set.infos, context.set.set, 0, true, false, ArrivesByMail()},
                          context.scratch);
}

// ---- The operations of one set in order: the stack's own, as often as the step says, for B after
// the one that stands before them. They are fetched into shared memory ahead of their time. Their
// state lies there too: a register that is live in the kernel's loop is one that every part has to
// save.

__device__ __forceinline__ bool EndsRecurrence() {
  return Context().queue.at + 1 == Context().queue.end;
}

// By one thread.
__device__ __forceinline__ void AdvanceQueue() {
  QueueState& queue = Context().queue;
  queue.mailed = MailsOut(CurrentOp());
  if (CurrentOp().type == OpType::kRows) Context().set.own_stream = false;
  queue.place = (queue.place + 1) % kOpsHeld;
  --queue.held;
  queue.own_inputs = false;
  ++queue.stamp;
  if (++queue.at < queue.end) return;
  queue.at = queue.begin;
  --queue.left;
  ++Context().set.recurrence;
}

// By one warp: when half of the operations held are done, as many more are on their way. At most
// two come up between two calls, so they are there in time.
__device__ __forceinline__ void FetchOps() {
  WaitForCopies();
  constexpr int kParts = sizeof(Op) / 16;
  static_assert(kOpsAhead * kParts <= 32 && kOpsHeld == 2 * kOpsAhead);
  QueueState& queue = Context().queue;
  const int held = queue.held;
  if (held > kOpsAhead) return;
  const int lane = ThreadNow() % 32, part = lane % kParts, ahead = held + lane / kParts;
  int i = queue.at + ahead;
  if (i >= queue.end) i = queue.left > 1 ? queue.begin + (i - queue.end) : queue.end;
  if (lane < kOpsAhead * kParts && i < queue.end) {
    CopyAsync16(SharedAddress(&Context().ops[(queue.place + ahead) % kOpsHeld]) +
                    static_cast<uint32_t>(part * 16),
                reinterpret_cast<const char*>(Context().p.ops + i) + part * 16);
  }
  __syncwarp();
  if (lane == 0) queue.held = held + kOpsAhead;
  __syncwarp();
}

// Between two operations: the next one comes up, and the rings are looked after.
template <int kSlots>
__device__ __forceinline__ void GoOn() {
  const int thread = ThreadNow(), warp = thread / 32;
  if (warp == kWarps - 1) {
    if (thread % 32 == 0) AdvanceQueue();
    __syncwarp();
    FetchOps();
  }
  if (NeedsCatchUp(warp)) CatchUp<kSlots>(warp);
}

__device__ __forceinline__ bool IsTimekeeper() {
  return blockIdx.x == 0 && ThreadNow() == 0;
}

// What all operations look at comes into shared memory, and the weights start to flow.
template <int kSlots>
__device__ __forceinline__ void EnterStep(const DecodeParams& params, const PlanHeader* plan) {
  BlockContext& context = Context();
  CopyToShared(&context.p, &params, 1);
  int begin = 0;
  for (int set = 0; set < kSets; ++set) {
    const int end = params.matrices_end[set];
    const MatrixShare* shares = params.shares[plan->rows[set] <= kNarrowRows ? 1 : 0] +
                                static_cast<size_t>(blockIdx.x) * params.matrices;
    CopyToShared(context.shares + begin, shares + begin, end - begin);
    begin = end;
  }
  const auto* chains = At<int32_t>(plan, plan->chains_at);
  if (plan->chain_count <= kCachedChain)
    CopyToShared(context.chain_cache, chains, plan->chain_count);
  if (threadIdx.x < kSets) {
    context.order.end[threadIdx.x] = params.matrices_end[threadIdx.x];
    context.order.passes[threadIdx.x] = (plan->rows[threadIdx.x] + kPassRows - 1) / kPassRows;
    context.order.recurrences = plan->recurrences;
    context.queue.stamp = plan->stamp;
    context.set.set = -1;
    context.traced = 0;
    context.arrivals = 0;
    context.chains = plan->chain_count <= kCachedChain ? context.chain_cache : chains;
  }
  InitRings();
  __syncthreads();
  StartStream<kSlots>();
}

// Goes on to the next set that has rows: what its operations look at comes into shared memory.
// False when there is none.
__device__ __noinline__ bool EnterNextSet(const PlanHeader* plan) {
  BlockContext& context = Context();
  int set = context.set.set;
  do {
    if (IsTimekeeper()) context.p.clock[set + 1] = GlobalClock();
    if (++set == kSets) return false;
  } while (plan->rows[set] == 0);
  const int rows = plan->rows[set];
  __syncthreads();  // no one looks at the last set any more
  const auto* infos = At<RowInfo>(plan, plan->row_at[set]);
  if (threadIdx.x == 0) {
    context.set.set = set;
    context.set.rows = rows;
    context.set.recurrence = 0;
    const int begin = context.p.ops_begin[set];
    context.queue = {begin,
                     context.p.ops_end[set],
                     set == kSetCore ? plan->recurrences : 1,
                     set == kSetCore ? context.p.core_start : begin,
                     0,
                     0,
                     context.queue.stamp,
                     false,
                     false};
    context.set.units = plan->units[set];
    context.set.narrow = rows <= kNarrowRows;
    context.set.mails = context.set.narrow && context.p.mail != 0;
    context.set.fuses = rows == 1 && context.p.hidden <= kOwnHidden;
    context.set.own_stream = false;
    context.set.infos = rows <= kCachedRows ? context.row_cache : infos;
    context.set.query_rows = At<QueryRow>(plan, plan->query_rows_at[set]);
    context.set.all_units = At<AttentionUnit>(plan, plan->unit_at[set]);
  }
  if (rows <= kCachedRows) CopyToShared(context.row_cache, infos, rows);
  __syncthreads();
  CacheUnits();
  if (threadIdx.x < 32) {
    FetchOps();
    FetchOps();
    WaitForCopies();
  }
  __syncthreads();
  return true;
}

__device__ __forceinline__ void TraceTime() {
  BlockContext& context = Context();
  if (IsTimekeeper() && context.p.trace != nullptr)
    context.p.trace[context.traced++] = GlobalClock();
}

// The kernel's own function calls the operations, and they call nothing: what is kept across a
// call, a return address among it, goes through memory that is always cold. So whatever lasts
// longer than an operation lies in shared memory, and registers are the operations' alone.
template <int kSlots>
__global__ void __launch_bounds__(kThreads, 1)
    DecodeKernel(const __grid_constant__ DecodeParams params) {
  EnterStep<kSlots>(params, params.plan);
  TraceTime();
#pragma unroll 1
  while (EnterNextSet(params.plan)) {
#pragma unroll 1
    while (Context().queue.left > 0) {
      if (Context().set.fuses && (CurrentOp().flags & kOpFused) != 0 &&
          !(EndsRecurrence() && Context().queue.left == 1)) {
        OwnRowsOp();
        __syncthreads();
        if (ThreadNow() == 0) {
          AdvanceQueue();
          Context().set.own_stream = Context().queue.own_inputs = true;
        }
        __syncthreads();
        TraceTime();
      }
      switch (CurrentOp().type) {
        case OpType::kMatrix:
          MatrixOp<kSlots>();
          break;
        case OpType::kAttention:
          AttentionOp();
          break;
        case OpType::kMerge:
          MergeOp();
          break;
        case OpType::kQkNorm:
          QkNormRows();
          break;
        case OpType::kRows:
          if (Context().p.hidden <= kOwnHidden) {
            RowsOp<kOwnHidden>();
          } else {
            RowsOp<kMaxHidden>();
          }
          break;
      }
      if (MailsOut(CurrentOp())) {
        __syncthreads();
        GoOn<kSlots>();
        __syncthreads();
      } else {
        GridBarrier(&params.plan->barrier, [] { GoOn<kSlots>(); });
      }
      TraceTime();
    }
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
  // 228 KiB (Hopper, Blackwell data centre), 164 KiB (A100), 100 KiB (the rest). A third slot would
  // fit the first, but what lies longer in the queue delays everything else that is read.
  if (Prepare<2>(limit, launch) || Prepare<1>(limit, launch)) return launch;
  FailText("GPU " + std::to_string(device) + " has " + std::to_string(limit) +
           " bytes of shared memory per block, decoding needs " + std::to_string(SharedBytes<1>()));
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

#include "backends/cuda/decode/decode_kernel.h"

#include <algorithm>

#include "backends/cuda/decode/attention_op.cuh"
#include "backends/cuda/decode/copier.cuh"
#include "backends/cuda/decode/matrix_op.cuh"
#include "backends/cuda/decode/merge_op.cuh"
#include "backends/cuda/decode/op_queue.cuh"
#include "backends/cuda/decode/row_op.cuh"
#include "backends/cuda/decode/weight_stream.cuh"

namespace loopspec::cuda {
namespace {

template <typename Kind>
constexpr size_t SharedBytes() {
  const size_t slots = Kind::kSlots + (Kind::kSharedInputs ? 1 : 0);
  return static_cast<size_t>(kRingOffset) + slots * kWarps * kSlotBytes;
}

template <typename T>
__device__ void CopyToShared(T* to, const T* from, int count) {
  if (threadIdx.x >= kThreads) return;
  const int words = count * static_cast<int>(sizeof(T) / sizeof(uint32_t));
  for (int i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

// The same from global memory, without waiting: WaitForCopies does.
template <typename T>
__device__ void FetchToShared(T* to, const T* from, int count) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  if (threadIdx.x >= kThreads) return;
  const int words = count * static_cast<int>(sizeof(T) / sizeof(uint32_t));
  for (int i = threadIdx.x; i < words; i += kThreads)
    CopyAsync4(SharedAddress(to) + static_cast<uint32_t>(i) * 4,
               reinterpret_cast<const uint32_t*>(from) + i);
}

__device__ __forceinline__ RowAt AtRow(const Run& run, int row) {
  BlockContext& context = Context();
  return {context.set.infos,  context.set.set, row,       false,
          context.set.narrow, run.flags,       run.stamp, &context.scratch[0][0]};
}

// Rows dealt to the blocks, and then their rotations, so that other blocks get these if there are
// enough.
template <int kHidden>
__device__ __noinline__ void RowsOp() {
  const Run run = CurrentRun();
  const BlockContext& context = Context();
  const int rows = context.set.rows;
  const int pieces = (OpOf(run).flags & kOpRope) != 0 ? 2 * rows : rows;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < pieces; i += static_cast<int>(gridDim.x)) {
    if (i < rows) {
      RowOp<kHidden, false>(context.p, OpOf(run), AtRow(run, i));
    } else {
      FillRope(context.p, context.set.set, i - rows, context.set.infos[i - rows].position);
    }
    BlockSync();
  }
}
__device__ __noinline__ void QkNormRows() {
  const Run run = CurrentRun();
  BlockContext& context = Context();
  for (int row = blockIdx.x; row < context.set.rows; row += gridDim.x) {
    QkNormOp(context.p, OpOf(run), context.set.set, context.set.infos[row], row, run.recurrence,
             &context.scratch[0][0]);
    BlockSync();
  }
}
// The only row by every block, for itself.
__device__ __noinline__ void OwnRowsOp() {
  const Run run = CurrentRun();
  if (Context().p.hidden == kOwnHidden) {
    RowOp<kOwnHidden, true, true>(Context().p, OpOf(run), AtRow(run, 0));
  } else {
    RowOp<kOwnHidden, true>(Context().p, OpOf(run), AtRow(run, 0));
  }
}

__device__ __forceinline__ bool IsTimekeeper() {
  return blockIdx.x == 0 && ThreadNow() == 0;
}

// At the start of a launch: what all operations look at comes into shared memory, and the weights
// start to flow.
template <typename Kind>
__device__ __noinline__ void EnterLaunch(const DecodeParams& params) {
  BlockContext& context = Context();
  CopyToShared(&context.p, &params, 1);
  FetchToShared(&context.plan, params.plan, 1);
  InitRings();
  WaitForCopies();
  __syncthreads();
  const PlanHeader& plan = context.plan;
  int begin = 0;
  for (int set = 0; set < kSets; ++set) {
    const int end = params.matrices_end[set];
    const MatrixShare* shares = params.shares[plan.rows[set] <= kNarrowRows ? 1 : 0] +
                                static_cast<size_t>(blockIdx.x) * params.matrices;
    FetchToShared(context.shares + begin, shares + begin, end - begin);
    begin = end;
  }
  const auto* chains = At<int32_t>(params.plan, plan.chains_at);
  if (plan.chain_count <= kCachedChain)
    FetchToShared(context.chain_cache, chains, plan.chain_count);
  ChooseStreamed<Kind>();
  if (threadIdx.x < kSets) {
    context.order.end[threadIdx.x] = params.matrices_end[threadIdx.x];
    const int set = static_cast<int>(threadIdx.x);
    const bool ours = set >= params.sets_begin && set < params.sets_end;
    context.order.passes[set] = ours ? (plan.rows[set] + kPassRows - 1) / kPassRows : 0;
    context.order.recurrences = plan.recurrences;
    context.set.set = params.sets_begin - 1;
    context.traced = 0;
    context.arrivals = 0;
    context.chains = plan.chain_count <= kCachedChain ? context.chain_cache : chains;
  }
  WaitForCopies();
  __syncthreads();
  if (threadIdx.x < kThreads) StartStream<Kind>();
}

__device__ __forceinline__ void TraceTime() {
  BlockContext& context = Context();
  if (IsTimekeeper()) context.p.trace[context.traced++] = GlobalClock();
}

// Goes on to the launch's next set that has rows: what its operations look at comes into shared
// memory. Its first operation, or kNoOp when there is none.
__device__ __noinline__ OpDigest EnterNextSet() {
  BlockContext& context = Context();
  const PlanHeader& plan = context.plan;
  int set = context.set.set;
  if (IsTimekeeper() && set >= context.p.sets_begin) context.p.clock[2 * set + 1] = GlobalClock();
  do {
    if (++set == context.p.sets_end) return kNoOp;
  } while (plan.rows[set] == 0);
  if (IsTimekeeper()) context.p.clock[2 * set] = GlobalClock();
  const int rows = plan.rows[set];
  BlockSync();  // no one looks at the last set any more
  const auto* infos = At<RowInfo>(context.p.plan, plan.row_at[set]);
  const auto* query_rows = At<QueryRow>(context.p.plan, plan.query_rows_at[set]);
  const int begin = context.p.ops_begin[set], times = set == kSetCore ? plan.recurrences : 1;
  if (threadIdx.x == 0) {
    SetContext& now = context.set;
    now.stamp = plan.stamp[set];
    now.begin = begin;
    now.end = context.p.ops_end[set];
    now.times = times;
    now.set = set;
    now.rows = rows;
    now.units = plan.units[set];
    now.narrow = rows <= kNarrowRows;
    now.merge_lanes =
        MergeLanes(rows * context.p.q_size, PieceStride(), context.p.head_stride, now.narrow);
    now.related = set == kSetCore && plan.related != 0;
    now.allowed = (now.narrow && context.p.mail != 0 ? kRunMailOut : 0) |
                  (rows == 1 && context.p.hidden <= kOwnHidden ? kRunFused : 0);
    now.infos = rows <= kCachedRows ? context.row_cache : infos;
    now.query_rows = rows <= kCachedRows ? context.query_cache : query_rows;
    now.all_units = At<AttentionUnit>(context.p.plan, plan.unit_at[set]);
  }
  BlockSync();
  // All of it is on its way at once: a step has few sets, but each begins with this.
  if (rows <= kCachedRows) {
    FetchToShared(context.row_cache, infos, rows);
    FetchToShared(context.query_cache, query_rows, rows);
  }
  StartQueue({0, set == kSetCore ? context.p.core_start : begin, times, 0});
  CachePieces();
  WaitForCopies();
  BlockSync();
  if (context.p.trace != nullptr) TraceTime();
  return NextRun(CurrentCursor());
}

// A barrier over the grid: every block arrives, then waits for all. The launch is cooperative, so
// all blocks are resident. What needs nothing of other blocks may stand between the two.
__device__ __forceinline__ uint32_t* GridCounter() {
  const DecodeParams& p = Context().p;
  return &p.plan->barrier[p.sets_begin];
}
__device__ __forceinline__ void ArriveAtGrid() {
  // Released for the whole block: a barrier of the block has put its writes before this.
  if (ThreadNow() == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(GridCounter()) : "memory");
    Context().arrivals += BlocksNow();
  }
}
__device__ __forceinline__ void WaitForGrid() {
  if (ThreadNow() == 0) {
    uint32_t* const counter = GridCounter();
    const uint32_t target = Context().arrivals;
    uint32_t seen;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < target);
    // Once: it empties the first-level cache.
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  }
  BlockSync();
}

// The operation is done: goes on to the set's next one, when other blocks have left what it needs.
// What it will do is worked out meanwhile. kNoOp when there is none.
__device__ __forceinline__ OpDigest Advance(bool trace) {
  BlockSync();
  const Cursor cursor = CurrentCursor();
  const bool for_all = IsForAll(cursor);
  if (for_all) ArriveAtGrid();
  const OpDigest next = NextRun(cursor);
  if (for_all) WaitForGrid();
  if (trace) TraceTime();
  return next;
}

// Whether the kernel with rings of so many slots is there in what is compiled for an architecture
// (90 is 9.0): each takes a while to compile, and chips do not need all. Those with 100 KiB of
// shared memory run what is compiled for 8.0, or for 12.0 and later.
template <typename Kind>
__host__ __device__ constexpr bool IsCompiled(int architecture) {
  if (Kind::kCopier) return architecture >= 90 && architecture < 120;
  return Kind::kSlots == 1 ? architecture < 90 || architecture >= 120 : architecture < 120;
}
#ifdef __CUDA_ARCH__
inline constexpr int kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr int kArchitecture = 80;
#endif

template <typename Kind>
constexpr int ThreadsOf() {
  return kThreads + (Kind::kCopier ? kCopierThreads : 0);
}

// The kernel's own function calls the operations, and they call nothing: what is kept across a
// call, a return address among it, goes through memory that is often cold. So whatever lasts
// longer than an operation lies in shared memory, and registers are the operations' alone.
//
// Every operation ends with a barrier of the block. Where it leaves something for all blocks, they
// wait for each other before the next one; what that one will do is worked out meanwhile.
template <typename Kind>
__global__ void __launch_bounds__(ThreadsOf<Kind>(), 1)
    DecodeKernel(const __grid_constant__ DecodeParams params) {
  if constexpr (IsCompiled<Kind>(kArchitecture)) {
    EnterLaunch<Kind>(params);
    if constexpr (Kind::kCopier) {
      if (ThreadNow() >= kThreads) {
        if (ThreadNow() == kThreads) CopyStream<Kind>();
        return;
      }
    }
#pragma unroll 1
    for (OpDigest op = EnterNextSet(); op != kNoOp; op = EnterNextSet()) {
#pragma unroll 1
      do {
        switch (TypeOf(op)) {
          case OpType::kMatrix:
            MatrixOp<Kind>(FlagsOf(op));
            if constexpr (!Kind::kCopier) {
              if (NeedsCatchUp()) CatchUp<Kind>(static_cast<int>(ThreadNow() / 32));
            }
            break;
          case OpType::kAttention:
            AttentionOp<Kind>();
            break;
          case OpType::kMerge:
            MergeOp();
            break;
          case OpType::kQkNorm:
            QkNormRows();
            break;
          case OpType::kRows:
            if ((CurrentRun().flags & kRunFused) != 0) {
              OwnRowsOp();
            } else if (Kind::kCopier || Context().p.hidden <= kOwnHidden) {
              RowsOp<kOwnHidden>();
            } else if constexpr (!Kind::kCopier) {
              RowsOp<kMaxHidden>();
            }
            break;
        }
        op = Advance(params.trace != nullptr);
      } while (op != kNoOp);
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

template <typename Kind>
bool Prepare(int limit, DecodeKernelLaunch& launch) {
  if (SharedBytes<Kind>() > static_cast<size_t>(limit)) return false;
  const void* kernel = reinterpret_cast<const void*>(&DecodeKernel<Kind>);
  cudaFuncAttributes attributes{};
  Check(cudaFuncGetAttributes(&attributes, kernel), "looking for the decode kernel");
  if (!IsCompiled<Kind>(attributes.ptxVersion)) return false;
  launch = {kernel, ThreadsOf<Kind>(), SharedBytes<Kind>(), Kind::kCopierRows};
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(launch.shared_bytes)),
        "setting the shared memory of the decode kernel");
  return true;
}

// Cycles from one copy of a block's copier to the next, so that all blocks together ask for `share`
// of what memory delivers on paper.
int CopyInterval(int device, int blocks, double share) {
  int memory_khz = 0, bus_bits = 0, core_khz = 0;
  Check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&core_khz, cudaDevAttrClockRate, device), "reading the device");
  const double bytes_per_ms = 2.0 * memory_khz * bus_bits / 8;
  if (bytes_per_ms <= 0) return 1;
  return std::max(1, static_cast<int>(core_khz * static_cast<double>(kSlotBytes) * blocks /
                                      (bytes_per_ms * share)));
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
  // Faster gains less than the queues cost everything else; the more rows, the more there is of
  // that.
  launch.copy_interval[0] = CopyInterval(device, multiprocessors, 1.0);
  launch.copy_interval[1] = CopyInterval(device, multiprocessors, 1.07);
  // 228 KiB (Hopper, Blackwell data centre), 164 KiB (A100), 100 KiB (the rest). A third slot gains
  // something beside a copier alone: what other warps fetch into it delays all other reads.
  (void)Prepare<RingKind<3, 24>>(limit, launch.with_copier[0]);
  (void)Prepare<RingKind<2, 32>>(limit, launch.with_copier[1]);
  using Least = RingKind<1>;
  if (Prepare<RingKind<2>>(limit, launch.any) || Prepare<Least>(limit, launch.any)) return launch;
  FailText("GPU " + std::to_string(device) + " has " + std::to_string(limit) +
           " bytes of shared memory per block, decoding needs " +
           std::to_string(SharedBytes<Least>()));
}

void LaunchDecode(const DecodeLaunch& launch, DecodeParams params, const int (&rows)[kSets],
                  cudaStream_t stream) {
  // Beside a copier results of narrow sets go by mail, and attention takes the queries of a KV head
  // at once. The kernel for more rows takes the others' too: a launch costs more than it gains
  // them.
  const DecodeKernelLaunch* beside_copier = nullptr;
  if (params.mail != 0 && params.group <= kUnitQueries) {
    beside_copier = &launch.with_copier[0];
    for (const int count : rows) {
      if (count > launch.with_copier[0].copier_rows && count <= launch.with_copier[1].copier_rows)
        beside_copier = &launch.with_copier[1];
    }
  }
  // Neighbouring sets that the same kernel takes share a launch.
  const DecodeKernelLaunch* kernel = nullptr;
  const auto run = [&](int end) {
    params.sets_end = end;
    void* arguments[] = {&params};
    Check(cudaLaunchCooperativeKernel(kernel->kernel, dim3(static_cast<unsigned>(launch.blocks)),
                                      dim3(static_cast<unsigned>(kernel->threads)), arguments,
                                      kernel->shared_bytes, stream),
          "launching the decode kernel");
    params.sets_begin = end;
  };
  params.sets_begin = 0;
  for (int set = 0; set < kSets; ++set) {
    if (rows[set] == 0) continue;
    const DecodeKernelLaunch* next =
        beside_copier != nullptr && rows[set] <= beside_copier->copier_rows ? beside_copier
                                                                            : &launch.any;
    if (kernel != nullptr && next != kernel) run(set);
    kernel = next;
  }
  if (kernel != nullptr) run(kSets);
}

void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream) {
  if (commits == 0) return;
  CommitKernel<<<dim3(64, static_cast<unsigned>(commits)), 256, 0, stream>>>(params);
  Check(cudaGetLastError(), "launching the commits");
}

}  // namespace loopspec::cuda

#include "backends/cuda/decode/decode_kernel.h"

#include <algorithm>

#include "backends/cuda/attention/attention_op.cuh"
#include "backends/cuda/attention/combine_op.cuh"
#include "backends/cuda/decode/exchange/grid_barrier.cuh"
#include "backends/cuda/decode/op_queue.cuh"
#include "backends/cuda/decode/ops/matrix_op.cuh"
#include "backends/cuda/decode/ops/row_op.cuh"
#include "backends/cuda/decode/stream/producer.cuh"
#include "backends/cuda/decode/stream/weight_ring.cuh"
#include "backends/cuda/decode/watchdog.cuh"

namespace loopspec::cuda {
namespace {

template <typename Kind>
constexpr size_t SharedBytes() {
  const size_t stages = Kind::kStages + (Kind::kSharedInputs ? 1 : 0);
  return static_cast<size_t>(kRingOffset) + stages * kWarps * kStageBytes;
}

template <typename T>
__device__ void CopyToShared(T* to, const T* from, int count) {
  if (threadIdx.x >= kThreads) return;
  const int words = count * static_cast<int>(sizeof(T) / sizeof(uint32_t));
  for (int i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

// The same from global memory, asynchronously: WaitForCopies waits for it.
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
  CtaContext& context = Context();
  return {context.phase.infos,       context.phase.index, row,       false,
          context.phase.small_batch, run.flags,           run.epoch, &context.scratch[0][0]};
}

// One CTA for each row, and then one for each row's rotary table, so that where there are enough
// CTAs others fill the tables.
template <int kHidden>
__device__ __noinline__ void RowsOp() {
  const Run run = CurrentRun();
  const CtaContext& context = Context();
  const int rows = context.phase.rows;
  const int pieces = OpOf(run).flags.Has(OpFlag::kRope) ? 2 * rows : rows;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < pieces; i += static_cast<int>(gridDim.x)) {
    if (i < rows) {
      RowOp<PersistentRows<kHidden, false>>(context.p, OpOf(run), AtRow(run, i));
    } else {
      FillRope(context.p, context.phase.index, i - rows, context.phase.infos[i - rows].position);
    }
    CtaSync();
  }
}
__device__ __noinline__ void FinishQkRows() {
  const Run run = CurrentRun();
  CtaContext& context = Context();
  for (int row = blockIdx.x; row < context.phase.rows; row += gridDim.x) {
    FinishQkOp(context.p, OpOf(run), context.phase.index, context.phase.infos[row], row,
               run.recurrence, &context.scratch[0][0]);
    CtaSync();
  }
}
// A single row, by every CTA for itself.
__device__ __noinline__ void ReplicatedRowOp() {
  const Run run = CurrentRun();
  if (Context().p.shapes.hidden == kLocalHidden) {
    RowOp<PersistentRows<kLocalHidden, true, true>>(Context().p, OpOf(run), AtRow(run, 0));
  } else {
    RowOp<PersistentRows<kLocalHidden, true>>(Context().p, OpOf(run), AtRow(run, 0));
  }
}

__device__ __forceinline__ bool IsTimekeeper() {
  return blockIdx.x == 0 && ThreadNow() == 0;
}

// At the start of a launch: copies into shared memory what all operations read, and starts the
// stream of weights.
template <typename Kind>
__device__ __noinline__ void EnterLaunch(const DecodeParams& params) {
  CtaContext& context = Context();
  CopyToShared(&context.p, &params, 1);
  FetchToShared(&context.plan, params.plan, 1);
  InitRings();
  WaitForCopies();
  __syncthreads();
  const PlanHeader& plan = context.plan;
  int begin = 0;
  for (int phase = 0; phase < kPhases; ++phase) {
    const int end = params.program.matrices_end[phase];
    const MatrixShare* shares = params.program.shares[plan.rows[phase] <= kSmallBatchRows ? 1 : 0] +
                                static_cast<size_t>(blockIdx.x) * params.program.matrices;
    FetchToShared(context.shares + begin, shares + begin, end - begin);
    begin = end;
  }
  const auto* chains = At<int32_t>(params.plan, plan.chains_at);
  if (plan.chain_count <= kCachedChain)
    FetchToShared(context.chain_cache, chains, plan.chain_count);
  if (threadIdx.x < kPhases) {
    context.order.end[threadIdx.x] = params.program.matrices_end[threadIdx.x];
    const int phase = static_cast<int>(threadIdx.x);
    const bool ours = phase >= params.phases_begin && phase < params.phases_end;
    context.order.passes[phase] = ours ? (plan.rows[phase] + kPassRows - 1) / kPassRows : 0;
    context.order.recurrences = plan.recurrences;
    context.phase.index = params.phases_begin - 1;
    context.traced = 0;
    StartWatchdog(params, plan.given_up != 0);
    context.arrivals = 0;
    context.chains = plan.chain_count <= kCachedChain ? context.chain_cache : chains;
  }
  WaitForCopies();
  __syncthreads();
  if (threadIdx.x < kThreads) StartStream<Kind>();
}

__device__ __forceinline__ void TraceTime() {
  CtaContext& context = Context();
  if (IsTimekeeper()) context.p.trace[context.traced++] = GlobalClock();
}

// Goes on to the launch's next phase that has rows, and copies into shared memory what its
// operations read. Returns its first operation, or kNoOp when there is none.
__device__ __noinline__ OpDigest EnterNextPhase() {
  CtaContext& context = Context();
  const PlanHeader& plan = context.plan;
  int phase = context.phase.index;
  if (IsTimekeeper() && phase >= context.p.phases_begin)
    context.p.clock[2 * phase + 1] = GlobalClock();
  do {
    if (++phase == context.p.phases_end) return kNoOp;
  } while (plan.rows[phase] == 0);
  if (IsTimekeeper()) context.p.clock[2 * phase] = GlobalClock();
  const int rows = plan.rows[phase];
  CtaSync();  // no thread reads the last phase's data any more
  const auto* infos = At<RowInfo>(context.p.plan, plan.row_at[phase]);
  const auto* query_rows = At<QueryRow>(context.p.plan, plan.query_rows_at[phase]);
  const int begin = context.p.program.ops_begin[phase],
            times = phase == kPhaseCore ? plan.recurrences : 1;
  if (threadIdx.x == 0) {
    PhaseContext& now = context.phase;
    now.epoch = plan.epoch[phase];
    now.begin = begin;
    now.end = context.p.program.ops_end[phase];
    now.times = times;
    now.index = phase;
    now.rows = rows;
    now.units = plan.units[phase];
    now.small_batch = rows <= kSmallBatchRows;
    now.combine_lanes = CombineLanes(rows * context.p.shapes.q_size, PieceStride(),
                                     context.p.shapes.head_stride, now.small_batch);
    now.pieces = plan.merged[phase] != 0        ? PieceKind::kMergedSpans
                 : plan.longest_span[phase] > 1 ? PieceKind::kSpans
                                                : PieceKind::kSplits;
    now.spans = plan.spans[phase];
    now.relation = plan.relation[phase];
    now.allowed =
        (now.small_batch && context.p.exchange.enabled != 0 ? OpFlags(OpFlag::kSend) : OpFlags{}) |
        (rows == 1 && context.p.shapes.hidden <= kLocalHidden ? OpFlags(OpFlag::kReplicate)
                                                              : OpFlags{});
    now.infos = rows <= kCachedRows ? context.row_cache : infos;
    now.query_rows = rows <= kCachedRows ? context.query_cache : query_rows;
    now.all_units = At<AttentionUnit>(context.p.plan, plan.unit_at[phase]);
  }
  CtaSync();
  // All copies in flight at once: the latency is paid once per phase.
  if (rows <= kCachedRows) {
    FetchToShared(context.row_cache, infos, rows);
    FetchToShared(context.query_cache, query_rows, rows);
  }
  StartQueue({0, phase == kPhaseCore ? context.p.program.core_start : begin, times, {}});
  CachePieces();
  WaitForCopies();
  CtaSync();
  if (context.p.trace != nullptr) TraceTime();
  return NextRun(CurrentCursor());
}

// After an operation: goes on to the phase's next one, past the grid's barrier where there is one.
// How the next one runs is decided between arriving and waiting. kNoOp when there is none.
__device__ __forceinline__ OpDigest Advance(bool trace) {
  CtaSync();
  const Cursor cursor = CurrentCursor();
  const bool barrier = NeedsGridBarrier(cursor);
  if (barrier) ArriveAtGrid();
  const OpDigest next = NextRun(cursor);
  if (barrier) WaitForGrid();
  if (trace) TraceTime();
  return next;
}

// Whether the kernel of this kind is compiled for an architecture (90 is 9.0). Each takes a while
// to compile, and no chip needs all. Chips with 100 KiB of shared memory run what is compiled for
// 8.0, or for 12.0 and later.
template <typename Kind>
__host__ __device__ constexpr bool IsCompiled(int architecture) {
  if (Kind::kProducer) return architecture >= 90 && architecture < 120;
  return Kind::kStages == 1 ? architecture < 90 || architecture >= 120 : architecture < 120;
}
#ifdef __CUDA_ARCH__
inline constexpr int kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr int kArchitecture = 80;
#endif

template <typename Kind>
constexpr int ThreadsOf() {
  return kThreads + (Kind::kProducer ? kProducerThreads : 0);
}

// The kernel's loop calls the operations, and these call nothing: whatever is kept across a call,
// return addresses included, goes through memory that is often cold. So everything that outlives an
// operation lies in shared memory, and an operation has all registers.
//
// Every operation ends with a CTA barrier. Where it leaves results in memory for other CTAs, a grid
// barrier follows.
template <typename Kind>
__global__ void __launch_bounds__(ThreadsOf<Kind>(), 1)
    DecodeKernel(const __grid_constant__ DecodeParams params) {
  if constexpr (IsCompiled<Kind>(kArchitecture)) {
    EnterLaunch<Kind>(params);
    if constexpr (Kind::kProducer) {
      if (ThreadNow() >= kThreads) {
        if (ThreadNow() == kThreads) RunProducer<Kind>();
        return;
      }
    }
#pragma unroll 1
    for (OpDigest op = EnterNextPhase(); op != kNoOp; op = EnterNextPhase()) {
#pragma unroll 1
      do {
        switch (TypeOf(op)) {
          case OpType::kMatrix:
            MatrixOp<Kind>(FlagsOf(op));
            if constexpr (!Kind::kProducer) {
              if (NeedsCatchUp()) CatchUp<Kind>(static_cast<int>(ThreadNow() / 32));
            }
            break;
          case OpType::kAttention:
            AttentionOp<Kind>();
            break;
          case OpType::kCombine:
            CombineOp();
            break;
          case OpType::kFinishQk:
            FinishQkRows();
            break;
          case OpType::kRows:
            if (CurrentRun().flags.Has(RunFlag::kReplicated)) {
              ReplicatedRowOp();
            } else if (Context().p.shapes.hidden <= kLocalHidden) {
              RowsOp<kLocalHidden>();
            } else {
              RowsOp<Kind::kProducer ? kProducerHidden : kMaxHidden>();
            }
            break;
        }
        op = Advance(params.trace != nullptr);
      } while (op != kNoOp);
    }
    if (ThreadNow() == 0) EndWatchdog();
  }
}

__global__ void CommitKernel(const __grid_constant__ DecodeParams p) {
  const CommitInfo commit = At<CommitInfo>(p.plan, p.plan->commits_at)[blockIdx.y];
  const int words = p.shapes.head_stride / 8;  // of 16 bytes per key or value
  const int total = p.shapes.planes * p.shapes.kv_heads * 2 * words;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    const int word = i % words, which = i / words % 2,
              vector = i / words / 2;  // vector: (plane, head)
    const bf16* from =
        p.buffers.cell_kv +
        (static_cast<size_t>(commit.cell) * p.shapes.planes * p.shapes.kv_heads + vector) * 2 *
            p.shapes.head_stride +
        which * p.shapes.head_stride + word * 8;
    bf16* to =
        p.buffers.page_kv +
        ((static_cast<size_t>(commit.page) * p.shapes.planes * p.shapes.kv_heads + vector) * 2 +
         which) *
            kPageSize * p.shapes.head_stride +
        commit.slot * p.shapes.head_stride + word * 8;
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
  launch = {kernel, ThreadsOf<Kind>(), SharedBytes<Kind>(), Kind::kProducerRows};
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(launch.shared_bytes)),
        "setting the shared memory of the decode kernel");
  return true;
}

// Cycles from one copy of a producer warp to the next, such that all CTAs together request `share`
// of the nominal memory bandwidth.
int ProducerInterval(int device, int ctas, double share) {
  int memory_khz = 0, bus_bits = 0, core_khz = 0;
  Check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device),
        "reading the device");
  Check(cudaDeviceGetAttribute(&core_khz, cudaDevAttrClockRate, device), "reading the device");
  const double bytes_per_ms = 2.0 * memory_khz * bus_bits / 8;
  if (bytes_per_ms <= 0) return 1;
  return std::max(1, static_cast<int>(core_khz * static_cast<double>(kStageBytes) * ctas /
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
  launch.ctas = multiprocessors;
  // A faster pace gains less than the longer memory queues cost the exchanges, of which larger
  // batches have more.
  launch.producer_interval[0] = ProducerInterval(device, multiprocessors, 1.0);
  launch.producer_interval[1] = ProducerInterval(device, multiprocessors, 1.07);
  // 228 KiB (Hopper, Blackwell data centre), 164 KiB (A100), 100 KiB (the rest). A third stage pays
  // only with a producer warp: filled by the compute warps themselves, it delays their other reads.
  (void)Prepare<RingKind<3, 24>>(limit, launch.with_producer[0]);
  (void)Prepare<RingKind<2, 32>>(limit, launch.with_producer[1]);
  using Least = RingKind<1>;
  if (Prepare<RingKind<2>>(limit, launch.any) || Prepare<Least>(limit, launch.any)) return launch;
  FailText("GPU " + std::to_string(device) + " has " + std::to_string(limit) +
           " bytes of shared memory per CTA, decoding needs " +
           std::to_string(SharedBytes<Least>()));
}

// Kernels with a producer warp expect shapes that the program says it has (Builder::AllowsProducer,
// AllowsLowLatency), and that attention takes all queries of a KV head at once.
int ProducerRows(const DecodeLaunch& launch, const DecodeParams& params) {
  if (params.program.producer == 0 || params.shapes.group > kUnitQueries) return 0;
  return std::max(launch.with_producer[0].producer_rows, launch.with_producer[1].producer_rows);
}

void LaunchDecode(const DecodeLaunch& launch, const WideKernels& wide, DecodeParams params,
                  const PlanHeader& plan, cudaStream_t stream) {
  const auto& rows = plan.rows;
  const auto is_wide = [&](int count) { return wide.available() && count >= launch.wide_from; };
  // If one phase needs the kernel for more rows, the others run in it too: another launch would
  // cost more than the smaller kernel gains.
  const DecodeKernelLaunch* with_producer_kernel = nullptr;
  if (ProducerRows(launch, params) > 0) {
    with_producer_kernel = &launch.with_producer[0];
    for (const int count : rows) {
      if (!is_wide(count) && count > launch.with_producer[0].producer_rows &&
          count <= launch.with_producer[1].producer_rows)
        with_producer_kernel = &launch.with_producer[1];
    }
  }
  // Neighbouring phases that run in the same kernel share a launch.
  const DecodeKernelLaunch* kernel = nullptr;
  const auto run_to = [&](int end) {
    params.phases_end = end;
    void* arguments[] = {&params};
    if (kernel != nullptr) {
      Check(cudaLaunchCooperativeKernel(kernel->kernel, dim3(static_cast<unsigned>(launch.ctas)),
                                        dim3(static_cast<unsigned>(kernel->threads)), arguments,
                                        kernel->shared_bytes, stream),
            "launching the decode kernel");
    }
    params.phases_begin = end;
    kernel = nullptr;
  };
  params.phases_begin = 0;
  for (int phase = 0; phase < kPhases; ++phase) {
    const int count = rows[phase];
    if (count == 0) continue;
    if (is_wide(count)) {
      run_to(phase);
      wide.Launch(params, plan, static_cast<Phase>(phase), stream);
      params.phases_begin = phase + 1;
      continue;
    }
    const DecodeKernelLaunch* next =
        with_producer_kernel != nullptr && count <= with_producer_kernel->producer_rows
            ? with_producer_kernel
            : &launch.any;
    if (next != kernel) run_to(phase);
    kernel = next;
  }
  run_to(kPhases);
}

void LaunchCommits(const DecodeParams& params, int commits, cudaStream_t stream) {
  if (commits == 0) return;
  CommitKernel<<<dim3(64, static_cast<unsigned>(commits)), 256, 0, stream>>>(params);
  Check(cudaGetLastError(), "launching the commits");
}

}  // namespace loopspec::cuda

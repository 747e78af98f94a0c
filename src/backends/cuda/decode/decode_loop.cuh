// The decode kernel: a persistent CTA on every multiprocessor runs through a step's operations
// (docs/cuda-decode-kernel.md). Included by one file for each kind of keys and of weights, because
// instances take a while to compile.
#pragma once

#include "backends/cuda/attention/attention_op.cuh"
#include "backends/cuda/attention/combine_op.cuh"
#include "backends/cuda/decode/decode_kernel.h"
#include "backends/cuda/decode/op_queue.cuh"
#include "backends/cuda/decode/ops/matrix_op.cuh"
#include "backends/cuda/decode/ops/row_op.cuh"
#include "backends/cuda/decode/producer.cuh"
#include "backends/cuda/device/exchange/grid_barrier.cuh"
#include "backends/cuda/device/watchdog.cuh"
#include "backends/cuda/device/weight_ring.cuh"

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
    const int32_t spans_at = plan.later_spans_at[phase];
    now.later_spans = spans_at != 0 ? At<KeySpan>(context.p.plan, spans_at) : nullptr;
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
            CombineOp<Kind::kInt8Keys>();
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

// The instances for pages of one kind and weights of one kind, as far as the device can run them.
// `limit`: bytes of shared memory that a CTA may have. False: it has too little.
template <bool kInt8Keys, bool kPacked>
bool PrepareKernels(int limit, DecodeLaunch& launch) {
  // 228 KiB (Hopper, Blackwell data centre), 164 KiB (A100), 100 KiB (the rest). A third stage pays
  // only with a producer warp: filled by the compute warps themselves, it delays their other reads.
  (void)Prepare<RingKind<3, 24, kInt8Keys, kPacked>>(limit, launch.with_producer[0]);
  // Rows from 25 on take a kernel for each operation then (WideFrom).
  if constexpr (!kPacked) (void)Prepare<RingKind<2, 32, kInt8Keys>>(limit, launch.with_producer[1]);
  return Prepare<RingKind<2, 0, kInt8Keys, kPacked>>(limit, launch.any) ||
         Prepare<RingKind<1, 0, kInt8Keys, kPacked>>(limit, launch.any);
}

}  // namespace
}  // namespace loopspec::cuda

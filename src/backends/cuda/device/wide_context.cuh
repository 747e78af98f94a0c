// One operation of a step with many rows, in a kernel of its own.
//
// The next operation's kernel is launched before this one ends (programmatic dependent launch): it
// prepares whatever depends on no other row's results, and waits where it comes to them.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"

namespace loopspec::cuda {

// Whether the kernels of single operations are compiled for an architecture (90 is 9.0): those with
// TMA and 228 KiB of shared memory.
__host__ __device__ constexpr bool IsCompiled(int architecture) {
  return architecture >= 90 && architecture < 120;
}
#ifdef __CUDA_ARCH__
inline constexpr bool kCompiled = IsCompiled(__CUDA_ARCH__ / 10);
#else
inline constexpr bool kCompiled = true;
#endif

// What an operation runs on: the rows of a phase, as the plan has them.
struct WideRun {
  int32_t phase, rows, recurrence;
  int32_t unit_count;
  int32_t merged;  // 1: some partials are of several splits
  const RowInfo* infos;
  const QueryRow* query_rows;
  const AttentionUnit* units;
  const KeySpan* later_spans;
  const int32_t* chains;
};

// The part of the context that they use: all that lies before `row_cache`, rounded up.
inline constexpr size_t kContextCaches =
    sizeof(CtaContext::row_cache) + sizeof(CtaContext::query_cache) +
    sizeof(CtaContext::chain_cache) + sizeof(CtaContext::piece_cache) +
    sizeof(CtaContext::key_spans) + sizeof(CtaContext::key_heads) + sizeof(CtaContext::shares);
inline constexpr int kWideContextBytes =
    (static_cast<int>(sizeof(CtaContext) - kContextCaches) + 1023) / 1024 * 1024;

// The kernels of the operations before have ended, and their results can be read.
__device__ __forceinline__ void WaitForOperationsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next operation's kernel may start as soon as there is room.
__device__ __forceinline__ void LetNextOperationStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Fills in what the parts that are shared with the persistent kernel find in shared memory: the
// parameters, the operation and the phase. A CTA barrier must follow.
__device__ __forceinline__ void FillContext(const DecodeParams& params, const Op& op,
                                            const WideRun& run) {
  static_assert(sizeof(DecodeParams) % sizeof(uint32_t) == 0);
  CtaContext& context = Context();
  for (uint32_t i = threadIdx.x; i < sizeof(DecodeParams) / sizeof(uint32_t); i += blockDim.x)
    reinterpret_cast<uint32_t*>(&context.p)[i] = reinterpret_cast<const uint32_t*>(&params)[i];
  if (threadIdx.x < kWarps) context.runs[threadIdx.x] = {0, 0, {}, run.recurrence};
  if (threadIdx.x != 0) return;
  context.ops[0] = op;
  PhaseContext& phase = context.phase;
  phase.index = run.phase;
  phase.rows = run.rows;
  phase.units = run.unit_count;
  phase.infos = run.infos;
  phase.query_rows = run.query_rows;
  phase.all_units = run.units;
  phase.later_spans = run.later_spans;
  context.chains = run.chains;
}

}  // namespace loopspec::cuda

// The producer warp, for phases of up to 32 rows: it does nothing but fill the rings of the compute
// warps, with weights and, between them, with committed keys and values. Neither depends on any
// activation.
//
// The chain of operations consists of small exchanges between CTAs, and long memory queues delay
// them. Warps that each refill their ring as soon as they have read it cause bursts. Here one
// thread fills all rings in turn, a stage at a time and no faster than memory delivers, so that
// copies wait in this loop instead of in the memory system's queues ahead of the exchanges.
#pragma once

#include "backends/cuda/decode/cta_context.cuh"
#include "backends/cuda/decode/instructions.cuh"
#include "backends/cuda/decode/stream/weight_ring.cuh"
#include "kv/ledger.h"

namespace loopspec::cuda {

__device__ inline uint32_t CycleClock() {
  uint32_t t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
  return t;
}

// Which stage of each warp's ring is filled next, and when. Arrays indexed by a warp stay in
// registers, because all loops over the warps are unrolled.
template <typename Kind>
class StagePacer {
 public:
  __device__ __forceinline__ StagePacer() : due_(CycleClock()) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      stage_[w] = 0;
      parity_[w] = 1;  // the phase before a barrier's first one counts as complete
    }
  }

  // Waits until the next stage of the warp's ring has been read and the pace allows a copy.
  // `interval`: cycles from this copy to the next.
  __device__ __forceinline__ int Next(int warp, uint32_t interval) {
    const uint32_t stage = stage_[warp];
    WaitBarrier(EmptyBarrier(warp, 0) + stage * 8, parity_[warp]);
    WaitForTime(interval);
    if (++stage_[warp] == Kind::kStages) {
      stage_[warp] = 0;
      parity_[warp] ^= 1;
    }
    return static_cast<int>(stage);
  }

 private:
  __device__ __forceinline__ void WaitForTime(uint32_t interval) {
    while (due_ - CycleClock() - 1 < ahead_) {  // due_ is at most that far ahead
    }
    // A late copy does not make the following ones come faster.
    const uint32_t now = CycleClock();
    due_ = (now - due_ > interval ? now : due_) + interval;
    ahead_ = interval;
  }

  uint32_t due_;        // when the next copy may begin
  uint32_t ahead_ = 0;  // how far ahead of the last copy that was
  uint32_t stage_[kWarps],
      parity_[kWarps];  // of the next copy; of the empty barrier that allows it
};

// Weights: for each tile and chunk, every warp's ring gets its block of k in turn.
template <typename Kind>
__device__ __forceinline__ void ProduceWeights(StreamPass pass, uint32_t interval,
                                               StagePacer<Kind>& clock) {
  const int k_blocks = Context().shares[pass.matrix].k_blocks;
  do {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (pass.chunk * kWarps + w < k_blocks) FillStage<Kind>(pass, clock.Next(w, interval), w);
    }
  } while (StepPass(pass));
}

// Keys, then values, of the warps' streamed pieces in one layer of a phase.
template <typename Kind>
__device__ __forceinline__ void ProduceKeys(int phase, int plane, uint32_t interval,
                                            StagePacer<Kind>& clock) {
  const DecodeParams& p = Context().p;
  const auto bytes = static_cast<uint32_t>(p.shapes.split * p.shapes.head_stride) * sizeof(bf16);
  const size_t at =
      static_cast<size_t>(plane) * p.shapes.kv_heads * (2 * kPageSize * p.shapes.head_stride);
#pragma unroll 1
  for (int n = 0; n < kStreamedPieces; ++n) {
    const uint32_t warps = Context().streamed_warps[phase][n];
    if (warps == 0) continue;
    const bf16* const* keys = Context().streamed_keys[phase][n];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const size_t from = at + half * (kPageSize * p.shapes.head_stride);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if ((warps >> w & 1) == 0) continue;
        const int stage = clock.Next(w, interval);
        const uint32_t full = FullBarrier(w, stage);
        ExpectBytes(full, bytes);
        CopyBulk(StageAddress<Kind>(w, stage), keys[w] + from, bytes, full);
      }
    }
  }
}

// By one thread of the CTA's last warp: everything that goes through the rings, in the order of the
// operations that read it.
template <typename Kind>
__device__ __noinline__ void RunProducer() {
  StagePacer<Kind> clock;
  RingState at{};
  at.matrix = -1;
  int phase = -1, plane = 0;
#pragma unroll 1
  for (;;) {
    const StreamPass pass = NextPass<true>(at, 0);  // the first warp has a block in every chunk
    if (pass.matrix == kStreamEnd) return;
    PrefetchMap(Context().p.program.maps + min(pass.matrix + 1, Context().p.program.matrices - 1));
    const bool small_batch = Context().plan.rows[at.phase] <= kSmallBatchRows;
    const auto interval = static_cast<uint32_t>(Context().p.producer_interval[small_batch ? 1 : 0]);
    if (!IsEmpty(pass)) ProduceWeights(pass, interval, clock);
    const MatrixKind kind = Context().shares[pass.matrix].kind;
    if (kind != MatrixKind::kQkv && kind != MatrixKind::kQkvRaw) continue;
    // Attention follows. The planes of a stack's layers and recurrences are numbered in order.
    if (at.phase != phase) plane = 0;
    phase = at.phase;
    ProduceKeys(phase, plane++, interval, clock);
  }
}

}  // namespace loopspec::cuda

// The producer warp, for phases of up to 32 rows: it does nothing but fill the rings of the compute
// warps, with weights and, between them, with committed keys and values. Neither depends on any
// activation.
//
// The chain of operations consists of small exchanges between CTAs, and long memory queues delay
// them. Warps that each refill their ring as soon as they have read it cause bursts. Here one
// thread fills all rings in turn, a stage at a time and no faster than memory delivers, so that
// copies wait in this loop instead of in the memory system's queues ahead of the exchanges.
#pragma once

#include "backends/cuda/attention/attention_pieces.cuh"
#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/watchdog.cuh"
#include "backends/cuda/device/weight_ring.cuh"
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
    // The producer just ends; the compute warps will give their rings up too.
    if (!WaitForRing(EmptyBarrier(warp, 0) + stage * 8, parity_[warp])) asm volatile("exit;");
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

// Weights: for each tile, or tiles that share a stage, and chunk, every warp's ring gets its blocks
// of k in turn. `interval`: cycles that the copy of one block takes.
template <typename Kind>
__device__ __forceinline__ void ProduceWeights(StreamPass pass, uint32_t interval,
                                               StagePacer<Kind>& clock) {
  const int k_blocks = Context().shares[pass.matrix].k_blocks;
  int tiles;
  do {
    tiles = TilesAtOnce<Kind>(pass);
    const uint32_t pace = interval * static_cast<uint32_t>(tiles);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (pass.chunk * kWarps + w < k_blocks) FillStage<Kind>(pass, tiles, clock.Next(w, pace), w);
    }
  } while (StepPass(pass, tiles));
}

// Keys and values of the warps' streamed pieces (attention/attention_streamed.cuh). A round is a
// piece for each warp. Which keys that is lies in the plan, in memory: a few rounds are looked up
// once for all layers, more than that always one round ahead.
template <typename Kind>
class KeyProducer {
 public:
  __device__ __forceinline__ void EnterPhase(int phase) {
    const CtaContext& context = Context();
    const ShapeParams& shapes = context.p.shapes;
    phase_ = phase;
    rounds_ = 0;
    const int units = context.plan.units[phase];
    if (!StreamsKeys(units)) return;
    pieces_ = units * shapes.kv_heads;
    rounds_ = (pieces_ - static_cast<int>(blockIdx.x) + PieceStride() - 1) / PieceStride();
    keys_ = context.p.buffers.page_kv;
    const auto* all = At<AttentionUnit>(context.p.plan, context.plan.unit_at[phase]);
    spans_ = reinterpret_cast<const char*>(&all->keys);
    span_stride_ = sizeof(AttentionUnit);
    layer_ = recurrence_ = 0;
    page_ = kPageSize * shapes.key_words;
    split_ = shapes.split * shapes.head_stride;
    per_page_log2_ = __ffs(kPageSize / shapes.split) - 1;
    const int first = rounds_ <= kFewRounds ? rounds_ : 1;
#pragma unroll 1
    for (int round = 0; round < first; ++round) LookUp(round, round);
    buffer_ = 0;
  }
  __device__ __forceinline__ int phase() const {
    return phase_;
  }

  // Fetches the keys and values of the phase's next layer.
  __device__ __forceinline__ void ProduceLayer(uint32_t interval, StagePacer<Kind>& clock) {
    if (rounds_ == 0) return;
    const bool turns = EndsRecurrenceByPlan();
#pragma unroll 1
    for (int round = 0; round < rounds_; ++round) {
      WaitForCopies();
      int now = round;
      if (rounds_ > kFewRounds) {
        now = buffer_;
        buffer_ ^= 1;
        const bool wraps = round + 1 == rounds_;
        if (wraps && turns) TurnSpans();
        LookUp(wraps ? 0 : round + 1, buffer_);
      }
      int splits = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) splits = max(splits, Streamed(Context().key_spans[now][w]));
#pragma unroll 1
      for (int split = 0; split < splits; ++split) ProduceSplit(now, split, interval, clock);
    }
    // The planes of a stack's layers and recurrences are numbered in order, unless a plan of keys
    // says where they are.
    keys_ += static_cast<size_t>(Context().p.shapes.kv_heads) * (2 * page_);
    if (!turns) return;
    keys_ = Context().p.buffers.page_kv;
    if (rounds_ > kFewRounds) return;
    TurnSpans();
#pragma unroll 1
    for (int round = 0; round < rounds_; ++round) LookUp(round, round);
  }

 private:
  static __device__ __forceinline__ int Streamed(const KeySpan& span) {
    return span.whole != 0 ? span.splits : 0;
  }

  // Whether the layer is the last of a recurrence after which the step has another, by a plan of
  // keys. Counts layers.
  __device__ __forceinline__ bool EndsRecurrenceByPlan() {
    if constexpr (!Kind::kInt8Keys) return false;
    const CtaContext& context = Context();
    if (context.p.shapes.recurrence_planes != 0 || phase_ != kPhaseCore) return false;
    if (++layer_ < context.p.shapes.core_layers) return false;
    layer_ = 0;
    return recurrence_ + 1 < context.plan.recurrences;
  }
  // From now on the spans of the next recurrence are looked up.
  __device__ __forceinline__ void TurnSpans() {
    const CtaContext& context = Context();
    const auto* later = At<KeySpan>(context.p.plan, context.plan.later_spans_at[phase_]);
    spans_ = reinterpret_cast<const char*>(later + recurrence_ * context.plan.units[phase_]);
    span_stride_ = sizeof(KeySpan);
    ++recurrence_;
  }

  __device__ __forceinline__ void LookUp(int round, int buffer) {
    CtaContext& context = Context();
    const int kv_heads = context.p.shapes.kv_heads;
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) {
      const int piece = static_cast<int>(blockIdx.x + gridDim.x * w) + round * PieceStride();
      KeySpan& to = context.key_spans[buffer][w];
      if (piece >= pieces_) {
        to.whole = 0;
        continue;
      }
      const int unit = Quotient(piece, kv_heads);
      const char* from = spans_ + static_cast<size_t>(unit) * span_stride_;
      CopyAsync16(SharedAddress(&to), from);
      CopyAsync16(SharedAddress(&to) + 16, from + 16);
      context.key_heads[buffer][w] = static_cast<int16_t>(piece - unit * kv_heads);
    }
  }

  // The next split of each warp's span: all keys, then all values. First where they are: between
  // two copies there is little time.
  __device__ __forceinline__ void ProduceSplit(int buffer, int split, uint32_t interval,
                                               StagePacer<Kind>& clock) {
    const bf16* from[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const KeySpan& span = Context().key_spans[buffer][w];
      const int at = span.first + split, page = at >> per_page_log2_;
      const bool there = split < Streamed(span);
      const int head = there ? span.pages[page] + Context().key_heads[buffer][w] : 0;
      const bf16* keys = keys_ + static_cast<size_t>(head) * (2 * page_) +
                         (at - (page << per_page_log2_)) * split_;
      from[w] = there ? keys : nullptr;
    }
    const uint32_t bytes = static_cast<uint32_t>(split_) * sizeof(bf16);
    // With int8 keys the first copy has the values too.
#pragma unroll 1
    for (int half = 0; half < (Kind::kInt8Keys ? 1 : 2); ++half) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (from[w] == nullptr) continue;
        const int stage = clock.Next(w, interval);
        const uint32_t full = FullBarrier(w, stage);
        ExpectBytes(full, bytes);
        CopyBulk(StageAddress<Kind>(w, stage), from[w], bytes, full);
        from[w] += page_;
      }
    }
  }

  int phase_ = -1;
  int rounds_ = 0;  // of a layer; 0: nothing is streamed
  int pieces_ = 0;
  int buffer_ = 0;               // of what was looked up last
  const char* spans_ = nullptr;  // of the recurrence that is looked up, span_stride_ bytes apart
  uint32_t span_stride_ = 0;
  int layer_ = 0, recurrence_ = 0;  // that are produced, by a plan of keys
  const bf16* keys_ = nullptr;      // of page 0 in the layer's plane, relative to the rows' first
  int page_ = 0, split_ = 0;        // 16-bit words of a head's keys; of a copy
  int per_page_log2_ = 0;           // splits of a page
};

// By one thread of the CTA's last warp: everything that goes through the rings, in the order of the
// operations that read it.
template <typename Kind>
__device__ __noinline__ void RunProducer() {
  StagePacer<Kind> clock;
  KeyProducer<Kind> keys;
  RingState at{};
  at.matrix = -1;
#pragma unroll 1
  for (;;) {
    const StreamPass pass = NextPass<true>(at, 0);  // the first warp has a block in every chunk
    if (pass.matrix == kStreamEnd) return;
    PrefetchMap(Context().p.program.maps + min(pass.matrix + 1, Context().p.program.matrices - 1));
    const bool small_batch = Context().plan.rows[at.phase] <= kSmallBatchRows;
    const auto interval = static_cast<uint32_t>(Context().p.producer_interval[small_batch ? 1 : 0]);
    // Smaller copies follow each other faster, as memory delivers them.
    auto pace = interval;
    if constexpr (Kind::kPackedWeights)
      pace = interval * static_cast<uint32_t>(BlockBytes(pass.form)) / kStageBytes;
    if (!IsEmpty(pass)) ProduceWeights(pass, pace, clock);
    if (at.phase != keys.phase()) keys.EnterPhase(at.phase);
    const MatrixKind kind = Context().shares[pass.matrix].kind;
    if (kind == MatrixKind::kQkv || kind == MatrixKind::kQkvRaw) keys.ProduceLayer(interval, clock);
  }
}

}  // namespace loopspec::cuda

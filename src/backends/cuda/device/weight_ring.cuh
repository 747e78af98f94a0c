// The stream of weights that a CTA reads in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp
// has a ring in shared memory that is filled ahead of the barriers between operations: memory stays
// busy while the arithmetic waits. A stage holds a block: kTileRows rows by kBlockK elements (8
// KiB), the warp's part of one tile and one chunk of k; or, where weights have few bits, the blocks
// of two tiles, so that a ring is as many bytes ahead. An mbarrier per stage says when it is full.
// A warp that has read a stage refills it: from Hopper on by TMA, with one instruction for each
// block; before, by its own asynchronous copies. Or it arrives on the stage's empty barrier, and
// the producer warp refills it (decode/producer.cuh), with keys and values too.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/watchdog.cuh"

namespace loopspec::cuda {

inline constexpr int kStageBytes = kTileRows * kBlockK * static_cast<int>(sizeof(bf16));
inline constexpr int kGroupBytes = kTileRows * 128;  // part of a stage: 64 elements of k

// What a stage holds of weights in few bits: a block of k of a tile, in units.
constexpr int kBlockUnits = kBlockK / kUnitK;
constexpr int BlockBytes(WeightForm form) {
  return kBlockUnits * UnitBytes(form);
}
static_assert(BlockBytes(WeightForm::kBF16) == kStageBytes);

// Tiles whose blocks share a stage. Shares of several chunks have one: their blocks are gone
// through chunk by chunk, and not every warp has one in the last chunk.
inline constexpr int kPackedTilesOfStage = 2;
static_assert(kPackedTilesOfStage * BlockBytes(WeightForm::kInt8) <= kStageBytes);
__device__ __forceinline__ int TilesOfStage(const MatrixShare& share) {
  const bool several = share.form != WeightForm::kBF16 && share.chunk_end - share.chunk_begin == 1;
  return several ? kPackedTilesOfStage : 1;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LOOPSPEC_TMA 1
#else
#define LOOPSPEC_TMA 0
#endif

// The barrier that says that a stage of a warp's ring is full.
__device__ __forceinline__ uint32_t FullBarrier(int warp, int stage) {
  return SharedAddress(&Context().full[warp * kMaxStages + stage]);
}

// The barrier that says that it is empty, for the producer warp.
__device__ __forceinline__ uint32_t EmptyBarrier(int warp, int stage) {
  return SharedAddress(&Context().empty[warp * kMaxStages + stage]);
}

// By all threads, before the CTA's first barrier.
__device__ __forceinline__ void InitRings() {
  for (int i = threadIdx.x; i < kWarps * kMaxStages; i += kThreads) {
    InitBarrier(SharedAddress(&Context().full[i]), LOOPSPEC_TMA ? 1 : 32);
    InitBarrier(SharedAddress(&Context().empty[i]), 32);
  }
  FenceBarrierInit();
}

// Chunks of a share in which a warp has a block of k: the last one may be too short for all warps.
__device__ __forceinline__ int ChunksOfWarp(const MatrixShare& share, int warp) {
  return min(static_cast<int>(share.chunk_end), (share.k_blocks - warp + kWarps - 1) / kWarps) -
         share.chunk_begin;
}

template <typename Kind>
__device__ __forceinline__ uint32_t StageAddress(int warp, int stage) {
  return SharedAddress(shared_memory) +
         static_cast<uint32_t>(kRingOffset + (warp * Kind::kStages + stage) * kStageBytes);
}

// Where a lane keeps inputs that do not fit in its registers: after the rings there is room of one
// stage for each warp.
template <typename Kind>
__device__ __forceinline__ uint32_t SharedInputs() {
  const auto stage = static_cast<int>(kWarps * Kind::kStages + threadIdx.x / 32);
  return StageAddress<Kind>(0, stage) + threadIdx.x % 32 * static_cast<uint32_t>(sizeof(uint4));
}

// Tiles of `pass` whose blocks go into the next stage.
template <typename Kind>
__device__ __forceinline__ int TilesAtOnce(const StreamPass& pass) {
  if constexpr (!Kind::kPackedWeights) return 1;
  return min(static_cast<int>(pass.tiles_of_stage), pass.tile_end - pass.tile);
}

// Starts the copies of the current blocks of `pass`, those of `tiles` tiles, into a stage of a
// warp's ring. TMA starts after `read`, the value last read from the stage, has arrived in its
// register; a warp's own copies stay behind its loads anyway. By a whole warp, not necessarily the
// ring's; the producer uses one thread.
template <typename Kind>
__device__ __forceinline__ void FillStage(const StreamPass& pass, int tiles, int stage, int warp,
                                          uint32_t read = 0) {
  const bool packed = Kind::kPackedWeights && pass.form != WeightForm::kBF16;
  uint32_t to = StageAddress<Kind>(warp, stage);
  const uint32_t full = FullBarrier(warp, stage);
  const int block = pass.chunk * kWarps + warp;
  if constexpr (LOOPSPEC_TMA) {
    if (Kind::kProducer || threadIdx.x % 32 == 0) {
      const int block_bytes = packed ? BlockBytes(pass.form) : kStageBytes;
      ExpectBytes(full, static_cast<uint32_t>(tiles * block_bytes));
      // Units are counted along k and then by tiles, groups of 64 elements by rows and then along
      // k.
      const int along_k = block * kBlockUnits;
      if constexpr (!Kind::kProducer) to = After(read, to);
      CopyTile(to, Context().p.program.maps + pass.matrix, packed ? pass.tile : along_k,
               packed ? along_k : pass.tile * kTileRows, full);
      if (Kind::kPackedWeights && tiles > 1) {
        CopyTile(to + static_cast<uint32_t>(block_bytes), Context().p.program.maps + pass.matrix,
                 pass.tile + 1, along_k, full);
      }
    }
  } else if (packed) {
    const MatrixSource source = Context().p.program.sources[pass.matrix];
    const int of_tile = source.ld / kUnitK, bytes = BlockBytes(pass.form);
    for (int tile = 0; tile < tiles; ++tile) {
      const size_t unit = static_cast<size_t>(pass.tile + tile) * of_tile + block * kBlockUnits;
      const char* from = static_cast<const char*>(source.weights) +
                         unit * static_cast<size_t>(UnitBytes(pass.form));
      for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
        CopyAsync16(to + static_cast<uint32_t>(tile * bytes + at), from + at);
    }
    ArriveAfterCopies(full);
  } else {
    const MatrixSource source = Context().p.program.sources[pass.matrix];
    const int r = threadIdx.x % 32 / 8, part = threadIdx.x % 8;
    const bf16* from = static_cast<const bf16*>(source.weights) +
                       (static_cast<size_t>(pass.tile) * kTileRows + r) * source.ld +
                       block * kBlockK + part * 8;
#pragma unroll
    for (int i = 0; i < kBlockK / 16; ++i) {
      const int row = r + 4 * (i % 4);
      CopyAsync16(to + i / 4 * kGroupBytes + row * 128 + (part ^ (row & 7)) * 16,
                  from + static_cast<size_t>(i % 4 * 4) * source.ld + i / 4 * 64);
    }
    ArriveAfterCopies(full);  // every lane arrives when its copies are done
  }
}

// Prefetches the tensor map of the next matrix: the first copy would wait for it.
__device__ __forceinline__ void PrefetchMapAfter(int matrix) {
  if (LOOPSPEC_TMA && threadIdx.x % 32 == 0 && matrix + 1 < Context().p.program.matrices)
    PrefetchMap(Context().p.program.maps + matrix + 1);
}

// Goes on to the blocks after those of `tiles` tiles; false when there are none.
__device__ __forceinline__ bool StepPass(StreamPass& pass, int tiles) {
  if (++pass.chunk < pass.chunk_end) return true;
  pass.chunk = pass.chunk_begin;
  pass.tile += tiles;
  return pass.tile < pass.tile_end;
}

// The pass over a warp's share of a matrix; without chunks when it has no share.
__device__ __forceinline__ StreamPass PassOver(int matrix, int warp) {
  const MatrixShare share = Context().shares[matrix];
  const int chunks = share.tile_begin < share.tile_end ? ChunksOfWarp(share, warp) : 0;
  return {matrix,
          share.tile_begin,
          share.tile_end,
          share.chunk_begin,
          share.chunk_begin,
          share.chunk_begin + chunks,
          share.form,
          static_cast<int8_t>(TilesOfStage(share))};
}
__device__ __forceinline__ bool IsEmpty(const StreamPass& pass) {
  return pass.chunk_begin >= pass.chunk_end;
}

// A warp's next pass over a matrix. Matrices without a share of it are left out; kAll: they are
// returned as empty passes.
template <bool kAll = false>
__device__ __forceinline__ StreamPass NextPass(RingState& at, int warp) {
  const StreamOrder& order = Context().order;
  if (at.matrix >= 0 && ++at.pass < order.passes[at.phase]) return PassOver(at.matrix, warp);
  at.pass = 0;
  for (;;) {
    ++at.matrix;
    if (order.passes[at.phase] == 0) at.matrix = order.end[at.phase];
    if (at.matrix < order.end[at.phase]) {
      const StreamPass pass = PassOver(at.matrix, warp);
      if (kAll || !IsEmpty(pass)) return pass;
    } else if (at.phase == kPhaseCore && order.passes[at.phase] > 0 &&
               ++at.repeat < order.recurrences) {
      at.matrix = order.end[kPhasePrelude] - 1;
    } else {
      at.matrix = order.end[at.phase] - 1;
      if (++at.phase == kPhases) return {kStreamEnd, 0, 0, 0, 0, 0, {}, 1};
    }
  }
}

__device__ __forceinline__ bool NeedsCatchUp() {
  return Context().rings[ThreadNow() / 32].now.matrix == kNotPrepared;
}

// Computes the next pass of a warp's ring and fills the stages that waited for it. By a whole warp.
template <typename Kind>
__device__ __noinline__ void CatchUp(int warp) {
  RingState at = Context().rings[warp];
  __syncwarp();
  for (;;) {
    if (at.now.matrix == kNotPrepared) {
      at.now = NextPass(at, warp);
      at.last = at.now.matrix >= 0 && Context().order.passes[at.phase] == 1
                    ? Context().order.end[at.phase] - 1
                    : -1;
      if (at.now.matrix >= 0) PrefetchMapAfter(at.now.matrix);
    }
    if (at.owed == 0 || at.now.matrix == kStreamEnd) break;
    const int tiles = TilesAtOnce<Kind>(at.now);
    FillStage<Kind>(at.now, tiles, static_cast<int>((at.reads - at.owed) % Kind::kStages), warp);
    --at.owed;
    if (!StepPass(at.now, tiles)) at.now.matrix = kNotPrepared;
  }
  if (threadIdx.x % 32 == 0) Context().rings[warp] = at;
  __syncwarp();
}

// Before the first operation of a launch: every warp fills its ring.
template <typename Kind>
__device__ __forceinline__ void StartStream() {
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) {
    RingState at{};
    at.now.matrix = kNotPrepared;
    at.reads = at.owed = Kind::kStages;  // as if all stages had been read
    at.matrix = -1;
    Context().rings[warp] = at;
  }
  __syncwarp();
  if constexpr (!Kind::kProducer) CatchUp<Kind>(warp);
}

// A warp's own ring in the course of an operation. Few registers, no calls.
//
// A stage is, for each 64 elements of k, sixteen rows of 128 bytes. Row r has its 16-byte parts
// permuted by XOR with r % 8 (TMA's 128-byte swizzle), so that reading one part of eight rows has
// no bank conflicts.
template <typename Kind>
class Ring {
 public:
  // Restores the state that Save left.
  __device__ __forceinline__ Ring() : warp_(static_cast<int>(threadIdx.x / 32)) {
    const RingState& state = Context().rings[warp_];
    reads_ = state.reads;
    if constexpr (!Kind::kProducer) {
      now_ = state.now;
      owed_ = state.owed;
      last_ = state.last;
      matrix_ = state.matrix;
    }
    const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    ring_ = SharedAddress(shared_memory) +
            static_cast<uint32_t>(kRingOffset + warp_ * Kind::kStages * kStageBytes + row * 128 +
                                  (half ^ row % 8) * 16);
    full_ = FullBarrier(warp_, 0);
  }
  __device__ __forceinline__ void Save() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      RingState& state = Context().rings[warp_];
      state.reads = reads_;
      if constexpr (!Kind::kProducer) {
        state.now = now_;
        state.owed = owed_;
        // Passes that Refill has gone on to count as computed.
        state.matrix = now_.matrix >= 0 ? now_.matrix : matrix_;
      }
    }
    __syncwarp();
  }

  // Waits until stage number `ahead` of those not yet read is full; returns where this lane's rows
  // begin.
  __device__ __forceinline__ uint32_t Wait(int ahead) const {
    return ring_ + Full(ahead) * static_cast<uint32_t>(kStageBytes);
  }
  // The same for units, and for all that is no row of weights: where the stage itself begins.
  __device__ __forceinline__ uint32_t WaitStage(int ahead = 0) const {
    return StageAddress<Kind>(warp_, static_cast<int>(Full(ahead)));
  }
  // The 16 x 16 operand of elements 16 i ... of the stage.
  static __device__ __forceinline__ void Read(uint32_t stage, int i, uint32_t (&a)[4]) {
    LoadMatrix(
        (stage ^ static_cast<uint32_t>(i % 4 * 32)) + static_cast<uint32_t>(i / 4 * kGroupBytes),
        a);
  }

  // The warp has read the next stage, if it `ends` there; `last` depends on the last value read.
  // Starts the copies that refill it, or, with a producer warp, arrives on its empty barrier. Only
  // the simple case, one matrix after the other, is handled here; otherwise the stage waits for
  // CatchUp.
  __device__ __forceinline__ void Refill(uint32_t last, bool ends = true) {
    const auto stage = static_cast<int>(reads_ % kStages);
    if (!ends) return;
    ++reads_;
    if constexpr (Kind::kProducer) {
      Arrive(After(last, EmptyBarrier(warp_, stage)));
    } else {
      if (now_.matrix < 0) {
        ++owed_;
        return;
      }
      const int tiles = TilesAtOnce<Kind>(now_);
      FillStage<Kind>(now_, tiles, stage, warp_, last);
      if (StepPass(now_, tiles)) return;
      matrix_ = now_.matrix;
      if (now_.matrix < last_) {
        now_ = PassOver(now_.matrix + 1, warp_);
        PrefetchMapAfter(matrix_ + 1);
        if (!IsEmpty(now_)) return;
      }
      now_.matrix = kNotPrepared;
    }
  }

 private:
  static constexpr uint32_t kStages = Kind::kStages;

  // Waits until it is full; returns its index.
  __device__ __forceinline__ uint32_t Full(int ahead) const {
    const uint32_t read = reads_ + static_cast<uint32_t>(ahead), stage = read % kStages;
    (void)WaitForRing(full_ + stage * 8, (read / kStages + 1) & 1);
    return stage;
  }

  uint32_t reads_;
  int warp_;
  uint32_t ring_, full_;
  // Without a producer warp:
  StreamPass now_;
  uint32_t owed_;
  int last_;
  int matrix_;  // the last one whose copies were all started
};

}  // namespace loopspec::cuda

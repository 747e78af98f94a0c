// A matrix product of more than kPassRows rows: the weights are read once for all of them.
//
// A CTA computes items (program/wide_work.h): tiles of outputs by rows for one chunk of k. Weights
// and inputs come into shared memory by TMA, kWideStages stages of kWideStageK elements of k ahead,
// for all warps. A warp multiplies 32 outputs with 32 or 64 rows.
//
// The order of additions is that of matrix_op.cuh, so the bits are those of a single row: sixteen
// instructions for each block of k, in turn into two accumulators that are then added; the blocks
// of a chunk in order; the row operation adds the chunks in order.
//
// The weights of the next product's first stages are requested as soon as stages become free; their
// inputs follow when the CTA has come to that product.
#pragma once

#include <utility>

#include "backends/cuda/decode/cta_context.cuh"
#include "backends/cuda/decode/instructions.cuh"
#include "backends/cuda/decode/kernel_params.h"
#include "backends/cuda/decode/ops/input_layout.cuh"
#include "backends/cuda/decode/ops/matrix_epilogue.cuh"
#include "backends/cuda/decode/ops/matrix_inputs.cuh"
#include "backends/cuda/program/wide_work.h"

namespace loopspec::cuda {

static_assert(kWideStages * kWideStageBytes == WideKind::kStages * kWarps * 8192);
static_assert(kWideStages <= kWarps);

// Full: one arrival, of the thread that starts the copies, and their bytes. Empty: one of each
// warp.
__device__ __forceinline__ void InitWideStages() {
  CtaContext& context = Context();
  if (threadIdx.x < kWideStages) {
    InitBarrier(SharedAddress(&context.full[threadIdx.x]), 1);
    InitBarrier(SharedAddress(&context.empty[threadIdx.x]), kWarps);
  }
  if (threadIdx.x < kWarps) context.wide_states[threadIdx.x] = WideState{};
  FenceBarrierInit();
}

__device__ __forceinline__ uint32_t WideStage(uint32_t stage) {
  return SharedAddress(shared_memory) + kRingOffset + stage * kWideStageBytes;
}

// Requests the stages of one product. Loads are numbered from the start of the launch; `base` is
// the product's first.
class WideLoader {
 public:
  __device__ __forceinline__ WideLoader(int matrix, uint32_t base, int rows)
      : matrix_(matrix), base_(base), rows_(rows) {
    if (matrix < 0) return;
    const WideMatrix& m = Context().wide[matrix];
    shape_ = WideShapeAt(WideShapeFor(m, rows));
    work_ = WideWork::Of(m, shape_, rows);
    total_ =
        work_.ItemsOf(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)) * work_.stages;
  }
  __device__ __forceinline__ int total() const { return total_; }
  __device__ __forceinline__ const WideWork& work() const { return work_; }

  // Requests the weights and announces the bytes of load n of the product, when its stage is free;
  // `inputs`: and requests the inputs. By one thread.
  __device__ __forceinline__ void Request(int n, bool inputs) const {
    const uint32_t load = base_ + static_cast<uint32_t>(n), stage = load % kWideStages;
    if (load >= kWideStages)
      WaitBarrier(SharedAddress(&Context().empty[stage]), (load / kWideStages + 1) & 1);
    const Place at = PlaceOf(n);
    const uint32_t full = SharedAddress(&Context().full[stage]);
    const int blocks = BlocksOf(at), groups = GroupsOf(at);
    if (blocks <= 0) {
      Arrive(full);
      return;
    }
    ExpectBytes(full, static_cast<uint32_t>(blocks * (shape_.outputs + groups * kPassRows) *
                                            kWideStageK * 2));
    const TensorMap* map = Context().p.program.wide_maps + matrix_;
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
#pragma unroll 1
      for (int row = 0; row < shape_.outputs; row += kWideBoxRows) {
        CopyBox(
            WideStage(stage) + static_cast<uint32_t>((b * shape_.outputs + row) * kWideStageK * 2),
            map, (at.block + b) * kBlockK + at.k, at.item.output_tile * shape_.outputs + row, full);
      }
    }
    if (inputs) CopyInputs(at, stage, full, blocks, groups);
  }
  // Requests the inputs of a load whose weights were requested before.
  __device__ __forceinline__ void RequestInputs(int n) const {
    const uint32_t stage = (base_ + static_cast<uint32_t>(n)) % kWideStages;
    const Place at = PlaceOf(n);
    CopyInputs(at, stage, SharedAddress(&Context().full[stage]), BlocksOf(at), GroupsOf(at));
  }

 private:
  struct Place {
    WideItem item;
    int block;  // the first
    int k;      // within the blocks
  };
  __device__ __forceinline__ Place PlaceOf(int n) const {
    constexpr int kPerBlock = kBlockK / kWideStageK;
    const int number = Quotient(n, work_.stages), within = n - number * work_.stages;
    const WideItem item =
        WideItem::Of(work_, static_cast<int>(blockIdx.x) + number * static_cast<int>(gridDim.x));
    return {item, item.chunk * kWarps + within / kPerBlock * shape_.blocks,
            within % kPerBlock * kWideStageK};
  }
  // Blocks of k of the load.
  __device__ __forceinline__ int BlocksOf(const Place& at) const {
    return min(shape_.blocks, Context().wide[matrix_].k_blocks - at.block);
  }
  // Groups of kPassRows rows of the item that exist; there is no memory for others.
  __device__ __forceinline__ int GroupsOf(const Place& at) const {
    const int groups = (rows_ + kPassRows - 1) / kPassRows, each = shape_.rows / kPassRows;
    return min(each, groups - at.item.row_tile * each);
  }
  // A group of kPassRows rows by kWideStageK elements is contiguous (input_layout.cuh).
  __device__ __forceinline__ void CopyInputs(const Place& at, uint32_t stage, uint32_t full,
                                             int blocks, int groups) const {
    constexpr int kBytes = kPassRows * kWideStageK * 2;
    int ld;
    const bf16* input = Input(Context().p, Context().wide[matrix_].input, ld);
    const int each = shape_.rows / kPassRows;
    const uint32_t to =
        WideStage(stage) + static_cast<uint32_t>(shape_.blocks * shape_.outputs * kWideStageK * 2);
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
#pragma unroll 1
      for (int i = 0; i < groups; ++i) {
        CopyLasting(to + static_cast<uint32_t>((b * each + i) * kBytes),
                    input +
                        static_cast<size_t>(at.item.row_tile * each + i) * kPassRows *
                            static_cast<size_t>(ld) +
                        ((at.block + b) * kBlockK + at.k) * kPassRows,
                    kBytes, full);
      }
    }
  }

  int matrix_;
  uint32_t base_;
  int rows_;
  int total_ = 0;
  WideShape shape_;
  WideWork work_;
};

// The matrix whose product comes after the one of `run` in this launch's phase, or -1.
__device__ __forceinline__ int MatrixAfter(const Run& run, int matrix) {
  const CtaContext& context = Context();
  const int phase = context.phase.index;
  if (matrix + 1 < context.p.program.matrices_end[phase]) return matrix + 1;
  if (run.recurrence + 1 >= context.phase.times) return -1;
  return phase == 0 ? 0 : context.p.program.matrices_end[phase - 1];
}

template <int kBarrier>
__device__ __forceinline__ void PairSync(int pair) {
  asm volatile("bar.sync %0, 64;" ::"r"(kBarrier + pair) : "memory");
}

// kDown x kAcross x kAtOnce warps: of 32 outputs each, of kTiles tiles of eight rows each, of one
// block of k each.
template <int kDown, int kAcross, int kAtOnce, int kTiles>
class WideProduct {
 public:
  static constexpr int kOutputs = kDown * 32, kRows = kAcross * kTiles * 8;
  static_assert(kDown * kAcross * kAtOnce == kWarps && kAtOnce <= 2 && kTiles % 4 == 0);
  static_assert(kAtOnce * (kOutputs + kRows) * kWideStageK * 2 <= kWideStageBytes);

  static __device__ __forceinline__ void RunOp() {
    const int items = BeginOp();
    WideProduct product(State().base);
    int n = 0;
#pragma unroll 1
    for (int i = 0; i < items; ++i) {
      const int blocks = BeginItem(i);
#pragma unroll 1
      for (int block = 0; block < blocks; block += kAtOnce) {
        float c[2][kTiles][2][4] = {};
        const bool there = block + product.at_ < BlocksLeft();
#pragma unroll 1
        for (int s = 0; s < kPerBlock; ++s) {
          product.Release(product.Multiply(there, c));
          if (n > 0) Refill(n - 1);
          ++n;
        }
        product.Fold(c, block == 0);
      }
      if (BlocksLeft() < kWarps) product.AddZero();
      product.Store();
    }
    if (n > 0) Refill(n - 1);
    EndOp();
  }

 private:
  static constexpr int kPerBlock = kBlockK / kWideStageK;

  explicit __device__ __forceinline__ WideProduct(uint32_t base)
      : stage_(base % kWideStages), parity_(base / kWideStages & 1) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    down_ = warp % kDown;
    across_ = warp / kDown % kAcross;
    at_ = warp / (kDown * kAcross);
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    weights_ = static_cast<uint32_t>((at_ * kOutputs + down_ * 32) * kWideStageK * 2) + row * 128 +
               (half ^ row % 8) * 16;
    inputs_ = static_cast<uint32_t>((kAtOnce * kOutputs + at_ * kRows + across_ * kTiles * 8) *
                                    kWideStageK * 2) +
              lane * 16;
  }

  static __device__ __forceinline__ WideState& State() {
    return Context().wide_states[threadIdx.x / 32];
  }
  // Writes down what the warp has to do, and requests the first loads. Returns the CTA's items.
  static __device__ __forceinline__ int BeginOp() {
    const Run run = CurrentRun();
    const int matrix = OpOf(run).matrix, rows = Context().phase.rows;
    WideState& state = State();
    const WideLoader now(matrix, state.base, rows);
    if (threadIdx.x % 32 == 0) {
      state.total = now.total();
      state.after = MatrixAfter(run, matrix);
      state.tiles = Context().wide[matrix].tiles;
      FenceBeforeCopies();
      if (threadIdx.x / 32 < kWideStages)
        RequestFirst(now, state, static_cast<int>(threadIdx.x / 32), rows);
    }
    __syncwarp();
    return now.work().ItemsOf(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  static __device__ __forceinline__ void EndOp() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      WideState& state = State();
      state.base += static_cast<uint32_t>(state.total);
      state.ahead = state.after >= 0 ? 1 : 0;
    }
    __syncwarp();
  }
  // Item i of the CTA. Returns its blocks of k, in whole rounds of kAtOnce, as if its chunk were
  // the first.
  static __device__ __forceinline__ int BeginItem(int i) {
    const WideMatrix& m = Context().wide[OpOf(CurrentRun()).matrix];
    const WideWork work = WideWork::Of(m, {kOutputs, kRows, kAtOnce}, Context().phase.rows);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      State().item =
          WideItem::Of(work, static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x));
    }
    __syncwarp();
    return work.stages / kPerBlock * kAtOnce;
  }
  // From the item's first block on, in the matrix.
  static __device__ __forceinline__ int BlocksLeft() {
    return Context().wide[OpOf(CurrentRun()).matrix].k_blocks - State().item.chunk * kWarps;
  }

  // The first loads of the product, as far as they are not under way; and if they are fewer than
  // the stages, the first of the next product. One of the stages for each warp: a thread takes a
  // while to request one.
  static __device__ __forceinline__ void RequestFirst(const WideLoader& now, const WideState& state,
                                                      int place, int rows) {
    const WideLoad load = WideLoadAt(place, now.total());
    if (!load.same) {
      const WideLoader next(state.after, state.base + static_cast<uint32_t>(now.total()), rows);
      if (load.n < next.total()) next.Request(load.n, false);
    } else if (state.ahead != 0) {
      now.RequestInputs(load.n);
    } else {
      now.Request(load.n, true);
    }
  }

  // Load n has been used: its stage takes load n + kWideStages, or the weights of the next product.
  // The warps take turns.
  static __device__ __forceinline__ void Refill(int n) {
    if (static_cast<int>(threadIdx.x) == n % kWarps * 32) {
      const WideState& state = State();
      const WideLoad load = WideLoadAt(n + kWideStages, state.total);
      const WideLoader loader(load.same ? OpOf(CurrentRun()).matrix : state.after,
                              state.base + static_cast<uint32_t>(load.same ? 0 : state.total),
                              Context().phase.rows);
      if (load.n < loader.total()) loader.Request(load.n, load.same);
    }
    __syncwarp();
  }

  // Adds one stage's products to the accumulators. Returns a value that depends on the last loads.
  __device__ __forceinline__ uint32_t Multiply(bool there, float (&c)[2][kTiles][2][4]) {
    WaitBarrier(SharedAddress(&Context().full[stage_]), parity_);
    const uint32_t weights = WideStage(stage_) + weights_, inputs = WideStage(stage_) + inputs_;
    uint32_t last = 0;
    if (there) {
#pragma unroll
      for (int h = 0; h < kWideStageK / 32; ++h) {
        uint32_t a[2][2][4];  // [16 elements of k][16 outputs]
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int m = 0; m < 2; ++m)
            LoadMatrix((weights ^ static_cast<uint32_t>((2 * h + step) * 32)) +
                           static_cast<uint32_t>(m * kTileRows * 128),
                       a[step][m]);
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          // Groups of kPassRows rows, within them 32 elements of k, then rows.
          const uint4 b =
              LoadShared16(inputs + static_cast<uint32_t>(n / 4 * kPassRows * kWideStageK * 2 +
                                                          h * kPassRows * 64 + n % 4 * 8 * 64));
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            Mma(c[m][n][0], a[0][m][0], a[0][m][1], a[0][m][2], a[0][m][3], b.x, b.y);
            Mma(c[m][n][1], a[1][m][0], a[1][m][1], a[1][m][2], a[1][m][3], b.z, b.w);
          }
          if (h == kWideStageK / 32 - 1 && n == kTiles - 1) last = b.x | a[1][1][0];
        }
      }
    }
    return last;
  }

  // The warp has read the stage: `last` depends on its last loads. Goes on to the next.
  __device__ __forceinline__ void Release(uint32_t last) {
    const uint32_t all = __ballot_sync(0xFFFFFFFFu, last == 0x7FC1A5D3u);  // waits for all lanes'
    if (threadIdx.x % 32 == 0) Arrive(After(all, SharedAddress(&Context().empty[stage_])));
    if (++stage_ == kWideStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  // Room of one pair of warps, or of one warp.
  __device__ __forceinline__ float* Room() const {
    constexpr int kFloats = kAtOnce == 2 ? 1024 : 512;
    static_assert(kWarps / kAtOnce * kFloats * sizeof(float) <= kSumBytes);
    return Sums() + (across_ * kDown + down_) * kFloats;
  }

  // Adds the block's sums to those of the blocks before.
  __device__ __forceinline__ void Fold(const float (&c)[2][kTiles][2][4], bool first) {
    if constexpr (kAtOnce == 1) {
      Add(first, [&](int m, int n, int e) { return c[m][n][0][e] + c[m][n][1][e]; });
    } else {
      const int pair = across_ * kDown + down_;
      auto* room = reinterpret_cast<float4*>(Room()) + threadIdx.x % 32;
      PairSync<2>(pair);  // the other warp has done with the room
      if (at_ == 1) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
            room[(m * kTiles + n) * 32] =
                make_float4(c[m][n][0][0] + c[m][n][1][0], c[m][n][0][1] + c[m][n][1][1],
                            c[m][n][0][2] + c[m][n][1][2], c[m][n][0][3] + c[m][n][1][3]);
        }
      } else {
        Add(first, [&](int m, int n, int e) { return c[m][n][0][e] + c[m][n][1][e]; });
      }
      PairSync<2 + kWarps / 2>(pair);
      if (at_ == 0) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            const float4 v = room[(m * kTiles + n) * 32];
            sum_[m][n][0] += v.x;
            sum_[m][n][1] += v.y;
            sum_[m][n][2] += v.z;
            sum_[m][n][3] += v.w;
          }
        }
      }
    }
  }
  template <typename F>
  __device__ __forceinline__ void Add(bool first, F value) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float v = value(m, n, e);
          sum_[m][n][e] = first ? v : sum_[m][n][e] + v;
        }
      }
    }
  }
  // What the missing blocks of a short chunk add elsewhere: it turns -0 into 0.
  __device__ __forceinline__ void AddZero() {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum_[m][n][e] = __fadd_rn(sum_[m][n][e], 0.0f);
      }
    }
  }

  // The epilogue, 16 outputs by 32 rows at a time, which go through shared memory: so its code
  // stands here once, and stores of neighbouring lanes are contiguous. The sums move down in their
  // registers from turn to turn.
  __device__ __forceinline__ void Store() {
    if (at_ != 0) return;
    const Run run = CurrentRun();
    const WideItem item = State().item;
    const int tiles = State().tiles, rows = Context().phase.rows;
    MatrixShare share{};
    share.kind = Context().wide[OpOf(run).matrix].kind;
    share.chunk_begin = static_cast<int16_t>(item.chunk);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int column = threadIdx.x % 8, first = threadIdx.x % 32 / 8;
    float* const room = Room();
    constexpr int kTurns = kTiles / 2;  // of four tiles of rows
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          room[RoomAt(8 * n + 2 * t + e % 2, g + e / 2 * 8)] = sum_[n / kTiles][n % kTiles][e];
      }
#pragma unroll
      for (int n = 0; n + 4 < 2 * kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sum_[n / kTiles][n % kTiles][e] = sum_[(n + 4) / kTiles][(n + 4) % kTiles][e];
      }
      __syncwarp();
      const int tile = item.output_tile * (kOutputs / kTileRows) + down_ * 2 + turn / (kTurns / 2);
      const int row = item.row_tile * kRows + (across_ * kTiles + turn % (kTurns / 2) * 4) * 8;
      constexpr int kEach = 4;  // rows of a lane whose loads are in flight together
#pragma unroll 1
      for (int from = 0; from < kPassRows; from += 4 * kEach) {
        if (row + from >= rows || tile >= tiles) break;
        StoreRows<kEach>(run, share, tile, row + from, rows, room, from, column, first,
                         std::make_integer_sequence<int, kEach>{});
      }
    }
  }
  template <int kEach, int... kRow>
  static __device__ __forceinline__ void StoreRows(const Run& run, const MatrixShare& share,
                                                   int tile, int row, int rows, const float* room,
                                                   int from, int column, int first,
                                                   std::integer_sequence<int, kRow...>) {
    Epilogue epilogues[kEach] = {
        Epilogue(run, share, row + first + 4 * kRow, row + first + 4 * kRow < rows)...};
#pragma unroll
    for (int j = 0; j < kEach; ++j) epilogues[j].Prepare(tile, column);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int at = from + first + 4 * j;
      epilogues[j].Store(tile, column, room[RoomAt(at, column)], room[RoomAt(at, column + 8)],
                         true);
    }
  }
  // 32 rows of 16 sums; the halves of every other pair of rows are swapped, against bank conflicts.
  static __device__ __forceinline__ int RoomAt(int row, int column) {
    return row * kTileRows + (column ^ (row >> 1 & 1) * 8);
  }

  int down_, across_, at_;
  uint32_t stage_, parity_;
  uint32_t weights_, inputs_;  // the lane's place in a stage
  // Initialised, because registers that may be read before they are written count as in use
  // everywhere, and all operations would spill.
  float sum_[2][kTiles][4] = {};
};

template <int kDown, int kAcross, int kAtOnce, int kTiles>
__device__ __noinline__ void RunWide() {
  WideProduct<kDown, kAcross, kAtOnce, kTiles>::RunOp();
}

__device__ __forceinline__ void WideMatrixOp() {
  const int matrix = OpOf(CurrentRun()).matrix;
  switch (WideShapeFor(Context().wide[matrix], Context().phase.rows)) {
    case 0:
      RunWide<2, 2, 2, 4>();
      break;
    case 1:
      RunWide<4, 2, 1, 4>();
      break;
    default:
      RunWide<4, 2, 1, 8>();
      break;
  }
}

}  // namespace loopspec::cuda

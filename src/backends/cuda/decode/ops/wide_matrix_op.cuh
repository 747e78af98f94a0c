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

// Requesting a stage is on the way of every warp's products, so what it needs is worked out when a
// product begins, and lies in shared memory after the room of the epilogue.

// An item of the CTA, as requests need it.
struct alignas(16) WidePlace {
  int output;  // the first
  int block;   // of k, the first
  int group;   // of kPassRows rows, the first
  int groups;  // that exist; there is no memory for others
};
// One of the first loads of the next product: its weights, two boxes at most.
struct alignas(8) NextWeights {
  int column[2], row[2];
  int bytes;  // of the load with its inputs
  int boxes;
};
inline constexpr int kRoomFloats = 4096;
__device__ __forceinline__ WidePlace* WidePlaces() {
  return reinterpret_cast<WidePlace*>(Sums() + kRoomFloats);
}
__device__ __forceinline__ NextWeights* NextLoads() {
  return reinterpret_cast<NextWeights*>(WidePlaces() + kWideItems);
}
static_assert(kRoomFloats * sizeof(float) + kWideItems * sizeof(WidePlace) +
                  kWideStages * sizeof(NextWeights) <=
              kSumBytes);

__device__ __forceinline__ WidePlace PlaceOfItem(const WideWork& work, const WideShape& shape,
                                                 int i, int rows) {
  const WideItem item =
      WideItem::Of(work, static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x));
  const int each = shape.rows / kPassRows, group = item.row_tile * each;
  return {item.output_tile * shape.outputs, item.chunk * kWarps, group,
          min(each, (rows + kPassRows - 1) / kPassRows - group)};
}

// Load n of the product with `matrix`; boxes -1: there is none.
__device__ __forceinline__ NextWeights WeightsOf(int matrix, int n, int rows) {
  constexpr int kPerBlock = kBlockK / kWideStageK;
  NextWeights load{};
  load.boxes = -1;
  if (matrix < 0) return load;
  const WideMatrix m = Context().wide[matrix];
  const WideShape shape = WideShapeAt(WideShapeFor(m, rows));
  const WideWork work = WideWork::Of(m, shape, rows);
  const int item = n / work.stages, within = n - item * work.stages;
  if (item >= work.ItemsOf(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x))) return load;
  const WidePlace at = PlaceOfItem(work, shape, item, rows);
  const int block = at.block + within / kPerBlock * shape.blocks;
  const int blocks = max(0, min(shape.blocks, m.k_blocks - block));
  const int per_block = shape.outputs / kWideBoxRows;
  load.boxes = blocks * per_block;
  load.bytes = blocks * (shape.outputs + at.groups * kPassRows) * kWideStageK * 2;
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    const int b = per_block == 1 ? box : 0;
    load.column[box] = (block + b) * kBlockK + within % kPerBlock * kWideStageK;
    load.row[box] = at.output + (per_block == 1 ? 0 : box * kWideBoxRows);
  }
  return load;
}

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
      const int blocks = State().stages / kPerBlock * kAtOnce;
#pragma unroll 1
      for (int block = 0; block < blocks; block += kAtOnce) {
        float c[2][kTiles][2][4] = {};
        const bool there = block + product.at_ < BlocksLeft(i);
#pragma unroll 1
        for (int s = 0; s < kPerBlock; ++s) {
          product.Release(product.Multiply(there, c));
          if (n >= kLag) Refill(n - kLag);
          ++n;
        }
        product.Fold(c, block == 0);
      }
      if (BlocksLeft(i) < kWarps) product.AddZero();
      product.Store(WidePlaces()[i]);
    }
#pragma unroll 1
    for (int used = max(0, n - kLag); used < n; ++used) Refill(used);
    EndOp();
  }

 private:
  static constexpr int kPerBlock = kBlockK / kWideStageK;
  // Loads after which a stage is requested again: the warp that does so is late for its next
  // products, and the others should not have to wait for it.
  static constexpr int kLag = 2;

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
  // Writes down what the CTA has to do, and requests the first loads. Returns the CTA's items.
  static __device__ __forceinline__ int BeginOp() {
    const Run run = CurrentRun();
    const int matrix = OpOf(run).matrix, rows = Context().phase.rows;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const WideMatrix m = Context().wide[matrix];
    const WideShape shape{kOutputs, kRows, kAtOnce};
    const WideWork work = WideWork::Of(m, shape, rows);
    const int items = work.ItemsOf(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    const int total = items * work.stages;
    WideState& state = State();
    if (lane == 0) {
      state.total = total;
      state.after = MatrixAfter(run, matrix);
      state.tiles = m.tiles;
      state.k_blocks = m.k_blocks;
      state.stages = work.stages;
      state.input = Input(Context().p, m.input, state.ld);
      state.map = Context().p.program.wide_maps + matrix;
    }
    if (warp == 0) {
      for (int i = lane; i < items; i += 32) WidePlaces()[i] = PlaceOfItem(work, shape, i, rows);
    }
    FenceBeforeCopies();
    CtaSync();
    // One of the first loads for each warp, as far as it is not under way.
    if (warp < min(kWideStages, total)) {
      const bool ahead = state.ahead != 0;
      RequestLoad(warp, !ahead);
    }
    if (warp < kWideStages && lane == 0) NextLoads()[warp] = WeightsOf(state.after, warp, rows);
    __syncwarp();
    if (total < kWideStages) {
      CtaSync();
      if (warp >= total && warp < kWideStages) RequestNext(warp, total);
    }
    return items;
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
  // From the first block of item i on, in the matrix.
  static __device__ __forceinline__ int BlocksLeft(int i) {
    return State().k_blocks - WidePlaces()[i].block;
  }

  // Waits until the stage of load `place` (of the product, or past its end) is free; returns it.
  static __device__ __forceinline__ uint32_t FreeStage(int place) {
    const uint32_t load = State().base + static_cast<uint32_t>(place), stage = load % kWideStages;
    if (load >= kWideStages)
      WaitBarrier(SharedAddress(&Context().empty[stage]), (load / kWideStages + 1) & 1);
    return stage;
  }

  // Requests load n of the product: weights and inputs, or the inputs of one whose weights were
  // requested before. By a whole warp; every copy by a lane of its own.
  static __device__ __forceinline__ void RequestLoad(int n, bool weights) {
    constexpr int kBoxes = kOutputs / kWideBoxRows, kEach = kRows / kPassRows;
    constexpr uint32_t kBytes = kPassRows * kWideStageK * 2;
    const WideState& state = State();
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int number = Quotient(n, state.stages), within = n - number * state.stages;
    const WidePlace at = WidePlaces()[number];
    const int first = at.block + within / kPerBlock * kAtOnce,
              blocks = min(kAtOnce, state.k_blocks - first);
    const uint32_t stage =
        weights ? FreeStage(n) : (state.base + static_cast<uint32_t>(n)) % kWideStages;
    const uint32_t full = SharedAddress(&Context().full[stage]), to = WideStage(stage);
    if (weights && lane == 0) {
      if (blocks > 0) {
        ExpectBytes(full, static_cast<uint32_t>(blocks * (kOutputs + at.groups * kPassRows) *
                                                kWideStageK * 2));
      } else {
        Arrive(full);
      }
    }
    __syncwarp();
    const int column = first * kBlockK + within % kPerBlock * kWideStageK;
    if (weights && lane < kAtOnce * kBoxes && lane / kBoxes < blocks) {
      CopyBox(to + static_cast<uint32_t>(lane * kWideBoxRows * kWideStageK * 2), state.map,
              column + lane / kBoxes * kBlockK, at.output + lane % kBoxes * kWideBoxRows, full);
    }
    // A group of kPassRows rows by kWideStageK elements is contiguous (input_layout.cuh).
    const int i = lane - 8, group = i % kEach;
    if (i >= 0 && i < kAtOnce * kEach && i / kEach < blocks && group < at.groups) {
      CopyLasting(
          to + kAtOnce * kOutputs * kWideStageK * 2 + static_cast<uint32_t>(i) * kBytes,
          state.input +
              static_cast<size_t>(at.group + group) * kPassRows * static_cast<size_t>(state.ld) +
              (column + i / kEach * kBlockK) * kPassRows,
          kBytes, full);
    }
    __syncwarp();
  }
  // Requests the weights of a load of the next product.
  static __device__ __forceinline__ void RequestNext(int place, int total) {
    // First, because what other warps have written there comes before their release of the stage.
    const uint32_t stage = FreeStage(place);
    const NextWeights& load = NextLoads()[place - total];
    if (load.boxes < 0) return;
    const uint32_t full = SharedAddress(&Context().full[stage]);
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane == 0) {
      if (load.boxes > 0) {
        ExpectBytes(full, static_cast<uint32_t>(load.bytes));
      } else {
        Arrive(full);
      }
    }
    __syncwarp();
    if (lane < load.boxes) {
      CopyBox(WideStage(stage) + static_cast<uint32_t>(lane * kWideBoxRows * kWideStageK * 2),
              Context().p.program.wide_maps + State().after, load.column[lane], load.row[lane],
              full);
    }
    __syncwarp();
  }

  // Load n has been used: its stage takes what comes kWideStages later. The warps take turns.
  static __device__ __forceinline__ void Refill(int n) {
    if (n % kWarps != static_cast<int>(threadIdx.x / 32)) return;
    const int place = n + kWideStages, total = State().total;
    if (WideLoadAt(place, total).same) {
      RequestLoad(place, true);
    } else {
      RequestNext(place, total);
    }
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
    static_assert(kWarps / kAtOnce * kFloats <= kRoomFloats);
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
  __device__ __forceinline__ void Store(const WidePlace& at) {
    if (at_ != 0) return;
    const Run run = CurrentRun();
    const int tiles = State().tiles, rows = Context().phase.rows;
    MatrixShare share{};
    share.kind = Context().wide[OpOf(run).matrix].kind;
    share.chunk_begin = static_cast<int16_t>(at.block / kWarps);
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
      const int tile = at.output / kTileRows + down_ * 2 + turn / (kTurns / 2);
      const int row = at.group * kPassRows + (across_ * kTiles + turn % (kTurns / 2) * 4) * 8;
      constexpr int kEach = 8;  // rows of a lane whose loads are in flight together
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

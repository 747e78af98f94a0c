// The products of many rows by Hopper's matrix instruction of a warpgroup (wgmma). Inputs are in
// shared memory, and so are weights; those of few bits become bf16 on the way into registers. One
// instruction does what 4 x N / 8 of mma.sync do, with the same bits
// (HopperInstruction.HasTheBitsOfTheWarpsInstruction), so that an output's sum, built in the same
// order as in wide_product.cuh, is that of a single row. Included by a file for each kind of
// weights.
#pragma once

#include <type_traits>

#include "backends/cuda/decode/wide/wide_epilogue.cuh"
#include "backends/cuda/decode/wide/wide_pieces.cuh"
#include "backends/cuda/decode/wide/wide_product_kernels.h"
#include "backends/cuda/decode/wide/wide_stages.cuh"
#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/device/packed_weights.cuh"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

// kDown x kAcross warpgroups, each of 64 outputs by kN rows. While one of them adds up a block of
// k, the others (or those of another CTA) keep the matrix unit busy. kChunks: sums are of several
// chunks of k, and there are registers for those of the chunks before. kForm: of the weights; kInt4
// stands for kInt4Bias too.
template <WeightForm kOfWeights, bool kChunks, int kDown, int kAcross, int kN, int kStageCount>
struct HopperTile {
  static constexpr WeightForm kForm = kOfWeights;
  static constexpr bool kPacked = kForm != WeightForm::kBF16;
  static constexpr bool kSeveralChunks = kChunks;
  static constexpr int kOutputsOfGroup = 64;
  static constexpr int kOutputs = kDown * kOutputsOfGroup, kRows = kAcross * kN;
  static constexpr int kGroups = kDown * kAcross;
  // Sums of many rows need more registers than a thread gets when all get the same. Registers move
  // between whole warpgroups, so the producer then is one.
  static constexpr bool kMovesRegisters = kN > (kChunks ? 64 : 88);
  static constexpr int kThreadsHere = kGroups * kWarpgroup + (kMovesRegisters ? kWarpgroup : 32);
  using Stages = WideStages<kOutputs, kRows, kStageCount, kOutputsOfGroup, kForm>;
  // The first stage's weights of a warpgroup.
  static __device__ __forceinline__ uint32_t Weights(int down) {
    return Stages::Stage(0) + static_cast<uint32_t>(down * kOutputsOfGroup * Stages::kRowBytes);
  }
  // Where a warpgroup puts its results together (PieceEpilogue): where its weights were, or, if
  // these leave too little room, after the stages.
  static constexpr int kPieceRows = kPacked ? 64 * 128 : Stages::kStageBytes;  // of 64 rows
  // Of whole rounds: a thread loads pieces of rows that are none, too (PieceEpilogue).
  static constexpr int kRoomOfPieces = kPacked ? (kN + 31) / 32 * 32 * 128 : 0;
  static constexpr int kSharedBytes = Stages::kSharedBytes + kGroups * kRoomOfPieces;
  static __device__ __forceinline__ uint32_t Pieces(int group) {
    if constexpr (!kPacked) return Weights(group);
    return Stages::Stage(kStageCount) + static_cast<uint32_t>(group * kRoomOfPieces);
  }
};

// A warpgroup's weights of a stage, in shared memory: four steps of k of 64 outputs.
template <typename Tile>
class SharedWeights {
 public:
  __device__ __forceinline__ SharedWeights(int group_down, WeightForm)
      : first_(DescribeByRows(Tile::Weights(group_down))) {}
  __device__ __forceinline__ void Take(uint32_t stage, int) {
    now_ = first_ + stage * (Tile::Stages::kStageBytes >> 4);
  }
  template <int kCount>
  __device__ __forceinline__ void Multiply(float (&sums)[kCount], int step, int, uint64_t b,
                                           int add) const {
    MultiplyShared(sums, now_ + static_cast<uint64_t>(step) * kNextK, b, add);
  }

 private:
  uint64_t first_, now_;
};

// Weights of few bits, as bf16 in registers. While the products of one stage run, those of the next
// one are made: two sets of registers, which `s`, the stage's number, tells apart.
template <typename Tile>
class ExpandedWeights {
 public:
  __device__ __forceinline__ ExpandedWeights(int group_down, WeightForm form)
      : biased_(form == WeightForm::kInt4Bias) {
    const int tile = group_down * 4 + static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    const int unit = UnitBytes(biased_ ? WeightForm::kInt4Bias : Tile::kForm);
    first_ = Tile::Stages::Stage(0) + static_cast<uint32_t>(tile * unit);
  }
  __device__ __forceinline__ void Take(uint32_t stage, int s) {
    using Weights = PackedWeights<Tile::kForm>;
    Weights loads[kUnitSteps / Weights::kSteps];
#pragma unroll
    for (int i = 0; i < kUnitSteps / Weights::kSteps; ++i)
      loads[i].Load(first_ + stage * Tile::Stages::kStageBytes, i, biased_);
#pragma unroll
    for (int i = 0; i < kUnitSteps; ++i)
      loads[i / Weights::kSteps].Expand(i % Weights::kSteps, a_[s % 2][i]);
  }
  template <int kCount>
  __device__ __forceinline__ void Multiply(float (&sums)[kCount], int step, int s, uint64_t b,
                                           int add) const {
    MultiplyByRows(sums, a_[s % 2][step], b, add);
  }

 private:
  bool biased_;
  uint32_t first_;
  uint32_t a_[2][kUnitSteps][4];
};

// The scales of int8 weights: of a thread's two outputs, g and g + 8 of the warp's tile.
template <WeightForm kForm>
struct SumScales {
  __device__ __forceinline__ void Load(const WideProductParams&, int) {}
  __device__ __forceinline__ float Times(float sum, int) const { return sum; }
};
template <>
struct SumScales<WeightForm::kInt8> {
  float scales[2];

  __device__ __forceinline__ void Load(const WideProductParams& how, int tile) {
    const float* from = how.scales + min(tile, how.matrix.tiles - 1) * kTileRows +
                        static_cast<int>(threadIdx.x) % 32 / 4;
    scales[0] = __ldg(from);
    scales[1] = __ldg(from + 8);
  }
  // sums[i] of a thread.
  __device__ __forceinline__ float Times(float sum, int i) const {
    return __fmul_rn(sum, scales[i % 4 / 2]);
  }
};

// The sums of a warpgroup. Within a block of 256 the even steps of 16 go into one accumulator and
// the odd ones into another, which are then added; the blocks of a chunk in order, and then the
// chunks.
template <typename Tile, int kStages, int kN>
__device__ __forceinline__ void Multiply(int group_down, int group_across, int loads,
                                         WeightForm form, const SumScales<Tile::kForm>& scales,
                                         float (&sums)[kN / 2]) {
  using Stages = typename Tile::Stages;
  const uint32_t inputs = Stages::Stage(0) + Stages::kInputs +
                          static_cast<uint32_t>(group_across) * (kN * Stages::kRowBytes);
  std::conditional_t<Tile::kPacked, ExpandedWeights<Tile>, SharedWeights<Tile>> weights(group_down,
                                                                                        form);
  const uint64_t first_b = DescribeByRows(inputs);
  const uint32_t full = Stages::Full(0);
  uint32_t stage = 0, parity = 0, used = 0;
  // The warp's products have read a stage.
  const auto give_back = [&] {
    if (threadIdx.x % 32 == 0) Arrive(used);
  };
  // What is added to -0 stays as it is, so the first block needs no case of its own, nor does the
  // first chunk.
  const auto clear = [](float(&values)[kN / 2]) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) values[i] = -0.0f;
  };
  const auto add = [](float(&values)[kN / 2], const auto& value) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) values[i] = __fadd_rn(values[i], value(i));
  };
  const auto multiply_chunk = [&](int loads, float(&sums)[kN / 2]) {
    clear(sums);
    float even[kN / 2], odd[kN / 2];
#pragma unroll 1
    for (int n = 0; n < loads; n += Stages::kPerBlock) {
#pragma unroll
      for (int s = 0; s < Stages::kPerBlock; ++s) {
        WaitBarrier(full + stage * 8, parity);
        __syncwarp();  // lanes may have left the loop at different times
        weights.Take(stage, s);
        const uint64_t b = first_b + stage * (Stages::kStageBytes >> 4);
        PinSums(even);
        PinSums(odd);
        BeginProducts();
        weights.Multiply(even, 0, s, b, s > 0);
        weights.Multiply(odd, 1, s, b + kNextK, s > 0);
        weights.Multiply(even, 2, s, b + 2 * kNextK, 1);
        weights.Multiply(odd, 3, s, b + 3 * kNextK, 1);
        CommitProducts();
        PinSums(even);
        PinSums(odd);
        if (s > 0) {
          WaitForProducts<1>();  // those of the stage before
          give_back();
        }
        used = full + (kStages + stage) * 8;
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      WaitForProducts<0>();
      PinSums(even);
      PinSums(odd);
      give_back();
      add(sums, [&](int i) { return __fadd_rn(even[i], odd[i]); });
    }
    // What the missing blocks of a short chunk add elsewhere: it turns -0 into 0.
    if (loads < Stages::kPerChunk) add(sums, [](int) { return 0.0f; });
  };
  if constexpr (!Tile::kSeveralChunks) {
    multiply_chunk(loads, sums);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] = scales.Times(sums[i], i);
  } else {
    clear(sums);
#pragma unroll 1
    for (int left = loads; left > 0; left -= Stages::kPerChunk) {
      float chunk[kN / 2];
      multiply_chunk(min(left, Stages::kPerChunk), chunk);
      add(sums, [&](int i) { return scales.Times(chunk[i], i); });
    }
  }
}

template <MatrixKind kKind, WeightForm kForm, bool kChunks, int kAtOnce, int kDown, int kAcross,
          int kN, int kStages>
__global__ void __launch_bounds__(
    HopperTile<kForm, kChunks, kDown, kAcross, kN, kStages>::kThreadsHere, kAtOnce)
    HopperProductKernel(const __grid_constant__ DecodeParams params,
                        const __grid_constant__ WideRun run,
                        const __grid_constant__ WideProductParams how) {
  using Tile = HopperTile<kForm, kChunks, kDown, kAcross, kN, kStages>;
  using Stages = typename Tile::Stages;
  if (threadIdx.x == 0) Stages::Init(Tile::kGroups * 4);
  LetNextOperationStart();
  __syncthreads();
  const WideItemPlace item(run, how, Tile::kOutputs, Tile::kRows);
  // The same in all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == Tile::kGroups) {
    if constexpr (Tile::kMovesRegisters) FewerRegisters<40>();
    if (threadIdx.x == Tile::kGroups * kWarpgroup) Stages::Produce(item, how);
    return;
  }
  if constexpr (Tile::kMovesRegisters) MoreRegisters<232>();
  const int down = group % kDown, across = group / kDown;
  const int tile = item.output / kTileRows + down * 4, row = item.row + across * kN;
  float sums[kN / 2];
  SumScales<kForm> scales;
  scales.Load(how, tile + static_cast<int>(threadIdx.x) % kWarpgroup / 32);
  // Whether there are registers to load what the epilogue needs before the products.
  constexpr bool kEarly = kN <= (kChunks ? 32 : 64);
  if constexpr (kKind == MatrixKind::kQkv || kKind == MatrixKind::kGateUp) {
    static_assert(kAcross == 1);  // no other warpgroup reads the same weights
    using Pieces =
        std::conditional_t<kKind == MatrixKind::kQkv, QkvPieces<kN, kEarly>, GatedPieces<kN>>;
    PieceEpilogue<Pieces, kN, Tile::kPieceRows> epilogue(
        params, run, {tile, how.matrix.tiles, row, run.rows - row, how.plane_offset});
    // The inputs come no earlier than this.
    WaitForOperationsBefore();
    epilogue.LoadEarly();
    Multiply<Tile, kStages, kN>(down, across, item.loads, how.matrix.form, scales, sums);
    epilogue.Store(Tile::Pieces(down), group, sums);
  } else {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              my_tile = tile + static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    TileEpilogue<kKind, kN / 2, kEarly> epilogue(
        params, run, {my_tile, lane / 4, item.block / kWarps, how.plane_offset},
        row + lane % 4 * 2);
    WaitForOperationsBefore();
    if (my_tile < how.matrix.tiles) epilogue.LoadEarly();
    Multiply<Tile, kStages, kN>(down, across, item.loads, how.matrix.form, scales, sums);
    if (my_tile < how.matrix.tiles) epilogue.Store(sums);
  }
}

// Stages: as many as there is room for.
template <MatrixKind kKind, WeightForm kForm, bool kChunks, int kShape, int kDown, int kAcross,
          int kN, int kStages>
WideProductKernel Kernel() {
  constexpr WideShape kIs = kWideShapes[kShape];
  using Tile = HopperTile<kForm, kChunks, kDown, kAcross, kN, kStages>;
  static_assert(Tile::kOutputs == kIs.outputs && Tile::kRows == kIs.rows && kIs.hopper &&
                Tile::kOutputsOfGroup == kIs.box);
  static_assert(kIs.at_once * (Tile::kSharedBytes + 1024) <= 228 * 1024);
  return {HopperProductKernel<kKind, kForm, kChunks, kIs.at_once, kDown, kAcross, kN, kStages>,
          Tile::kThreadsHere, Tile::kSharedBytes};
}

// `of_shape`: makes the kernel of a kind, with or without several chunks.
template <typename OfShape>
WideProductKernel OfMatrix(const WideMatrix& matrix, const OfShape& of_shape) {
  const bool chunks = BlocksOfItem(matrix) > kWarps;
  const auto of_kind = [&]<MatrixKind kKind>() {
    return chunks ? of_shape.template operator()<kKind, true>()
                  : of_shape.template operator()<kKind, false>();
  };
  switch (matrix.kind) {
    case MatrixKind::kQkv:
      return of_kind.template operator()<MatrixKind::kQkv>();
    case MatrixKind::kQkvRaw:
      return of_kind.template operator()<MatrixKind::kQkvRaw>();
    case MatrixKind::kGateUp:
      return of_kind.template operator()<MatrixKind::kGateUp>();
    case MatrixKind::kPartial:
      LOOPSPEC_CHECK(!chunks);
      return of_shape.template operator()<MatrixKind::kPartial, false>();
    default:
      return of_kind.template operator()<MatrixKind::kHead>();
  }
}

}  // namespace
}  // namespace loopspec::cuda

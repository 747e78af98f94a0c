// The products of many rows by Hopper's matrix instruction of a warpgroup (wgmma), whose operands
// are both in shared memory. One instruction does what 4 x N / 8 of mma.sync do, with the same
// bits (HopperInstruction.HasTheBitsOfTheWarpsInstruction), so that an output's sum, built in the
// same order as in wide_product.cuh, is that of a single row.
#include <type_traits>

#include "backends/cuda/decode/wide/wide_epilogue.cuh"
#include "backends/cuda/decode/wide/wide_pieces.cuh"
#include "backends/cuda/decode/wide/wide_product_kernels.h"
#include "backends/cuda/decode/wide/wide_stages.cuh"
#include "backends/cuda/device/hopper.cuh"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

// kDown x kAcross warpgroups, each of 64 outputs by kN rows. While one of them adds up a block of
// k, the others (or those of another CTA) keep the matrix unit busy. kChunks: sums are of several
// chunks of k, and there are registers for those of the chunks before.
template <bool kChunks, int kDown, int kAcross, int kN, int kStageCount>
struct HopperTile {
  static constexpr bool kSeveralChunks = kChunks;
  static constexpr int kOutputsOfGroup = 64;
  static constexpr int kOutputs = kDown * kOutputsOfGroup, kRows = kAcross * kN;
  static constexpr int kGroups = kDown * kAcross;
  // Sums of many rows need more registers than a thread gets when all get the same. Registers move
  // between whole warpgroups, so the producer then is one.
  static constexpr bool kMovesRegisters = kN > (kChunks ? 64 : 88);
  static constexpr int kThreadsHere = kGroups * kWarpgroup + (kMovesRegisters ? kWarpgroup : 32);
  using Stages = WideStages<kOutputs, kRows, kStageCount, kOutputsOfGroup>;
  // The first stage's weights of a warpgroup.
  static __device__ __forceinline__ uint32_t Weights(int down) {
    return Stages::Stage(0) + static_cast<uint32_t>(down * kOutputsOfGroup * Stages::kRowBytes);
  }
};

// The sums of a warpgroup. Within a block of 256 the even steps of 16 go into one accumulator and
// the odd ones into another, which are then added; the blocks of a chunk in order, and then the
// chunks.
template <typename Tile, int kStages, int kN>
__device__ __forceinline__ void Multiply(int group_down, int group_across, int loads,
                                         float (&sums)[kN / 2]) {
  using Stages = typename Tile::Stages;
  const uint32_t inputs = Stages::Stage(0) + Stages::kInputs +
                          static_cast<uint32_t>(group_across) * (kN * Stages::kRowBytes);
  const uint64_t first_a = DescribeByRows(Tile::Weights(group_down)),
                 first_b = DescribeByRows(inputs);
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
        const uint64_t a = first_a + stage * (Stages::kStageBytes >> 4);
        const uint64_t b = first_b + stage * (Stages::kStageBytes >> 4);
        PinSums(even);
        PinSums(odd);
        BeginProducts();
        MultiplyShared(even, a, b, s > 0);
        MultiplyShared(odd, a + kNextK, b + kNextK, s > 0);
        MultiplyShared(even, a + 2 * kNextK, b + 2 * kNextK, 1);
        MultiplyShared(odd, a + 3 * kNextK, b + 3 * kNextK, 1);
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
  } else {
    clear(sums);
#pragma unroll 1
    for (int left = loads; left > 0; left -= Stages::kPerChunk) {
      float chunk[kN / 2];
      multiply_chunk(min(left, Stages::kPerChunk), chunk);
      add(sums, [&](int i) { return chunk[i]; });
    }
  }
}

template <MatrixKind kKind, bool kChunks, int kAtOnce, int kDown, int kAcross, int kN, int kStages>
__global__ void __launch_bounds__(HopperTile<kChunks, kDown, kAcross, kN, kStages>::kThreadsHere,
                                  kAtOnce)
    HopperProductKernel(const __grid_constant__ DecodeParams params,
                        const __grid_constant__ WideRun run,
                        const __grid_constant__ WideProductParams how) {
  using Tile = HopperTile<kChunks, kDown, kAcross, kN, kStages>;
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
  // Whether there are registers to load what the epilogue needs before the products.
  constexpr bool kEarly = kN <= (kChunks ? 32 : 64);
  if constexpr (kKind == MatrixKind::kQkv || kKind == MatrixKind::kGateUp) {
    static_assert(kAcross == 1);  // no other warpgroup reads the same weights
    using Pieces =
        std::conditional_t<kKind == MatrixKind::kQkv, QkvPieces<kN, kEarly>, GatedPieces<kN>>;
    PieceEpilogue<Pieces, kN, Stages::kStageBytes> epilogue(
        params, run, {tile, how.matrix.tiles, row, run.rows - row, how.plane_offset});
    // The inputs come no earlier than this.
    WaitForOperationsBefore();
    epilogue.LoadEarly();
    Multiply<Tile, kStages, kN>(down, across, item.loads, sums);
    epilogue.Store(Tile::Weights(down), group, sums);
  } else {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              my_tile = tile + static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    TileEpilogue<kKind, kN / 2, kEarly> epilogue(
        params, run, {my_tile, lane / 4, item.block / kWarps, how.plane_offset},
        row + lane % 4 * 2);
    WaitForOperationsBefore();
    if (my_tile < how.matrix.tiles) epilogue.LoadEarly();
    Multiply<Tile, kStages, kN>(down, across, item.loads, sums);
    if (my_tile < how.matrix.tiles) epilogue.Store(sums);
  }
}

// Stages: as many as there is room for.
template <MatrixKind kKind, bool kChunks, int kShape, int kDown, int kAcross, int kN, int kStages>
WideProductKernel Kernel() {
  constexpr WideShape kIs = kWideShapes[kShape];
  using Tile = HopperTile<kChunks, kDown, kAcross, kN, kStages>;
  static_assert(Tile::kOutputs == kIs.outputs && Tile::kRows == kIs.rows && kIs.hopper &&
                Tile::kOutputsOfGroup == kIs.box);
  static_assert(kIs.at_once * (Tile::Stages::kSharedBytes + 1024) <= 228 * 1024);
  return {HopperProductKernel<kKind, kChunks, kIs.at_once, kDown, kAcross, kN, kStages>,
          Tile::kThreadsHere, Tile::Stages::kSharedBytes};
}
template <MatrixKind kKind, bool kChunks>
WideProductKernel OfShape(int shape) {
  switch (shape) {
    case 5:
      return Kernel<kKind, kChunks, 5, 1, 1, 32, 9>();
    case 6:
      return Kernel<kKind, kChunks, 6, 1, 1, 64, 7>();
    case 7:
      return Kernel<kKind, kChunks, 7, 2, 1, 88, 8>();
    default:
      LOOPSPEC_CHECK(shape == 8 && !kChunks && !kWideShapes[8].chunks);
      return Kernel<kKind, false, 8, 2, 1, 128, 7>();
  }
}
template <MatrixKind kKind>
WideProductKernel OfKind(int shape, bool chunks) {
  return chunks ? OfShape<kKind, true>(shape) : OfShape<kKind, false>(shape);
}

}  // namespace

WideProductKernel HopperProduct(const WideMatrix& matrix, int shape) {
  const bool chunks = BlocksOfItem(matrix) > kWarps;
  switch (matrix.kind) {
    case MatrixKind::kQkv:
      return OfKind<MatrixKind::kQkv>(shape, chunks);
    case MatrixKind::kQkvRaw:
      return OfKind<MatrixKind::kQkvRaw>(shape, chunks);
    case MatrixKind::kGateUp:
      return OfKind<MatrixKind::kGateUp>(shape, chunks);
    case MatrixKind::kPartial:
      LOOPSPEC_CHECK(!chunks);
      return OfShape<MatrixKind::kPartial, false>(shape);
    default:
      return OfKind<MatrixKind::kHead>(shape, chunks);
  }
}

}  // namespace loopspec::cuda

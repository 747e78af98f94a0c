// The epilogues of products by wgmma whose results are bf16: q, k and v, and gate and up. What a
// warpgroup has, 64 outputs by kN rows, goes through shared memory, where eight neighbouring
// results of a row become a piece of 16 bytes; neighbouring threads then store neighbouring pieces.
// A store of single elements writes parts of sectors, and takes more than twice the instructions,
// which are fetched from memory every time the operation runs.
//
// Needs a head_dim that is a multiple of 16 and an ff that is one of 8 (Program::wide_pieces): no
// piece is then of two heads, or partly padding.
#pragma once

#include "backends/cuda/decode/ops/matrix_epilogue.cuh"
#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/wide_context.cuh"

namespace loopspec::cuda {

// What a warpgroup has: four tiles for some rows.
struct WidePlace {
  int tile, tiles;   // its first one; how many the matrix has
  int row, rows;     // its first one; how many there are from there
  int plane_offset;  // of the layer, relative to the row's first plane
};

// q, k and v. A tile has pairs (i, i + head_dim / 2) of eight neighbouring i of one head of q or k,
// or sixteen values: two pieces of each row in any case.
// kEarly: what is needed is loaded before the products.
template <int kN, bool kEarly>
class QkvPieces {
 public:
  static constexpr int kPieces = 8;  // of a row
  static constexpr bool kLoadsEarly = kEarly;

  // Of a thread that rotates outputs g and g + 8 of tile `warp`, for rows 2 t, 2 t + 1, 8 + 2 t
  // ..., and stores piece `piece` of rows `row`, `row` + 16 ...
  __device__ __forceinline__ QkvPieces(const DecodeParams& p, const WideRun& run,
                                       const WidePlace& place, int warp, int lane, int piece,
                                       int row)
      : infos_(run.infos + place.row + row),
        plane_offset_(place.plane_offset),
        row_(place.row + row),
        rows_(place.rows - row),
        rope_rows_(place.rows - lane % 4 * 2) {
    half_ = p.shapes.head_dim / 2;
    const int per_head = half_ / 8, qk_heads = p.shapes.heads + p.shapes.kv_heads;
    const int mine = Quotient(place.tile + warp, per_head);
    rotates_ = mine < qk_heads;
    rope_ = p.buffers.rope +
            (static_cast<size_t>(run.phase) * p.shapes.row_stride + place.row + lane % 4 * 2) *
                static_cast<size_t>(half_) +
            (place.tile + warp - mine * per_head) * 8 + lane / 4;

    // A head of values has as many tiles.
    const int tile = place.tile + piece % 4, upper = piece / 4;
    const int head = Quotient(tile, per_head), in_head = tile - head * per_head;
    const int k_head = head - p.shapes.heads, v_head = head - qk_heads;
    const int i = v_head < 0 ? in_head * 8 + upper * half_ : in_head * kTileRows + upper * 8;
    to_cell_ = k_head >= 0;
    to_ = (to_cell_ ? p.buffers.cell_kv : p.buffers.q) + i +
          (v_head >= 0 ? v_head * 2 + 1
           : to_cell_  ? k_head * 2
                       : head) *
              p.shapes.head_stride;
    stride_ = (to_cell_ ? p.shapes.kv_heads * 2 : p.shapes.heads) * p.shapes.head_stride;
    planes_ = p.shapes.planes;
  }

  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      place_of_[i] = row_ + i * kAtOnce;
      if (to_cell_ && i * kAtOnce < rows_) {
        const RowInfo& info = infos_[i * kAtOnce];
        place_of_[i] = info.cell * planes_ + info.plane + plane_offset_;
      }
    }
    if (!rotates_) return;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const int row = i / 2 * 8 + i % 2;
      if (row < rope_rows_) cos_sin_[i] = __ldcg(rope_ + row * half_);
    }
  }
  __device__ __forceinline__ void Change(float (&sums)[kN / 2]) const {
    if (!rotates_) return;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const int low = i / 2 * 4 + i % 2;
      Rotate(cos_sin_[i], sums[low], sums[low + 2]);
    }
  }
  // The tile's results of eight rows, as pairs of rows.
  static __device__ __forceinline__ void Keep(uint32_t address, const float* sums) {
    StoreTransposed(address, PackBF16(sums[0], sums[1]), PackBF16(sums[2], sums[3]));
  }
  // Where piece `piece` of the thread's i-th row goes.
  __device__ __forceinline__ bf16* To(int i) const {
    return to_ + static_cast<size_t>(place_of_[i]) * static_cast<size_t>(stride_);
  }

 private:
  static constexpr int kAtOnce = kWarpgroup / kPieces, kTimes = (kN + kAtOnce - 1) / kAtOnce;
  const RowInfo* infos_;  // of the thread's first row to store
  int plane_offset_;
  int row_, rows_;  // that row; how many there are from there
  int rope_rows_;   // from the first that it rotates
  int half_;
  bool rotates_;
  const float2* rope_;
  bool to_cell_;  // k and v; q goes to its buffer
  bf16* to_;      // in row 0, or plane 0 of cell 0
  int stride_, planes_;
  int place_of_[kTimes];  // the row of q, or the cell's plane
  float2 cos_sin_[kN / 4];
};

// Gate and up. A tile has both of eight neighbouring inputs of the next matrix: one piece.
template <int kN>
class GatedPieces {
 public:
  static constexpr int kPieces = 4;
  static constexpr bool kLoadsEarly = false;

  __device__ __forceinline__ GatedPieces(const DecodeParams& p, const WideRun&,
                                         const WidePlace& place, int, int, int piece, int row)
      : to_(p.buffers.act_ff + WideInputAt(place.row + row, (place.tile + piece) * 8,
                                           p.shapes.row_stride, p.shapes.ld_ff)) {}
  __device__ __forceinline__ void Load() {}
  __device__ __forceinline__ void Change(float (&sums)[kN / 2]) const {
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      sums[4 * j] = Gated(sums[4 * j], sums[4 * j + 2]);
      sums[4 * j + 1] = Gated(sums[4 * j + 1], sums[4 * j + 3]);
    }
  }
  static __device__ __forceinline__ void Keep(uint32_t address, const float* sums) {
    StoreTransposed(address, PackBF16(sums[0], sums[1]));
  }
  // Rows at a distance of 8 have their pieces in the same order.
  __device__ __forceinline__ bf16* To(int i) const {
    return to_ + i * (kWarpgroup / kPieces) * kWideInputGroup;
  }

 private:
  bf16* to_;
};

// By a whole warpgroup. Shared memory: rows of 128 bytes with piece c of row r at c ^ r % 8, 64
// rows from `shared` on and the others kStageBytes further: where a stage has the weights that this
// warpgroup alone reads. All of them have been read once every warp comes to Store.
template <typename Pieces, int kN, int kStageBytes>
class PieceEpilogue {
  static constexpr int kRowBytes = 128, kRowsOfStage = 64;
  static constexpr int kAtOnce = kWarpgroup / Pieces::kPieces;
  static constexpr int kTimes = (kN + kAtOnce - 1) / kAtOnce;
  static_assert(kAtOnce % 8 == 0 && kRowsOfStage % kAtOnce == 0);

 public:
  __device__ __forceinline__ PieceEpilogue(const DecodeParams& p, const WideRun& run,
                                           const WidePlace& place)
      : rows_(place.tile + Piece() % 4 < place.tiles ? min(place.rows, kN) - Row() : 0),
        pieces_(p, run, place, Thread() / 32, Thread() % 32, Piece(), Row()) {}

  // After the operations before have ended.
  __device__ __forceinline__ void LoadEarly() {
    if constexpr (Pieces::kLoadsEarly) pieces_.Load();
  }
  __device__ __forceinline__ void Store(uint32_t shared, int group, float (&sums)[kN / 2]) {
    if constexpr (!Pieces::kLoadsEarly) pieces_.Load();
    pieces_.Change(sums);
    WarpgroupSync(group);
    // The warp's pieces of eight rows: lane % 8 is the row, and lane / 8 which of two pieces.
    const int lane = Thread() % 32;
    const uint32_t from = shared + At(lane % 8, Thread() / 32 + lane / 8 % 2 * 4);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) Pieces::Keep(from + Offset(j * 8), sums + 4 * j);
    WarpgroupSync(group);
    const uint32_t mine = shared + At(Row(), Piece());
    uint4 values[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; ++i) values[i] = LoadShared16(mine + Offset(i * kAtOnce));
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      if (i * kAtOnce < rows_) *reinterpret_cast<uint4*>(pieces_.To(i)) = values[i];
    }
  }

 private:
  static __device__ __forceinline__ int Thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroup;
  }
  // The piece that this thread stores, and of which rows: this one, kAtOnce further, ... Eight
  // threads load from different banks: where they have two rows, these are four apart.
  static __device__ __forceinline__ int Piece() {
    return Thread() % Pieces::kPieces;
  }
  static __device__ __forceinline__ int Row() {
    const int n = Thread() / Pieces::kPieces;
    return Pieces::kPieces == 8 ? n : n / 8 * 8 + n % 2 * 4 + n % 8 / 2;
  }
  static __device__ __forceinline__ uint32_t At(int row, int piece) {
    return static_cast<uint32_t>(row * kRowBytes + (piece ^ row % 8) * 16);
  }
  // Bytes from a row to the row that is `rows` further, a multiple of eight.
  static constexpr uint32_t Offset(int rows) {
    return static_cast<uint32_t>(rows / kRowsOfStage * kStageBytes +
                                 rows % kRowsOfStage * kRowBytes);
  }

  int rows_;  // from the first that this thread stores
  Pieces pieces_;
};

}  // namespace loopspec::cuda

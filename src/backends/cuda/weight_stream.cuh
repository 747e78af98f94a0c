// The stream of weights that one warp consumes in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp keeps a ring of shared
// memory filled from its own list, ahead of the barriers between operations: memory stays busy while the arithmetic waits.
// A slot holds kTileRows rows by kBlockK elements (2 KiB); the copy that refills it is issued as soon as it was read.
#pragma once

#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

inline constexpr int kSlotBytes = kTileRows * kBlockK * static_cast<int>(sizeof(bf16));

// Which row of the matrix is row r of a tile. The two halves of a tile pair up what the epilogue needs together: rows i
// and i + head_dim / 2 of a head for the rotation, gate and up of one output. Rows past the end read row 0 and are not used.
struct TileRows {
  int head_dim, qk_heads, tiles_per_head;

  __device__ TileRows(const DecodeParams& p)
      : head_dim(p.head_dim), qk_heads(p.heads + p.kv_heads), tiles_per_head((p.head_dim / 2 + 7) / 8) {}

  // -1: no such row. `half`: 0 for rows 0..7 of the tile, 1 for rows 8..15.
  __device__ int Row(const MatrixShare& share, int tile, int r, int half) const {
    if (share.kind == MatrixKind::kGateUp) {
      const int ff = share.rows / 2, i = tile * 8 + r;
      return i < ff ? i + half * ff : -1;
    }
    if (share.kind == MatrixKind::kQkv || share.kind == MatrixKind::kQkvRaw) {
      const int head = tile / tiles_per_head;
      if (head < qk_heads) {
        const int i = tile % tiles_per_head * 8 + r;
        return i < head_dim / 2 ? head * head_dim + half * (head_dim / 2) + i : -1;
      }
      const int row = qk_heads * head_dim + (tile - qk_heads * tiles_per_head) * kTileRows + half * 8 + r;
      return row < share.rows ? row : -1;
    }
    const int row = tile * kTileRows + half * 8 + r;
    return row < share.rows ? row : -1;
  }
};

template <int kSlots>
class WeightStream {
 public:
  // `passes[set]`: how often a matrix of the set is gone through.
  __device__ WeightStream(const DecodeParams& p, const MatrixShare* shares, uint32_t ring, int recurrences,
                          const int (&rows)[kSets])
      : rows_of_(p), shares_(shares), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32), recurrences_(recurrences) {
    for (int s = 0; s < kSets; ++s) {
      end_[s] = p.matrices_end[s];
      passes_[s] = (rows[s] + kPassRows - 1) / kPassRows;
    }
    ring_ = ring + static_cast<uint32_t>(warp_) * kSlots * kSlotBytes;
    const int row = lane_ / 8, part = lane_ % 8;
    copy_offset_ = static_cast<uint32_t>(row * 128 + (part ^ ((row & 1) << 2)) * 16);
    // Fragments: lane (g, t) reads 16 bytes at 64 h + 16 t of rows g and g + 8; odd rows have their halves swapped so
    // that eight neighbouring lanes touch every bank once.
    const int g = lane_ / 4, t = lane_ % 4;
    read_offset_ = static_cast<uint32_t>(g * 128 + (t ^ ((g & 1) << 2)) * 16);
    set_ = 0;
    matrix_ = -1;
    begin_ = 0;
    repeat_ = 0;
    NextMatrix();
    slot_ = 0;
    for (int i = 0; i < kSlots; ++i) Refill();
  }

  // Waits for the oldest slot and reads this lane's fragments: rows g (low) and g + 8 (high), two halves of the block.
  __device__ void Read(uint4 (&low)[2], uint4 (&high)[2]) {
    WaitCopies<kSlots - 1>();
    __syncwarp();
    const uint32_t at = ring_ + static_cast<uint32_t>(slot_) * kSlotBytes + read_offset_;
    low[0] = LoadShared16(at);
    high[0] = LoadShared16(at + 1024);
    low[1] = LoadShared16(at ^ 64);
    high[1] = LoadShared16((at ^ 64) + 1024);
    __syncwarp();
    Refill();
  }

 private:
  __device__ void Refill() {
    if (matrix_ >= 0) {
      const uint32_t to = ring_ + static_cast<uint32_t>(slot_) * kSlotBytes + copy_offset_;
#pragma unroll
      for (int i = 0; i < 4; ++i) CopyAsync16(to + i * 512, weights_ + (row_at_[i] + static_cast<uint32_t>(block_) * kBlockK));
      block_ += kWarps;
      if (block_ >= block_end_) NextTile();
    }
    CommitCopies();
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
  }

  __device__ void NextTile() {
    if (++tile_ == tile_end_) {
      const MatrixShare& share = shares_[matrix_];
      if (++pass_ == passes_[set_]) {
        NextMatrix();
        return;
      }
      tile_ = share.tile_begin;
    }
    StartTile();
  }

  __device__ void StartTile() {
    const MatrixShare& share = shares_[matrix_];
    block_ = share.block_begin + warp_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane_ / 8 + 4 * i;
      const int row = max(0, rows_of_.Row(share, tile_, r % 8, r / 8));
      row_at_[i] = static_cast<uint32_t>(row) * static_cast<uint32_t>(share.ld) + static_cast<uint32_t>(lane_ % 8) * 8;
    }
  }

  // The next matrix that this warp has a share of; matrix_ = -1 at the end of the step.
  __device__ void NextMatrix() {
    for (;;) {
      ++matrix_;
      if (matrix_ == end_[set_] || passes_[set_] == 0) {
        if (set_ == kSetCore && passes_[set_] != 0 && ++repeat_ < recurrences_) {
          matrix_ = begin_;
        } else {
          begin_ = end_[set_];
          matrix_ = begin_ - 1;
          if (++set_ == kSets) {
            matrix_ = -1;
            return;
          }
          continue;
        }
      }
      const MatrixShare& share = shares_[matrix_];
      if (share.tile_count > 0 && share.block_begin + warp_ < share.block_end) break;
    }
    const MatrixShare& share = shares_[matrix_];
    weights_ = share.weights;
    block_end_ = share.block_end;
    tile_ = share.tile_begin;
    tile_end_ = share.tile_begin + share.tile_count;
    pass_ = 0;
    StartTile();
  }

  TileRows rows_of_;
  const MatrixShare* shares_;
  int lane_, warp_;
  int recurrences_;
  int end_[kSets], passes_[kSets];
  uint32_t ring_, copy_offset_, read_offset_;
  int slot_;
  // What is copied next.
  int set_, matrix_, begin_, repeat_, pass_, tile_, tile_end_, block_, block_end_;
  const bf16* weights_;
  uint32_t row_at_[4];
};

}  // namespace loopspec::cuda

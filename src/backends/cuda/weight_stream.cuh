// The stream of weights that one warp consumes in the course of a step.
//
// Which weights a warp reads, and in what order, does not depend on any activation. So each warp keeps a ring of shared
// memory filled from its own list, ahead of the barriers between operations: memory stays busy while the arithmetic waits.
// A slot holds kTileRows rows by kBlockK elements (2 KiB); the copies that refill the slots of a tile are issued when the tile was read.
#pragma once

#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"

namespace loopspec::cuda {

inline constexpr int kSlotBytes = kTileRows * kBlockK * static_cast<int>(sizeof(bf16));

// Which rows of the matrix a tile holds. The two halves of a tile pair up what the epilogue needs together: rows i and
// i + head_dim / 2 of a head for the rotation, gate and up of one output.
struct TileRows {
  int first;   // row of the tile's first row; the following ones are its neighbours
  int second;  // row of the tile's ninth row
};

__device__ __forceinline__ int TilesPerHead(const DecodeParams& p) { return (p.head_dim / 2 + 7) / 8; }

__device__ __forceinline__ TileRows RowsOf(const DecodeParams& p, MatrixKind kind, int tile) {
  if (kind == MatrixKind::kGateUp) return {tile * 8, p.ff + tile * 8};
  int first = tile * kTileRows;
  if (kind == MatrixKind::kQkv || kind == MatrixKind::kQkvRaw) {
    const int per_head = TilesPerHead(p), qk_heads = p.heads + p.kv_heads;
    const int head = tile / per_head;
    if (head < qk_heads) {
      first = head * p.head_dim + tile % per_head * 8;
      return {first, first + p.head_dim / 2};
    }
    first = qk_heads * p.head_dim + (tile - qk_heads * per_head) * kTileRows;
  }
  return {first, first + 8};
}

// Where a warp's stream stands, less what it needs at every slot; in shared memory, one per warp.
struct StreamPosition {
  int set, matrix, repeat, pass;
};

// The step's matrices in order, with how often each is gone through; in shared memory, one per block.
struct StreamOrder {
  int end[kSets];     // of the set's matrices
  int passes[kSets];  // over each of them; 0: the set has no rows
  int recurrences;
};

// Moves on to the warp's next pass over a matrix that it has a share of; matrix = -1 at the end of the step.
__device__ __forceinline__ void NextMatrix(const StreamOrder& order, const MatrixShare* shares, StreamPosition* position) {
  StreamPosition at = *position;
  const int warp = threadIdx.x / 32;
  if (at.matrix >= 0 && ++at.pass < order.passes[at.set]) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) position->pass = at.pass;
    __syncwarp();
    return;
  }
  at.pass = 0;
  if (at.matrix < 0) {
    at.set = 0;
    at.repeat = 0;
  }
  for (;;) {
    ++at.matrix;
    if (order.passes[at.set] == 0) at.matrix = order.end[at.set];
    if (at.matrix == order.end[at.set]) {
      if (at.set == kSetCore && order.passes[at.set] > 0 && ++at.repeat < order.recurrences) {
        at.matrix = order.end[kSetPrelude] - 1;
        continue;
      }
      at.matrix = order.end[at.set] - 1;
      if (++at.set == kSets) {
        at.matrix = -1;
        break;
      }
      continue;
    }
    const MatrixShare& share = shares[at.matrix];
    if (share.tile_count > 0 && share.block_begin + warp < share.block_end) break;
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) *position = at;
  __syncwarp();
}

template <int kSlots>
class WeightStream {
 public:
  __device__ WeightStream(const DecodeParams& p, const StreamOrder& order, const MatrixShare* shares,
                          StreamPosition* positions, uint32_t ring)
      : p_(p), order_(order), shares_(shares), position_(positions + threadIdx.x / 32) {
    const uint32_t lane = threadIdx.x % 32;
    ring_ = ring + threadIdx.x / 32 * kSlots * kSlotBytes;
    const uint32_t row = lane / 8, part = lane % 8;
    copy_offset_ = row * 128 + (part ^ ((row & 1) << 2)) * 16;
    // Fragments: lane (g, t) reads 16 bytes at 64 h + 16 t of rows g and g + 8; odd rows have their halves swapped so
    // that eight neighbouring lanes touch every bank once.
    const uint32_t g = lane / 4, t = lane % 4;
    read_offset_ = g * 128 + (t ^ ((g & 1) << 2)) * 16;
    if (lane == 0) position_->matrix = -1;
    __syncwarp();
    Advance();
    if (!done_) StartTile();
    Refill(kSlots);
  }

  // Waits for the oldest slot and reads this lane's fragments: rows g (low) and g + 8 (high), two halves of the block.
  // `kUnfilled` slots were read before it and not refilled.
  template <int kUnfilled>
  __device__ __forceinline__ void Read(uint4 (&low)[2], uint4 (&high)[2]) {
    WaitCopies<kSlots - 1 - kUnfilled>();
    __syncwarp();
    const uint32_t at = ring_ + read_slot_ + read_offset_;
    low[0] = LoadShared16(at);
    high[0] = LoadShared16(at + 1024);
    low[1] = LoadShared16(at ^ 64);
    high[1] = LoadShared16((at ^ 64) + 1024);
    read_slot_ = read_slot_ + kSlotBytes == kSlots * kSlotBytes ? 0 : read_slot_ + kSlotBytes;
  }

  // Starts the copies into `slots` slots that were read.
  __device__ __forceinline__ void Refill(int slots) {
    __syncwarp();
#pragma unroll 1
    for (int s = 0; s < slots; ++s) {
      if (!done_) {
        const uint32_t to = ring_ + fill_slot_ + copy_offset_;
#pragma unroll
        for (int i = 0; i < 4; ++i) CopyAsync16(to + i * 512, weights_ + (row_at_[i] + block_));
        block_ += kWarps * kBlockK;
        if (block_ >= block_end_) {
          ++tile_;
          if (tile_ == tile_end_) Advance();
          if (!done_) StartTile();
        }
      }
      CommitCopies();
      fill_slot_ = fill_slot_ + kSlotBytes == kSlots * kSlotBytes ? 0 : fill_slot_ + kSlotBytes;
    }
  }

 private:
  __device__ __forceinline__ void Advance() {
    NextMatrix(order_, shares_, position_);
    const int matrix = position_->matrix;
    done_ = matrix < 0;
    if (done_) return;
    const MatrixShare& share = shares_[matrix];
    weights_ = share.weights;
    block_end_ = static_cast<uint32_t>(share.block_end) * kBlockK;
    tile_ = share.tile_begin;
    tile_end_ = share.tile_begin + share.tile_count;
  }

  __device__ __forceinline__ void StartTile() {
    const MatrixShare& share = shares_[position_->matrix];
    block_ = (static_cast<uint32_t>(share.block_begin) + threadIdx.x / 32) * kBlockK;
    const TileRows rows = RowsOf(p_, share.kind, tile_);
    const int r = threadIdx.x % 32 / 8, last = share.rows - 1;
    const uint32_t ld = static_cast<uint32_t>(share.ld), column = threadIdx.x % 8 * 8;
    // Rows past the end read the last one; the epilogue drops them.
    row_at_[0] = static_cast<uint32_t>(min(rows.first + r, last)) * ld + column;
    row_at_[1] = static_cast<uint32_t>(min(rows.first + r + 4, last)) * ld + column;
    row_at_[2] = static_cast<uint32_t>(min(rows.second + r, last)) * ld + column;
    row_at_[3] = static_cast<uint32_t>(min(rows.second + r + 4, last)) * ld + column;
  }

  const DecodeParams& p_;
  const StreamOrder& order_;
  const MatrixShare* shares_;
  StreamPosition* position_;
  uint32_t ring_, copy_offset_, read_offset_;
  uint32_t read_slot_ = 0, fill_slot_ = 0;  // byte offsets
  // What is copied next; blocks in elements.
  const bf16* weights_ = nullptr;
  uint32_t row_at_[4], block_ = 0, block_end_ = 0;
  int tile_ = 0, tile_end_ = 0;
  bool done_ = false;
};

}  // namespace loopspec::cuda

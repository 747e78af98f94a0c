// A matrix product of one step: a block's tiles of the weights times all rows of the batch.
//
// The weights are the long side (16 rows) of the matrix instruction, batch rows the short one (8),
// padded. The eight warps divide k: warp w takes every eighth block, keeps its inputs for all rows
// in registers, and adds up in the order of k; then the warps' sums are added in the order of the
// warps. So a row's result is the same whatever shares the batch with it.
#pragma once

#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"
#include "backends/cuda/weight_stream.cuh"

namespace loopspec::cuda {

// Sums of the warps, [buffer][warp][row][kTileRows + 4]: the padding keeps a warp's stores off each
// other's banks. With two buffers one barrier per tile is enough.
inline constexpr int kSumStride = kTileRows + 4;
inline constexpr int kSumFloats = kWarps * kPassRows * kSumStride;
template <int kSlots>
inline constexpr int kSumBuffers = kSlots >= 3 ? 2 : 1;
template <int kSlots>
inline constexpr int kRingOffset = kContextBytes +
                                   kSumBuffers<kSlots>* kSumFloats* static_cast<int>(sizeof(float));
template <int kSlots>
__device__ __forceinline__ uint32_t RingAddress() {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)) + kRingOffset<kSlots>;
}

__device__ inline const bf16* Input(const DecodeParams& p, Activation which, int& ld) {
  switch (which) {
    case Activation::kHidden:
      ld = p.ld_hidden;
      return p.act_hidden;
    case Activation::kAttention:
      ld = p.ld_attention;
      return p.act_attention;
    case Activation::kFeedForward:
      ld = p.ld_ff;
      return p.act_ff;
    default:
      ld = p.ld_adapter;
      return p.act_adapter;
  }
}

// What happens to the outputs of a tile. Thread (g, n) gets outputs g and g + 8 of batch row n.
class Epilogue {
 public:
  __device__ __forceinline__ Epilogue(const DecodeParams& p, const Op& op, const MatrixShare& share,
                                      const SetContext& set, int row, bool live)
      : p_(p),
        share_(share),
        per_head_((p.head_dim / 2 + 7) / 8),
        qk_heads_(p.heads + p.kv_heads),
        row_(row),
        live_(live) {
    if (!live || (share.kind != MatrixKind::kQkv && share.kind != MatrixKind::kQkvRaw)) return;
    const RowInfo& info = set.infos[row];
    const int plane = info.plane + op.layer + set.recurrence * p.core_layers;
    cell_ = p.cell_kv +
            (static_cast<size_t>(info.cell) * p.planes + plane) * p.kv_heads * 2 * p.head_stride;
    rope_ = p.rope + (static_cast<size_t>(set.set) * p.max_rows + row) * (p.head_dim / 2);
  }

  // Loads what Store will need, early enough for the latency to pass behind the products.
  __device__ __forceinline__ void Prepare(int tile, int g) {
    if (live_ && share_.kind == MatrixKind::kQkv) {
      const int head = tile / per_head_;
      const int i = tile % per_head_ * 8 + g;
      if (head < qk_heads_ && i < p_.head_dim / 2) cos_sin_ = __ldcg(rope_ + i);
    }
  }

  __device__ __forceinline__ void Store(int tile, int g, float low, float high) const {
    if (!live_) return;
    switch (share_.kind) {
      case MatrixKind::kQkv:
      case MatrixKind::kQkvRaw:
        StoreQkv(tile, g, low, high);
        return;
      case MatrixKind::kGateUp: {
        const int i = tile * 8 + g;
        if (i >= p_.ff) return;
        const float value = low / (1.0f + __expf(-low)) * high;
        p_.act_ff[static_cast<size_t>(row_) * p_.ld_ff + i] = __float2bfloat16(value);
        return;
      }
      case MatrixKind::kPartial: {
        float* out =
            p_.partials + (static_cast<size_t>(share_.chunk) * p_.max_rows + row_) * p_.hidden;
        StorePlain(out, tile, g, low, high);
        return;
      }
      case MatrixKind::kHead:
        StorePlain(p_.logits + static_cast<size_t>(row_) * p_.vocab, tile, g, low, high);
        return;
    }
  }

 private:
  __device__ __forceinline__ void StorePlain(float* out, int tile, int g, float low,
                                             float high) const {
    const int i = tile * kTileRows + g;
    if (i < share_.outputs) out[i] = low;
    if (i + 8 < share_.outputs) out[i + 8] = high;
  }

  __device__ __forceinline__ void StoreQkv(int tile, int g, float low, float high) const {
    const int half = p_.head_dim / 2;
    const int head = tile / per_head_;
    if (head >= qk_heads_) {
      const int i = (tile - qk_heads_ * per_head_) * kTileRows + g;
      StoreValue(i, low);
      StoreValue(i + 8, high);
      return;
    }
    const int i = tile % per_head_ * 8 + g;
    if (i >= half) return;
    if (share_.kind == MatrixKind::kQkvRaw) {
      float* out =
          p_.qk_raw + static_cast<size_t>(row_) * (p_.q_size + p_.kv_size) + head * p_.head_dim;
      out[i] = low;
      out[i + half] = high;
      return;
    }
    bf16* out = head < p_.heads
                    ? p_.q + (static_cast<size_t>(row_) * p_.heads + head) * p_.head_stride
                    : cell_ + (head - p_.heads) * 2 * p_.head_stride;
    out[i] = __float2bfloat16(low * cos_sin_.x - high * cos_sin_.y);
    out[i + half] = __float2bfloat16(high * cos_sin_.x + low * cos_sin_.y);
  }

  __device__ __forceinline__ void StoreValue(int i, float value) const {
    if (i >= p_.kv_size) return;
    const int head = i / p_.head_dim;
    cell_[(head * 2 + 1) * p_.head_stride + i % p_.head_dim] = __float2bfloat16(value);
  }

  const DecodeParams& p_;
  const MatrixShare& share_;
  int per_head_, qk_heads_;
  int row_;
  bool live_;
  bf16* cell_ = nullptr;
  const float2* rope_ = nullptr;
  float2 cos_sin_ = {0.0f, 0.0f};
};

// One pass of the block's current operation: rows [first_row, first_row + rows), at most 8 kTiles
// of them. kInRegisters: the warp's blocks of k number at most kChunkBlocks / kWarps, so that its
// inputs stay in registers for all tiles.
template <int kTiles, bool kInRegisters, int kSlots>
__device__ __noinline__ void MatrixPass(const Op* current, int first_row, int rows) {
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const Op& op = *current;
  const MatrixShare& share = context.shares[op.matrix];
  float* sums = Sums();
  RingReader<kSlots> ring(RingAddress<kSlots>());
  RingFiller<kSlots> filler(RingAddress<kSlots>());
  constexpr int kOwnBlocks = kChunkBlocks / kWarps;
  static_assert(kOwnBlocks == 2 && kSlots >= kOwnBlocks);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int blocks = share.block_end - share.block_begin;
  const int own = warp < blocks ? (blocks - warp + kWarps - 1) / kWarps : 0;
  int ld;
  const bf16* input = Input(p, op.input, ld);
  input += static_cast<size_t>(first_row + g) * ld + (share.block_begin + warp) * kBlockK + t * 8;
  const auto load = [&](int n, int i, int h) {
    return n * 8 + g < rows ? LoadCoherent16(input + static_cast<size_t>(n) * 8 * ld +
                                             i * kWarps * kBlockK + h * 32)
                            : make_uint4(0, 0, 0, 0);
  };

  uint4 held[kInRegisters ? kOwnBlocks : 1][4][kTiles];
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kOwnBlocks; ++i) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          held[i][h][n] = i < own ? load(n, i, h) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  // In the epilogue thread (row n, output g).
  const int out_row = threadIdx.x / 8, out_g = threadIdx.x % 8;
  Epilogue epilogue(p, op, share, context.set, first_row + out_row, out_row < rows);

  for (int tile = share.tile_begin; tile < share.tile_begin + share.tile_count; ++tile) {
    epilogue.Prepare(tile, out_g);
    float c[kTiles][2][4] =
        {};  // two running sums: an instruction need not wait for the one before
    const auto multiply = [&](const uint4(&low)[4], const uint4(&high)[4],
                              const uint4(&b)[4][kTiles]) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) Mma32(c[n][h % 2], low[h], high[h], b[h][n]);
      }
    };
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kOwnBlocks; ++i) {
        if (i < own) {
          uint4 low[4], high[4];
          ring.Read(low, high);
          multiply(low, high, held[i]);
        }
      }
      filler.Fill(own);
    } else {
#pragma unroll 1
      for (int i = 0; i < own; ++i) {
        uint4 low[4], high[4];
        ring.Read(low, high);
        filler.Fill(1);
#pragma unroll
        for (int h = 0; h < 4; ++h) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) held[0][h][n] = load(n, i, h);
        }
        multiply(low, high, held[0]);
      }
    }

    float* mine = sums + (tile % kSumBuffers<kSlots>)*kSumFloats + warp * kPassRows * kSumStride;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float* at = mine + (n * 8 + 2 * t) * kSumStride + RowOfLane(g);
      at[0] = c[n][0][0] + c[n][1][0];
      at[kSumStride] = c[n][0][1] + c[n][1][1];
      at[8] = c[n][0][2] + c[n][1][2];
      at[kSumStride + 8] = c[n][0][3] + c[n][1][3];
    }
    __syncthreads();
    if (out_row < 8 * kTiles) {
      const float* at =
          sums + (tile % kSumBuffers<kSlots>)*kSumFloats + out_row * kSumStride + out_g;
      float low = at[0], high = at[8];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {  // warps without a block of k have left zeros
        low += at[w * kPassRows * kSumStride];
        high += at[w * kPassRows * kSumStride + 8];
      }
      epilogue.Store(tile, out_g, low, high);
    }
    if constexpr (kSumBuffers<kSlots> == 1) __syncthreads();
  }
  ring.Save();
  filler.Save();
  __syncthreads();  // the next pass starts at a tile of either parity
}

template <int kSlots>
__device__ __forceinline__ void MatrixOp(const Op& op) {
  const BlockContext& context = Context();
  const MatrixShare& share = context.shares[op.matrix];
  if (share.tile_count == 0) return;
  const bool in_registers = share.block_end - share.block_begin <= kChunkBlocks;
  for (int first = 0; first < context.set.rows; first += kPassRows) {
    const int count = min(kPassRows, context.set.rows - first);
    if (!in_registers) {
      MatrixPass<4, false, kSlots>(&op, first, count);
    } else if (count <= 8) {
      MatrixPass<1, true, kSlots>(&op, first, count);
    } else if (count <= 16) {
      MatrixPass<2, true, kSlots>(&op, first, count);
    } else {
      MatrixPass<4, true, kSlots>(&op, first, count);
    }
  }
}

}  // namespace loopspec::cuda

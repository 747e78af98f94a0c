// A matrix product of one step: a block's tiles of the weights times all rows of the batch.
//
// The weights are the long side (16 rows) of the matrix instruction, batch rows the short one (8),
// padded. A chunk of k is one block of k for each of the eight warps: a warp keeps its inputs for
// all rows in registers and adds up in the order of k; then the warps' sums are added in the order
// of the warps, and chunks in the order of chunks. So a row's result is the same whatever shares
// the batch with it, and however tiles and chunks are dealt to the blocks.
//
// A piece is one tile by one chunk. The warps run through a few pieces on their own before their
// sums meet: the less often they wait for each other, the more evenly the ring is emptied.
#pragma once

#include "backends/cuda/attention.cuh"
#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/mail.cuh"
#include "backends/cuda/step_types.h"
#include "backends/cuda/weight_stream.cuh"

namespace loopspec::cuda {

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
        kind_(share.kind),
        chunk_(share.chunk_begin),
        per_head_((p.head_dim / 2 + 7) / 8),
        qk_heads_(p.heads + p.kv_heads),
        row_(row),
        live_(live),
        mail_(MailsOut(op)) {
    if (!live || (share.kind != MatrixKind::kQkv && share.kind != MatrixKind::kQkvRaw)) return;
    const RowInfo& info = set.infos[row];
    const int plane = info.plane + op.layer + set.recurrence * p.core_layers;
    cell_ = p.cell_kv +
            (static_cast<size_t>(info.cell) * p.planes + plane) * p.kv_heads * 2 * p.head_stride;
    rope_ = p.rope + (static_cast<size_t>(set.set) * p.max_rows + row) * (p.head_dim / 2);
  }

  // Loads what Store will need, early enough for the latency to pass behind the products.
  __device__ __forceinline__ void Prepare(int tile, int g) {
    if (live_ && kind_ == MatrixKind::kQkv) {
      const int head = Quotient(tile, per_head_);
      const int i = (tile - head * per_head_) * 8 + g;
      if (head < qk_heads_ && i < p_.head_dim / 2) cos_sin_ = __ldcg(rope_ + i);
    }
  }

  // By whole warps.
  __device__ __forceinline__ void Store(int tile, int g, float low, float high) const {
    if (kind_ == MatrixKind::kQkv) {
      StoreQkv(tile, g, low, high);
      return;
    }
    if (kind_ == MatrixKind::kGateUp) {
      StoreGated(tile * 8 + g, Gated(low, high));
      return;
    }
    if (!live_) return;
    const int i = tile * kTileRows + g;
    switch (kind_) {
      case MatrixKind::kPartial: {
        if (mail_) {
          Mail* out = p_.mail_sums + static_cast<size_t>(row_) * p_.hidden + i;
          Post(out, low, StampOut());
          Post(out + 8, high, StampOut());
          return;
        }
        float* out = p_.partials + (static_cast<size_t>(chunk_) * p_.max_rows + row_) * p_.hidden;
        StorePlain(out, i, p_.hidden, low, high);
        return;
      }
      case MatrixKind::kHead:
        StorePlain(p_.logits + static_cast<size_t>(row_) * p_.vocab, i, p_.vocab, low, high);
        return;
      default:
        StoreRaw(tile, g, low, high);
    }
  }

 private:
  static __device__ __forceinline__ void StorePlain(float* out, int i, int outputs, float low,
                                                    float high) {
    if (i < outputs) out[i] = low;
    if (i + 8 < outputs) out[i + 8] = high;
  }

  __device__ __forceinline__ void StoreGated(int i, float value) const {
    const float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    if (!live_ || i >= p_.ff) return;
    const size_t at = static_cast<size_t>(row_) * p_.ld_ff + InputPlace(i);
    if (!mail_) {
      p_.act_ff[at] = __float2bfloat16(value);
    } else if (i % 2 == 0) {
      Post(p_.mail_ff + at / 2, PackBF16(value, next), StampOut());
    }
  }

  // q and k turned, v as it is; q to its buffer, k and v to the cell, or all by mail and k and v to
  // the cell for later steps.
  __device__ __forceinline__ void StoreQkv(int tile, int g, float low, float high) const {
    const int half = p_.head_dim / 2;
    int head = Quotient(tile, per_head_), i = (tile - head * per_head_) * 8 + g, other = i + half;
    if (head >= qk_heads_) {  // sixteen values as they come
      const int value = (tile - qk_heads_ * per_head_) * kTileRows + g;
      head = Quotient(value, p_.head_dim);
      i = value - head * p_.head_dim;
      StoreValue(value, low);
      StoreValue(value + 8, high);
      other = i + 8;
      head += qk_heads_;
    } else {
      // Fused by hand: every instance of this function has to round alike.
      const float turned = fmaf(low, cos_sin_.x, -__fmul_rn(high, cos_sin_.y));
      high = fmaf(high, cos_sin_.x, __fmul_rn(low, cos_sin_.y));
      low = turned;
      if (live_ && i < half && !(mail_ && head < p_.heads)) {
        bf16* out = head < p_.heads
                        ? p_.q + (static_cast<size_t>(row_) * p_.heads + head) * p_.head_stride
                        : cell_ + (head - p_.heads) * 2 * p_.head_stride;
        out[i] = __float2bfloat16(low);
        out[i + half] = __float2bfloat16(high);
      }
    }
    if (!mail_) return;
    // Even lanes post the pair of the lower elements, odd ones that of the higher.
    const float low_there = __shfl_xor_sync(0xFFFFFFFFu, low, 1),
                high_there = __shfl_xor_sync(0xFFFFFFFFu, high, 1);
    if (!live_) return;
    const int at = g % 2 == 0 ? i : other - 1;
    const uint32_t pair = g % 2 == 0 ? PackBF16(low, low_there) : PackBF16(high_there, high);
    // q heads, then k and v of each head in turn.
    const int vector = head < p_.heads    ? head
                       : head < qk_heads_ ? p_.heads + (head - p_.heads) * 2
                                          : p_.heads + (head - qk_heads_) * 2 + 1;
    Post(p_.mail_qkv + (static_cast<size_t>(row_) * (p_.heads + 2 * p_.kv_heads) + vector) * half +
             at / 2,
         pair, StampOut());
  }

  __device__ __forceinline__ void StoreRaw(int tile, int g, float low, float high) const {
    const int half = p_.head_dim / 2;
    const int head = Quotient(tile, per_head_);
    if (head >= qk_heads_) {
      const int i = (tile - qk_heads_ * per_head_) * kTileRows + g;
      StoreValue(i, low);
      StoreValue(i + 8, high);
      return;
    }
    const int i = (tile - head * per_head_) * 8 + g;
    if (i >= half) return;
    float* out =
        p_.qk_raw + static_cast<size_t>(row_) * (p_.q_size + p_.kv_size) + head * p_.head_dim;
    out[i] = low;
    out[i + half] = high;
  }

  __device__ __forceinline__ void StoreValue(int i, float value) const {
    if (!live_ || i >= p_.kv_size) return;
    const int head = Quotient(i, p_.head_dim);
    cell_[(head * 2 + 1) * p_.head_stride + i - head * p_.head_dim] = __float2bfloat16(value);
  }

  const DecodeParams& p_;
  MatrixKind kind_;
  int chunk_;  // which partial sum
  int per_head_, qk_heads_;
  int row_;
  bool live_, mail_;
  bf16* cell_ = nullptr;
  const float2* rope_ = nullptr;
  float2 cos_sin_ = {0.0f, 0.0f};
};

// A warp's inputs for one block of k and up to 8 kTiles rows: its parts of operand `b`.
template <int kTiles>
struct BlockInputs {
  static constexpr int kSteps = kBlockK / 32;
  uint4 b[kSteps][kTiles];

  // `from`: row g of the rows, the lane's first element; likewise `mail`, by pairs, where the
  // inputs come so.
  __device__ __forceinline__ void Load(const bf16* from, const Mail* mail, int ld, int rows,
                                       bool own) {
    const int g = threadIdx.x % 32 / 4;
    if constexpr (kTiles == 1) {
      if (mail != nullptr) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) b[i][0] = make_uint4(0, 0, 0, 0);
        if (g < rows) {
          Receive<kSteps>(
              StampIn(), [&](int i) { return mail + i * 16; },
              [&](int i, const uint4& values) { b[i][0] = values; });
        }
        return;
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) b[i][n] = make_uint4(0, 0, 0, 0);
      if (n * 8 + g >= rows) continue;
      const bf16* row = from + static_cast<size_t>(n) * 8 * ld;
      if (own) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) b[i][n] = *reinterpret_cast<const uint4*>(row + i * 32);
      } else {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) b[i][n] = LoadCoherent16(row + i * 32);
      }
    }
  }
};

// One warp's part of a piece, added in two running sums: an instruction need not wait for the last
// one.
template <int kTiles, typename Ring>
__device__ __forceinline__ void MultiplyBlock(uint32_t slot, const BlockInputs<kTiles>& in,
                                              float (&c)[kTiles][2][4]) {
#pragma unroll
  for (int i = 0; i < kBlockK / 16; ++i) {
    uint32_t a[4];
    Ring::Read(slot, i, a);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4& b = in.b[i / 2][n];
      Mma(c[n][i % 2], a[0], a[1], a[2], a[3], i % 2 == 0 ? b.x : b.z, i % 2 == 0 ? b.y : b.w);
    }
  }
}

// Which outputs a thread adds up when the warps' sums meet: columns c and c + 8 of one row, of one
// piece of the group.
template <int kTiles>
struct OutputOfThread {
  static constexpr int kGroup = 4 / kTiles;  // pieces
  int piece = static_cast<int>(threadIdx.x) / (64 * kTiles);
  int row = static_cast<int>(threadIdx.x) % (64 * kTiles) / 8;
  int column = static_cast<int>(threadIdx.x) % 8;
};
template <int kTiles>
__device__ __forceinline__ float* SumsOf(int piece, int warp, int row) {
  return Sums() + ((piece * kWarps + warp) * 8 * kTiles + row) * kSumStride;
}
template <int kTiles>
__device__ __forceinline__ void StoreSums(int piece, const float (&c)[kTiles][2][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float* at = SumsOf<kTiles>(piece, static_cast<int>(threadIdx.x / 32), n * 8 + 2 * t) + g;
    at[0] = c[n][0][0] + c[n][1][0];
    at[kSumStride] = c[n][0][1] + c[n][1][1];
    at[8] = c[n][0][2] + c[n][1][2];
    at[kSumStride + 8] = c[n][0][3] + c[n][1][3];
  }
}
template <int kTiles>
__device__ __forceinline__ float2 AddSums(int piece, const OutputOfThread<kTiles>& mine) {
  const float* at = SumsOf<kTiles>(piece, 0, mine.row) + mine.column;
  float2 sum = make_float2(at[0], at[8]);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {  // warps without a block of k have left zeros
    sum.x += at[w * 8 * kTiles * kSumStride];
    sum.y += at[w * 8 * kTiles * kSumStride + 8];
  }
  return sum;
}

// A warp's way through the block's share of the current operation, for rows [first_row, first_row +
// rows), at most 8 kTiles of them.
template <int kTiles, int kSlots>
class MatrixPass {
 public:
  __device__ __forceinline__ MatrixPass(int first_row, int rows) : rows_(rows) {
    const BlockContext& context = Context();
    const Op& op = CurrentOp();
    share_ = context.shares[op.matrix];
    own_ = context.queue.own_inputs;
    input_ = Input(context.p, op.input, ld_);
    if (own_) input_ = OwnInputs();
    const size_t first = static_cast<size_t>(first_row + threadIdx.x % 32 / 4) * ld_ +
                         Warp() * kBlockK + threadIdx.x % 4 * 8;
    mail_ = nullptr;
    if (kTiles == 1 && !own_ && ArrivesByMail()) {
      mail_ = (op.input == Activation::kFeedForward ? context.p.mail_ff
               : op.input == Activation::kAttention ? context.p.mail_attention
                                                    : context.p.mail_hidden) +
              first / 2;
    }
    input_ += first;
  }

  // The inputs of a chunk, before its tiles.
  __device__ __forceinline__ void Load(int chunk) {
    in_.Load(input_ + chunk * kChunkK, mail_ == nullptr ? nullptr : mail_ + chunk * (kChunkK / 2),
             ld_, HasBlock(chunk) ? rows_ : 0, own_);
  }
  // One piece: its next tile's sums are left at `piece`.
  __device__ __forceinline__ void Multiply(int chunk, int piece) {
    float c[kTiles][2][4] = {};
    if (HasBlock(chunk)) {
      const uint32_t slot = ring_.Wait();
      MultiplyBlock<kTiles, RingReader<kSlots>>(slot, in_, c);
      ring_.Next();
      filler_.Fill();
    }
    StoreSums<kTiles>(piece, c);
  }
  __device__ __forceinline__ void Save() const {
    ring_.Save();
    filler_.Save();
  }

  __device__ __forceinline__ const MatrixShare& share() const { return share_; }
  __device__ __forceinline__ bool own() const { return own_; }

 private:
  static __device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ __forceinline__ bool HasBlock(int chunk) const {
    return chunk * kWarps + Warp() < share_.blocks;
  }

  MatrixShare share_;
  int rows_, ld_;
  bool own_;  // the inputs are the block's own
  const bf16* input_;
  const Mail* mail_;
  BlockInputs<kTiles> in_;
  RingReader<kSlots> ring_;
  RingFiller<kSlots> filler_;
};

// The loops are short and not unrolled, and decisions inside them few: the kernel's parts are run
// through once per layer, so what is not in the instruction cache takes longer to fetch than to
// execute, and conditions that are kept for later end up in memory.

// Tiles of one chunk; up to kGroup of them before the warps' sums meet.
template <int kTiles, int kSlots>
__device__ __forceinline__ void RunTiles(int first_row, int rows) {
  MatrixPass<kTiles, kSlots> pass(first_row, rows);
  const int chunk = pass.share().chunk_begin, end = pass.share().tile_end;
  pass.Load(chunk);
  const OutputOfThread<kTiles> mine;
  Epilogue epilogue(Context().p, CurrentOp(), pass.share(), Context().set, first_row + mine.row,
                    mine.row < rows);
  if (pass.own()) __syncthreads();  // the inputs make room for the sums
#pragma unroll 1
  for (int first = pass.share().tile_begin; first < end; first += mine.kGroup) {
    const int count = min(mine.kGroup, end - first);
    if (mine.piece < count) epilogue.Prepare(first + mine.piece, mine.column);
#pragma unroll 1
    for (int piece = 0; piece < count; ++piece) pass.Multiply(chunk, piece);
    __syncthreads();
    if (mine.piece < count) {
      const float2 sum = AddSums(mine.piece, mine);
      epilogue.Store(first + mine.piece, mine.column, sum.x, sum.y);
    }
    // The last sums are safe until the next operation or pass, which begins with a barrier.
    if (first + mine.kGroup < end) __syncthreads();
  }
  pass.Save();
}

// Several chunks of each tile; their sums are added in order.
template <int kTiles, int kSlots>
__device__ __forceinline__ void RunChunks(int first_row, int rows) {
  MatrixPass<kTiles, kSlots> pass(first_row, rows);
  const int begin = pass.share().chunk_begin, end = pass.share().chunk_end;
  const OutputOfThread<kTiles> mine;
  Epilogue epilogue(Context().p, CurrentOp(), pass.share(), Context().set, first_row + mine.row,
                    mine.row < rows);
#pragma unroll 1
  for (int tile = pass.share().tile_begin; tile < pass.share().tile_end; ++tile) {
    if (mine.piece == 0) epilogue.Prepare(tile, mine.column);
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int first = begin; first < end; first += mine.kGroup) {
      const int count = min(mine.kGroup, end - first);
#pragma unroll 1
      for (int piece = 0; piece < count; ++piece) {
        pass.Load(first + piece);
        pass.Multiply(first + piece, piece);
      }
      __syncthreads();
      if (mine.piece == 0) {
#pragma unroll 1
        for (int piece = 0; piece < count; ++piece) {
          const float2 part = AddSums(piece, mine);
          sum = first + piece == begin ? part : make_float2(sum.x + part.x, sum.y + part.y);
        }
      }
      if (first + mine.kGroup < end || tile + 1 < pass.share().tile_end) __syncthreads();
    }
    if (mine.piece == 0) epilogue.Store(tile, mine.column, sum.x, sum.y);
  }
  pass.Save();
}

// Functions of their own, so that each has all registers.
template <int kTiles, bool kChunks, int kSlots>
__device__ __noinline__ void OnePass() {
  if constexpr (kChunks) {
    RunChunks<kTiles, kSlots>(0, Context().set.rows);
  } else {
    RunTiles<kTiles, kSlots>(0, Context().set.rows);
  }
}
// More rows than one pass over the weights serves.
template <bool kChunks, int kSlots>
__device__ __noinline__ void ManyPasses() {
  constexpr int kTiles = kPassRows / 8;
#pragma unroll 1
  for (int first = 0; first < Context().set.rows; first += kPassRows) {
    if (first > 0) {
      CatchUp<kSlots>(static_cast<int>(threadIdx.x / 32));
      __syncthreads();
    }
    const int count = min(kPassRows, Context().set.rows - first);
    if constexpr (kChunks) {
      RunChunks<kTiles, kSlots>(first, count);
    } else {
      RunTiles<kTiles, kSlots>(first, count);
    }
  }
}

template <bool kChunks, int kSlots>
__device__ __forceinline__ void RunMatrix() {
  const int rows = Context().set.rows;
  if (rows <= 8) {
    OnePass<1, kChunks, kSlots>();
  } else if (rows <= 16) {
    OnePass<2, kChunks, kSlots>();
  } else if (rows <= kPassRows) {
    OnePass<4, kChunks, kSlots>();
  } else {
    ManyPasses<kChunks, kSlots>();
  }
}

template <int kSlots>
__device__ __forceinline__ void MatrixOp() {
  const BlockContext& context = Context();
  const MatrixShare& share = context.shares[CurrentOp().matrix];
  if (share.tile_begin == share.tile_end) return;
  if (share.chunk_end - share.chunk_begin == 1) {
    RunMatrix<false, kSlots>();
  } else {
    RunMatrix<true, kSlots>();
  }
}

}  // namespace loopspec::cuda

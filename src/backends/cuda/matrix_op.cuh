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
  __device__ __forceinline__ Epilogue(const Run& run, const MatrixShare& share, int row, bool live)
      : p_(Context().p),
        kind_(share.kind),
        chunk_(share.chunk_begin),
        per_head_((p_.head_dim / 2 + 7) / 8),
        qk_heads_(p_.heads + p_.kv_heads),
        row_(row),
        stamp_(run.stamp),
        live_(live),
        mail_((run.flags & kRunMailOut) != 0) {
    if (!live || (share.kind != MatrixKind::kQkv && share.kind != MatrixKind::kQkvRaw)) return;
    const SetContext& set = Context().set;
    const RowInfo& info = set.infos[row];
    const int plane = info.plane + PlaneOffset(run);
    cell_ = p_.cell_kv +
            (static_cast<size_t>(info.cell) * p_.planes + plane) * p_.kv_heads * 2 * p_.head_stride;
    rope_ = p_.rope + (static_cast<size_t>(set.set) * p_.max_rows + row) * (p_.head_dim / 2);
  }

  // Loads what Store will need, early enough for the latency to pass behind the products.
  __device__ __forceinline__ void Prepare(int tile, int g) {
    if (live_ && kind_ == MatrixKind::kQkv) {
      const int head = Quotient(tile, per_head_);
      const int i = (tile - head * per_head_) * 8 + g;
      if (head < qk_heads_ && i < p_.head_dim / 2) cos_sin_ = __ldcg(rope_ + i);
    }
  }

  // By whole warps; `there`: the thread has an output.
  __device__ __forceinline__ void Store(int tile, int g, float low, float high, bool there) const {
    const bool live = live_ && there;
    if (kind_ == MatrixKind::kQkv) {
      StoreQkv(tile, g, low, high, live);
      return;
    }
    if (kind_ == MatrixKind::kGateUp) {
      StoreGated(tile * 8 + g, Gated(low, high), live);
      return;
    }
    if (!live) return;
    const int i = tile * kTileRows + g;
    switch (kind_) {
      case MatrixKind::kPartial: {
        if (mail_) {
          Mail* out = p_.mail_sums + static_cast<size_t>(row_) * p_.hidden;
          Post(out + SumPlace(i, p_.hidden), low, stamp_);
          Post(out + SumPlace(i + 8, p_.hidden), high, stamp_);
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

  __device__ __forceinline__ void StoreGated(int i, float value, bool live) const {
    const float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    if (!live || i >= p_.ff) return;
    const size_t at = static_cast<size_t>(row_) * p_.ld_ff + InputPlace(i);
    if (!mail_) {
      p_.act_ff[at] = __float2bfloat16(value);
    } else if (i % 2 == 0) {
      Post(p_.mail_ff + at / 2, PackBF16(value, next), stamp_);
    }
  }

  // q and k turned, v as it is; q to its buffer, k and v to the cell, or all by mail and k and v to
  // the cell for later steps.
  __device__ __forceinline__ void StoreQkv(int tile, int g, float low, float high,
                                           bool live) const {
    const int half = p_.head_dim / 2;
    int head = Quotient(tile, per_head_), i = (tile - head * per_head_) * 8 + g, other = i + half;
    if (head >= qk_heads_) {  // sixteen values as they come
      const int value = (tile - qk_heads_ * per_head_) * kTileRows + g;
      head = Quotient(value, p_.head_dim);
      i = value - head * p_.head_dim;
      StoreValue(value, low, live);
      StoreValue(value + 8, high, live);
      other = i + 8;
      head += qk_heads_;
    } else {
      // Fused by hand: every instance of this function has to round alike.
      const float turned = fmaf(low, cos_sin_.x, -__fmul_rn(high, cos_sin_.y));
      high = fmaf(high, cos_sin_.x, __fmul_rn(low, cos_sin_.y));
      low = turned;
      if (live && i < half && !(mail_ && head < p_.heads)) {
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
    if (!live) return;
    const int at = g % 2 == 0 ? i : other - 1;
    const uint32_t pair = g % 2 == 0 ? PackBF16(low, low_there) : PackBF16(high_there, high);
    // q heads, then k and v of each head in turn.
    const int vector = head < p_.heads    ? head
                       : head < qk_heads_ ? p_.heads + (head - p_.heads) * 2
                                          : p_.heads + (head - qk_heads_) * 2 + 1;
    Post(p_.mail_qkv + (static_cast<size_t>(row_) * (p_.heads + 2 * p_.kv_heads) + vector) * half +
             at / 2,
         pair, stamp_);
  }

  __device__ __forceinline__ void StoreRaw(int tile, int g, float low, float high) const {
    const int half = p_.head_dim / 2;
    const int head = Quotient(tile, per_head_);
    if (head >= qk_heads_) {
      const int i = (tile - qk_heads_ * per_head_) * kTileRows + g;
      StoreValue(i, low, true);
      StoreValue(i + 8, high, true);
      return;
    }
    const int i = (tile - head * per_head_) * 8 + g;
    if (i >= half) return;
    float* out =
        p_.qk_raw + static_cast<size_t>(row_) * (p_.q_size + p_.kv_size) + head * p_.head_dim;
    out[i] = low;
    out[i + half] = high;
  }

  __device__ __forceinline__ void StoreValue(int i, float value, bool live) const {
    if (!live || i >= p_.kv_size) return;
    const int head = Quotient(i, p_.head_dim);
    cell_[(head * 2 + 1) * p_.head_stride + i - head * p_.head_dim] = __float2bfloat16(value);
  }

  const DecodeParams& p_;
  MatrixKind kind_;
  int chunk_;  // which partial sum
  int per_head_, qk_heads_;
  int row_;
  uint32_t stamp_;
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

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) b[i][n] = make_uint4(0, 0, 0, 0);
    }
  }
  // `from`: row g of the rows, the lane's first element.
  __device__ __forceinline__ void Load(const bf16* from, int ld, int rows) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n * 8 + g >= rows) continue;
      const bf16* row = from + static_cast<size_t>(n) * 8 * ld;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) b[i][n] = LoadCoherent16(row + i * 32);
    }
  }
};

// kPieces parts of pieces, one slot each, added in two running sums apiece: an instruction need not
// wait for the last one. Weights are read from the slot well before they are multiplied.
template <int kPieces, int kTiles, typename Ring>
__device__ __forceinline__ void MultiplyBlocks(const uint32_t (&slots)[kPieces],
                                               const BlockInputs<kTiles>& in,
                                               float (&c)[kPieces][kTiles][2][4]) {
  constexpr int kSteps = kBlockK / 16;
  constexpr int kEarly = kTiles == 1 ? 8 : 4;  // as far as registers allow
  uint32_t a[kEarly][kPieces][4];
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) Ring::Read(slots[piece], i, a[i][piece]);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    uint32_t(&now)[kPieces][4] = a[i % kEarly];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4& b = in.b[i / 2][n];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        Mma(c[piece][n][i % 2], now[piece][0], now[piece][1], now[piece][2], now[piece][3],
            i % 2 == 0 ? b.x : b.z, i % 2 == 0 ? b.y : b.w);
      }
    }
    if (i + kEarly < kSteps) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        Ring::Read(slots[piece], i + kEarly, now[piece]);
    }
  }
}

// Which outputs a thread adds up when the warps' sums meet: columns c and c + 8 of one row, of one
// piece of the group.
template <int kRows>
struct OutputOfThread {
  // Pieces whose sums meet at once. A single row leaves half of the room to its inputs.
  static constexpr int kGroup = kRows == 1 ? kPassRows / 2 : kPassRows / kRows;
  int piece = static_cast<int>(threadIdx.x) / (8 * kRows);
  int row = static_cast<int>(threadIdx.x) % (8 * kRows) / 8;
  int column = static_cast<int>(threadIdx.x) % 8;
  // Of the first lane: what follows is done by whole warps.
  int first_piece = static_cast<int>(threadIdx.x & ~31u) / (8 * kRows);
};
template <int kRows>
__device__ __forceinline__ float* SumsOf(int piece, int warp, int row) {
  return Sums() + ((piece * kWarps + warp) * kRows + row) * kSumStride;
}
template <int kRows, int kTiles>
__device__ __forceinline__ void StoreSums(int piece, const float (&c)[kTiles][2][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int row = n * 8 + 2 * t;
    float* at = SumsOf<kRows>(piece, static_cast<int>(threadIdx.x / 32), row) + g;
    if (row < kRows) {
      at[0] = c[n][0][0] + c[n][1][0];
      at[8] = c[n][0][2] + c[n][1][2];
    }
    if (row + 1 < kRows) {
      at[kSumStride] = c[n][0][1] + c[n][1][1];
      at[kSumStride + 8] = c[n][0][3] + c[n][1][3];
    }
  }
}
template <int kRows>
__device__ __forceinline__ float2 AddSums(int piece, const OutputOfThread<kRows>& mine) {
  const float* at = SumsOf<kRows>(piece, 0, mine.row) + mine.column;
  float2 sum = make_float2(at[0], at[8]);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {  // warps without a block of k have left zeros
    sum.x += at[w * kRows * kSumStride];
    sum.y += at[w * kRows * kSumStride + 8];
  }
  return sum;
}

// Where the inputs of a matrix come from.
enum class Inputs { kMemory, kMail, kOwn };

// A warp's way through the block's share of an operation, for rows [first_row, first_row + rows),
// at most kRows of them.
template <int kRows, Inputs kInputs, int kSlots>
class MatrixPass {
 public:
  static constexpr int kTiles = (kRows + 7) / 8;

  __device__ __forceinline__ MatrixPass(const Run& run, int first_row, int rows)
      : rows_(rows), stamp_(run.stamp - 1) {
    const BlockContext& context = Context();
    const Op& op = OpOf(run);
    share_ = context.shares[op.matrix];
    input_ = Input(context.p, op.input, ld_);
    const size_t first =
        static_cast<size_t>(first_row + (Takes() ? threadIdx.x % 32 / 4 : 0)) * ld_ +
        Warp() * kBlockK + threadIdx.x % 4 * 8;
    if constexpr (kInputs == Inputs::kMail) {
      single_from_ = op.input == Activation::kFeedForward ? context.p.mail_ff
                     : op.input == Activation::kAttention ? context.p.mail_attention
                                                          : context.p.mail_hidden;
      mail_ = single_from_ + first / 2;
    }
    input_ += first;
  }

  // The inputs of a chunk, before its tiles. Those that come by mail are asked for first.
  __device__ __forceinline__ void Ask(int chunk) {
    if constexpr (kInputs == Inputs::kMail) {
      if constexpr (kRows == 1) {
        single_.Ask(SingleIn(chunk));
      } else {
        box_.Ask(PlaceIn(chunk));
      }
    }
  }
  __device__ __forceinline__ void Load(int chunk) {
    if constexpr (kInputs == Inputs::kMail && kRows == 1) {
      // All lanes ask, and the four that hold the row take what has come from shared memory.
      single_.Wait(stamp_, SingleIn(chunk));
      __syncwarp();
      const uint4 v = single_.Values(0);
      auto* to = reinterpret_cast<uint2*>(OwnInputs() + Warp() * kBlockK) + threadIdx.x % 32;
      to[0] = make_uint2(v.x, v.y);
      to[32] = make_uint2(v.z, v.w);
      __syncwarp();
      TakeOwn(true);
    } else if constexpr (kInputs == Inputs::kMail) {
      box_.Wait(stamp_, PlaceIn(chunk));
#pragma unroll
      for (int i = 0; i < BlockInputs<1>::kSteps; ++i)
        in_.b[i][0] = Takes() ? box_.Values(i) : make_uint4(0, 0, 0, 0);
    } else if constexpr (kInputs == Inputs::kOwn) {
      TakeOwn(HasBlock(chunk));
    } else {
      in_.Clear();
      in_.Load(input_ + chunk * kChunkK, ld_, HasBlock(chunk) ? rows_ : 0);
    }
  }
  // The next kPieces tiles of a chunk; their sums are left at `piece` and the following.
  template <int kPieces>
  __device__ __forceinline__ void Multiply(int chunk, int piece) {
    float c[kPieces][kTiles][2][4] = {};
    if (HasBlock(chunk)) {
      uint32_t slots[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) slots[i] = ring_.Wait(i);
      MultiplyBlocks<kPieces, kTiles, Ring<kSlots>>(slots, in_, c);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) ring_.Refill();
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) StoreSums<kRows>(piece + i, c[i]);
  }
  __device__ __forceinline__ void Save() const {
    ring_.Save();
  }

  __device__ __forceinline__ const MatrixShare& share() const {
    return share_;
  }

 private:
  static __device__ __forceinline__ int Warp() {
    return static_cast<int>(threadIdx.x / 32);
  }
  __device__ __forceinline__ bool HasBlock(int chunk) const {
    return chunk * kWarps + Warp() < share_.blocks;
  }
  // From the block's own inputs, a single row.
  __device__ __forceinline__ void TakeOwn(bool there) {
    const uint4* from =
        reinterpret_cast<const uint4*>(OwnInputs() + Warp() * kBlockK) + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < BlockInputs<1>::kSteps; ++i)
      in_.b[i][0] = Takes() && there ? from[i * 4] : make_uint4(0, 0, 0, 0);
  }
  // The pairs of a single row that a lane asks for: two, and two half a block of k on.
  __device__ __forceinline__ auto SingleIn(int chunk) const {
    const int block = HasBlock(chunk) ? chunk * kWarps + Warp() : 0;
    const Mail* from = single_from_ + block * (kBlockK / 2) + threadIdx.x % 32 * 2;
    return [from](int) { return from; };
  }
  // Whether the lane holds a row that there is.
  __device__ __forceinline__ bool Takes() const {
    return static_cast<int>(threadIdx.x % 32 / 4) < rows_;
  }
  // Lanes without a row and warps without a block of k wait for the first row's first.
  __device__ __forceinline__ auto PlaceIn(int chunk) const {
    const int block = HasBlock(chunk) ? chunk * kWarps : -Warp();
    const Mail* from = mail_ + block * (kBlockK / 2);
    return [from](int i) { return from + i * 16; };
  }

  MatrixShare share_;
  int rows_, ld_;
  uint32_t stamp_;  // of mail
  const bf16* input_;
  const Mail* mail_;
  BlockInputs<kTiles> in_;
  MailBox<BlockInputs<1>::kSteps> box_;
  const Mail* single_from_;
  MailBox<1> single_{kBlockK / 4};
  Ring<kSlots> ring_;
};

// The loops are short and not unrolled, and decisions inside them few: the kernel's parts are run
// through once per layer, so what is not in the instruction cache takes longer to fetch than to
// execute, and conditions that are kept for later end up in memory.

// Tiles of one chunk; up to kGroup of them before the warps' sums meet.
template <int kRows, Inputs kInputs, int kSlots>
__device__ __forceinline__ void RunTiles(const Run& run, int first_row, int rows) {
  // Two at a time where they are in the ring together and leave the registers for it.
  constexpr int kPieces = kRows <= 8 && kSlots >= 2 ? 2 : 1;
  MatrixPass<kRows, kInputs, kSlots> pass(run, first_row, rows);
  if (pass.share().tile_begin == pass.share().tile_end) return;
  const int chunk = pass.share().chunk_begin, end = pass.share().tile_end;
  pass.Ask(chunk);
  const OutputOfThread<kRows> mine;
  Epilogue epilogue(run, pass.share(), first_row + mine.row, mine.row < rows);
  epilogue.Prepare(pass.share().tile_begin + mine.piece, mine.column);
  pass.Load(chunk);
#pragma unroll 1
  for (int first = pass.share().tile_begin; first < end; first += mine.kGroup) {
    const int count = min(mine.kGroup, end - first);
    int piece = 0;
#pragma unroll 1
    for (; piece + kPieces <= count; piece += kPieces)
      pass.template Multiply<kPieces>(chunk, piece);
    if (kPieces > 1 && piece < count) pass.template Multiply<1>(chunk, piece);
    __syncthreads();
    if (mine.first_piece < count) {
      const float2 sum = AddSums<kRows>(mine.piece, mine);
      epilogue.Store(first + mine.piece, mine.column, sum.x, sum.y, mine.piece < count);
    }
    // The last sums are safe until the next operation or pass, which begins with a barrier.
    if (first + mine.kGroup < end) {
      epilogue.Prepare(first + mine.kGroup + mine.piece, mine.column);
      __syncthreads();
    }
  }
  pass.Save();
}

// Several chunks of each tile; their sums are added in order.
template <int kRows, Inputs kInputs, int kSlots>
__device__ __forceinline__ void RunChunks(const Run& run, int first_row, int rows) {
  MatrixPass<kRows, kInputs, kSlots> pass(run, first_row, rows);
  if (pass.share().tile_begin == pass.share().tile_end) return;
  const int begin = pass.share().chunk_begin, end = pass.share().chunk_end;
  pass.Ask(begin);
  const OutputOfThread<kRows> mine;
  Epilogue epilogue(run, pass.share(), first_row + mine.row, mine.row < rows);
#pragma unroll 1
  for (int tile = pass.share().tile_begin; tile < pass.share().tile_end; ++tile) {
    epilogue.Prepare(tile, mine.column);
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int first = begin; first < end; first += mine.kGroup) {
      const int count = min(mine.kGroup, end - first);
#pragma unroll 1
      for (int piece = 0; piece < count; ++piece) {
        pass.Load(first + piece);
        if (first + piece + 1 < end) {
          pass.Ask(first + piece + 1);
        } else if (tile + 1 < pass.share().tile_end) {
          pass.Ask(begin);
        }
        pass.template Multiply<1>(first + piece, piece);
      }
      __syncthreads();
      if (mine.piece == 0) {
#pragma unroll 1
        for (int piece = 0; piece < count; ++piece) {
          const float2 part = AddSums<kRows>(piece, mine);
          sum = first + piece == begin ? part : make_float2(sum.x + part.x, sum.y + part.y);
        }
      }
      if (first + mine.kGroup < end || tile + 1 < pass.share().tile_end) __syncthreads();
    }
    if (mine.first_piece == 0) epilogue.Store(tile, mine.column, sum.x, sum.y, mine.piece == 0);
  }
  pass.Save();
}

template <int kRows, bool kChunks, Inputs kInputs, int kSlots>
__device__ __forceinline__ void RunShare(const Run& run, int first_row, int rows) {
  if constexpr (kChunks) {
    RunChunks<kRows, kInputs, kSlots>(run, first_row, rows);
  } else {
    RunTiles<kRows, kInputs, kSlots>(run, first_row, rows);
  }
}

// Functions of their own, so that each has all registers.
template <int kRows, bool kChunks, int kSlots>
__device__ __noinline__ void OnePass() {
  const Run run = CurrentRun();
  const int rows = Context().set.rows;
  if (kRows == 1 && !kChunks && (run.flags & kRunOwnInputs) != 0) {
    RunShare<kRows, kChunks, Inputs::kOwn, kSlots>(run, 0, rows);
  } else if (kRows <= kNarrowRows && (run.flags & kRunMailIn) != 0) {
    RunShare<kRows, kChunks, Inputs::kMail, kSlots>(run, 0, rows);
  } else {
    RunShare<kRows, kChunks, Inputs::kMemory, kSlots>(run, 0, rows);
  }
}
// More rows than one pass over the weights serves.
template <bool kChunks, int kSlots>
__device__ __noinline__ void ManyPasses() {
  const Run run = CurrentRun();
#pragma unroll 1
  for (int first = 0; first < Context().set.rows; first += kPassRows) {
    if (first > 0) {
      CatchUp<kSlots>(static_cast<int>(threadIdx.x / 32));
      __syncthreads();
    }
    RunShare<kPassRows, kChunks, Inputs::kMemory, kSlots>(
        run, first, min(kPassRows, Context().set.rows - first));
  }
}

template <bool kChunks, int kSlots>
__device__ __forceinline__ void RunMatrix() {
  const int rows = Context().set.rows;
  if (rows == 1) {
    OnePass<1, kChunks, kSlots>();
  } else if (rows <= 4) {
    OnePass<4, kChunks, kSlots>();
  } else if (rows <= 8) {
    OnePass<8, kChunks, kSlots>();
  } else if (rows <= 16) {
    OnePass<16, kChunks, kSlots>();
  } else if (rows <= kPassRows) {
    OnePass<kPassRows, kChunks, kSlots>();
  } else {
    ManyPasses<kChunks, kSlots>();
  }
}

// `flags`: of the operation.
template <int kSlots>
__device__ __forceinline__ void MatrixOp(int flags) {
  if ((flags & kOpChunks << (Context().set.narrow ? 1 : 0)) == 0) {
    RunMatrix<false, kSlots>();
  } else {
    RunMatrix<true, kSlots>();
  }
}

}  // namespace loopspec::cuda

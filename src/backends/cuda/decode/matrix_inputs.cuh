// The batch side of a matrix product: a warp's parts of all rows for one block of k, in registers
// (and in shared memory, where these do not suffice), from memory, from mail or from what the block
// made for itself.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/decode/input_layout.cuh"
#include "backends/cuda/decode/mail.cuh"
#include "backends/cuda/program/step_types.h"

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

// A warp's inputs for one block of k and up to 8 kTiles rows: its parts of operand `b`. The last
// kShared tiles of eight rows are not kept in registers but in shared memory, each lane's own.
template <int kTiles, int kShared = 0>
struct BlockInputs {
  static constexpr int kSteps = kBlockK / 32, kHeld = kTiles - kShared;
  static constexpr int kSharedBytes = kSteps * kShared * 32 * static_cast<int>(sizeof(uint4));
  uint4 b[kSteps][kHeld];
  uint32_t place;  // of the lane's parts in shared memory

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < kHeld; ++n) b[i][n] = make_uint4(0, 0, 0, 0);
    }
  }
  // `from`: row g of the rows, the lane's first element. WaitForCopies before what is in shared
  // memory is used. Those in registers in the order in which products take them: the first begin
  // before the last are there.
  __device__ __forceinline__ void Load(const bf16* from, int rows) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = kHeld; n < kTiles; ++n) {
        if (n * 8 + g < rows) {
          CopyAsync16(Place(i, n - kHeld), from + i * kInputGroupStride + n * 8 * kInputGroup);
        } else {
          StoreShared16(Place(i, n - kHeld), make_uint4(0, 0, 0, 0));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < kHeld; ++n) {
        LoadCoherent16(n * 8 + g < rows, from + i * kInputGroupStride + n * 8 * kInputGroup,
                       b[i][n]);
      }
    }
  }
  __device__ __forceinline__ uint32_t Place(int i, int n) const {
    return place + static_cast<uint32_t>((i * kShared + n) * 32) * sizeof(uint4);
  }
  __device__ __forceinline__ uint4 Shared(int i, int n) const {
    return LoadShared16(Place(i, n));
  }
};

// Where the inputs of a matrix come from.
enum class Inputs { kMemory, kMail, kOwn };

// A warp's inputs for one block of k of each chunk, of rows [first_row, first_row + rows). What
// comes by mail can be asked for ahead of Load, which waits for it.
template <int kRows, Inputs kInputs>
class InputSource;

// As row operations or matrices left them in memory.
template <int kRows>
class InputSource<kRows, Inputs::kMemory> {
 public:
  static constexpr int kTiles = (kRows + 7) / 8;

  // `first_row`: the first of a pass.
  __device__ __forceinline__ InputSource(const Run& run, int first_row, int rows) : rows_(rows) {
    int ld;
    input_ = Input(Context().p, OpOf(run).input, ld);
    input_ += static_cast<size_t>(first_row) * ld + threadIdx.x / 32 * (kBlockK * kPassRows) +
              threadIdx.x % 32 / 4 * kInputGroup + threadIdx.x % 4 * 8;
  }
  __device__ __forceinline__ void Ask(int, bool) {}
  template <int kShared>
  __device__ __forceinline__ void Load(int chunk, bool has_block,
                                       BlockInputs<kTiles, kShared>& in) {
    in.Clear();
    in.Load(input_ + chunk * (kChunkK * kPassRows), has_block ? rows_ : 0);
  }

 private:
  int rows_;
  const bf16* input_;
};

// A single row from the block's own shared memory.
__device__ __forceinline__ void TakeOwn(bool there, BlockInputs<1>& in) {
  const uint4* from =
      reinterpret_cast<const uint4*>(OwnInputs() + threadIdx.x / 32 * kBlockK) + threadIdx.x % 4;
  there = there && threadIdx.x % 32 < 4;  // the lanes that hold the row
#pragma unroll
  for (int i = 0; i < BlockInputs<1>::kSteps; ++i)
    in.b[i][0] = there ? from[i * 4] : make_uint4(0, 0, 0, 0);
}
template <int kRows>
class InputSource<kRows, Inputs::kOwn> {
 public:
  __device__ __forceinline__ InputSource(const Run&, int, int) {}
  __device__ __forceinline__ void Ask(int, bool) {}
  __device__ __forceinline__ void Load(int, bool has_block, BlockInputs<1>& in) {
    TakeOwn(has_block, in);
  }
};

__device__ __forceinline__ const Mail* MailedInput(const DecodeParams& p, Activation which) {
  return which == Activation::kFeedForward ? p.mail_ff
         : which == Activation::kAttention ? p.mail_attention
                                           : p.mail_hidden;
}

// Up to eight rows by mail, each lane its own part.
template <int kRows>
class InputSource<kRows, Inputs::kMail> {
 public:
  __device__ __forceinline__ InputSource(const Run& run, int first_row, int rows)
      : stamp_(run.stamp - 1), there_(static_cast<int>(threadIdx.x % 32 / 4) < rows) {
    int ld;
    (void)Input(Context().p, OpOf(run).input, ld);
    from_ = MailedInput(Context().p, OpOf(run).input) +
            static_cast<size_t>(first_row + (there_ ? threadIdx.x % 32 / 4 : 0)) * (ld / 2) +
            threadIdx.x % 4 * 4;
  }
  __device__ __forceinline__ void Ask(int chunk, bool has_block) {
    box_.Ask(Places(chunk, has_block));
  }
  __device__ __forceinline__ void Load(int chunk, bool has_block, BlockInputs<1>& in) {
    box_.Wait(stamp_, Places(chunk, has_block));
#pragma unroll
    for (int i = 0; i < BlockInputs<1>::kSteps; ++i)
      in.b[i][0] = there_ ? box_.Values(i) : make_uint4(0, 0, 0, 0);
  }

 private:
  // Lanes without a row wait for the first one's, warps without a block of k for the first block.
  __device__ __forceinline__ auto Places(int chunk, bool has_block) const {
    const int block = has_block ? chunk * kWarps + static_cast<int>(threadIdx.x / 32) : 0;
    const Mail* from = from_ + block * (kBlockK / 2);
    return [from](int i) { return from + i * 16; };
  }

  uint32_t stamp_;
  bool there_;
  const Mail* from_;
  MailBox<BlockInputs<1>::kSteps> box_;
};

// A single row by mail: all lanes ask, and the four that hold the row take what has come from
// shared memory.
template <>
class InputSource<1, Inputs::kMail> {
 private:
  // Two pairs, and two half a block of k on.
  __device__ __forceinline__ auto Places(int chunk, bool has_block) const {
    const int block = has_block ? chunk * kWarps + static_cast<int>(threadIdx.x / 32) : 0;
    const Mail* from = from_ + block * (kBlockK / 2) + threadIdx.x % 32 * 2;
    return [from](int) { return from; };
  }

 public:
  __device__ __forceinline__ InputSource(const Run& run, int, int)
      : stamp_(run.stamp - 1), from_(MailedInput(Context().p, OpOf(run).input)) {}
  __device__ __forceinline__ void Ask(int chunk, bool has_block) {
    box_.Ask(Places(chunk, has_block));
  }
  __device__ __forceinline__ void Load(int chunk, bool has_block, BlockInputs<1>& in) {
    box_.Wait(stamp_, Places(chunk, has_block));
    __syncwarp();
    const uint4 v = box_.Values(0);
    auto* to =
        reinterpret_cast<uint2*>(OwnInputs() + threadIdx.x / 32 * kBlockK) + threadIdx.x % 32;
    to[0] = make_uint2(v.x, v.y);
    to[32] = make_uint2(v.z, v.w);
    __syncwarp();
    TakeOwn(true, in);
  }

 private:
  uint32_t stamp_;
  const Mail* from_;
  MailBox<1> box_{kBlockK / 4};
};

}  // namespace loopspec::cuda

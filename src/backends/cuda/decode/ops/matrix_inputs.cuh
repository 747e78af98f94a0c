// The batch side of a matrix product: a warp's parts of all rows for one block of k, in registers
// (and in shared memory where these do not suffice). They come from memory, through the exchange,
// or from what the CTA made for itself.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"

namespace loopspec::cuda {

__host__ __device__ inline const bf16* Input(const DecodeParams& p, Activation which, int& ld) {
  switch (which) {
    case Activation::kHidden:
      ld = p.shapes.ld_hidden;
      return p.buffers.act_hidden;
    case Activation::kAttention:
      ld = p.shapes.ld_attention;
      return p.buffers.act_attention;
    case Activation::kFeedForward:
      ld = p.shapes.ld_ff;
      return p.buffers.act_ff;
    default:
      ld = p.shapes.ld_adapter;
      return p.buffers.act_adapter;
  }
}

// A warp's inputs for one block of k and up to 8 kTiles rows: its parts of operand `b`. The last
// kShared tiles of eight rows are held in shared memory instead of registers; each lane has its
// own.
template <int kTiles, int kShared = 0>
struct KBlockInputs {
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
  // `from`: row g, the lane's first element. Call WaitForCopies before using what is in shared
  // memory. Registers are loaded in the order in which the products use them, so that these start
  // before the last load is complete.
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

enum class Inputs { kMemory, kExchange, kLocal };

// Where a warp's inputs come from, for its block of k of each chunk and rows [first_row, first_row
// + rows). Request starts to receive what comes through the exchange; Load waits for it.
template <int kRows, Inputs kInputs>
class InputSource;

// Memory, written by row operations or matrices.
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
  __device__ __forceinline__ void Request(int, bool) {}
  template <int kShared>
  __device__ __forceinline__ void Load(int chunk, bool has_k_block,
                                       KBlockInputs<kTiles, kShared>& in) {
    in.Clear();
    in.Load(input_ + chunk * (kChunkK * kPassRows), has_k_block ? rows_ : 0);
  }

 private:
  int rows_;
  const bf16* input_;
};

// A single row from the CTA's own shared memory.
__device__ __forceinline__ void TakeLocal(bool there, KBlockInputs<1>& in) {
  const uint4* from =
      reinterpret_cast<const uint4*>(LocalInputs() + threadIdx.x / 32 * kBlockK) + threadIdx.x % 4;
  there = there && threadIdx.x % 32 < 4;  // the lanes that hold the row
#pragma unroll
  for (int i = 0; i < KBlockInputs<1>::kSteps; ++i)
    in.b[i][0] = there ? from[i * 4] : make_uint4(0, 0, 0, 0);
}
template <int kRows>
class InputSource<kRows, Inputs::kLocal> {
 public:
  __device__ __forceinline__ InputSource(const Run&, int, int) {}
  __device__ __forceinline__ void Request(int, bool) {}
  __device__ __forceinline__ void Load(int, bool has_k_block, KBlockInputs<1>& in) {
    TakeLocal(has_k_block, in);
  }
};

__device__ __forceinline__ const LLWord* ExchangedInput(const DecodeParams& p, Activation which) {
  return which == Activation::kFeedForward ? p.exchange.ff
         : which == Activation::kAttention ? p.exchange.attention
                                           : p.exchange.hidden;
}

// Up to eight rows through the exchange; each lane receives its own part.
template <int kRows>
class InputSource<kRows, Inputs::kExchange> {
 public:
  __device__ __forceinline__ InputSource(const Run& run, int first_row, int rows)
      : epoch_(run.epoch - 1), there_(static_cast<int>(threadIdx.x % 32 / 4) < rows) {
    int ld;
    (void)Input(Context().p, OpOf(run).input, ld);
    from_ = ExchangedInput(Context().p, OpOf(run).input) +
            static_cast<size_t>(first_row + (there_ ? threadIdx.x % 32 / 4 : 0)) * (ld / 2) +
            threadIdx.x % 4 * 4;
  }
  __device__ __forceinline__ void Request(int chunk, bool has_k_block) {
    receiver_.Request(Places(chunk, has_k_block));
  }
  __device__ __forceinline__ void Load(int chunk, bool has_k_block, KBlockInputs<1>& in) {
    receiver_.Wait(epoch_, Places(chunk, has_k_block));
#pragma unroll
    for (int i = 0; i < KBlockInputs<1>::kSteps; ++i)
      in.b[i][0] = there_ ? receiver_.Values(i) : make_uint4(0, 0, 0, 0);
  }

 private:
  // Lanes without a row receive the first row's part, warps without a block of k the first block.
  __device__ __forceinline__ auto Places(int chunk, bool has_k_block) const {
    const int block = has_k_block ? chunk * kWarps + static_cast<int>(threadIdx.x / 32) : 0;
    const LLWord* from = from_ + block * (kBlockK / 2);
    return [from](int i) { return from + i * 16; };
  }

  uint32_t epoch_;
  bool there_;
  const LLWord* from_;
  Receiver<KBlockInputs<1>::kSteps> receiver_;
};

// A single row through the exchange: all lanes receive parts of it, and the four that hold the row
// take them from shared memory.
template <>
class InputSource<1, Inputs::kExchange> {
 private:
  // Two pairs, and another two half a block of k further.
  __device__ __forceinline__ auto Places(int chunk, bool has_k_block) const {
    const int block = has_k_block ? chunk * kWarps + static_cast<int>(threadIdx.x / 32) : 0;
    const LLWord* from = from_ + block * (kBlockK / 2) + threadIdx.x % 32 * 2;
    return [from](int) { return from; };
  }

 public:
  __device__ __forceinline__ InputSource(const Run& run, int, int)
      : epoch_(run.epoch - 1), from_(ExchangedInput(Context().p, OpOf(run).input)) {}
  __device__ __forceinline__ void Request(int chunk, bool has_k_block) {
    receiver_.Request(Places(chunk, has_k_block));
  }
  __device__ __forceinline__ void Load(int chunk, bool has_k_block, KBlockInputs<1>& in) {
    receiver_.Wait(epoch_, Places(chunk, has_k_block));
    __syncwarp();
    const uint4 v = receiver_.Values(0);
    auto* to =
        reinterpret_cast<uint2*>(LocalInputs() + threadIdx.x / 32 * kBlockK) + threadIdx.x % 32;
    to[0] = make_uint2(v.x, v.y);
    to[32] = make_uint2(v.z, v.w);
    __syncwarp();
    TakeLocal(true, in);
  }

 private:
  uint32_t epoch_;
  const LLWord* from_;
  Receiver<1> receiver_{kBlockK / 4};
};

}  // namespace loopspec::cuda

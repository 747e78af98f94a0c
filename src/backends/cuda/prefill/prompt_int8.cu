#include "backends/cuda/prefill/prompt_int8.h"

#include <type_traits>

#include "backends/cuda/device/kv_int8.cuh"
#include "backends/cuda/prefill/follow.cuh"

namespace loopspec::cuda {
namespace {

constexpr int kThreadsOfBlock = 256;
constexpr int kVectorsOfBlock = kThreadsOfBlock / 4;  // four lanes for each key or value

__device__ __forceinline__ uint32_t Scaled(uint32_t codes, int first, float scale) {
  const auto code = [&](int i) { return static_cast<float>(static_cast<int8_t>(codes >> 8 * i)); };
  return PackBF16(__fmul_rn(code(first), scale), __fmul_rn(code(first + 1), scale));
}
// The lane's parts of a key as bf16.
template <int kHead>
__device__ __forceinline__ void StoreRounded(const uint32_t (&codes)[Int8Block<kHead>::kRegisters],
                                             float scale, bf16* to) {
#pragma unroll
  for (int c = 0; c < kHead / 32; ++c)
    *reinterpret_cast<uint4*>(to + c * 32 + threadIdx.x % 4 * 8) =
        make_uint4(Scaled(codes[2 * c], 0, scale), Scaled(codes[2 * c], 2, scale),
                   Scaled(codes[2 * c + 1], 0, scale), Scaled(codes[2 * c + 1], 2, scale));
}

// Where vector (KV head, key or value) of position `slot` of page `page` is, as bf16 and as int8.
template <int kHead>
struct VectorPlace {
  using Block = Int8Block<kHead>;
  bf16* plain;
  std::byte *codes, *scales;  // of the split
  int which, position;        // in it

  __device__ __forceinline__ VectorPlace(const PromptMemory& memory, const Int8Memory& pages,
                                         int plane, int page, int slot, int vector) {
    const int heads = memory.kv_heads;
    plain = memory.pages +
            ((static_cast<size_t>(page) * 2 * heads + vector) * kPageSize + slot) * kHead;
    std::byte* head =
        reinterpret_cast<std::byte*>(pages.pages) +
        ((static_cast<size_t>(pages.page_list[page]) * pages.planes + plane) * heads + vector / 2) *
            Block::kHeadBytes;
    codes = head + Block::CodesOf(slot);
    scales = head + Block::ScalesOf(slot);
    which = vector % 2;
    position = slot % Block::kSplit;
  }
};

template <int kHead>
__global__ void __launch_bounds__(kThreadsOfBlock)
    RoundKernel(const PromptRow* rows, int count, const __grid_constant__ PromptMemory memory,
                const __grid_constant__ Int8Memory pages, int plane) {
  using Block = Int8Block<kHead>;
  FollowKernelBefore();
  const int vectors = 2 * memory.kv_heads;
  const int at = static_cast<int>(blockIdx.x) * kVectorsOfBlock + static_cast<int>(threadIdx.x) / 4;
  const bool there = at < count * vectors;
  const int i = there ? at : 0;
  const PromptRow row = rows[i / vectors];
  const int page =
      static_cast<int>(row.place / (static_cast<int64_t>(vectors) * kPageSize * kHead));
  const VectorPlace<kHead> place(memory, pages, plane, page, row.position % kPageSize, i % vectors);
  uint4 parts[Block::kParts];
#pragma unroll
  for (int c = 0; c < Block::kParts; ++c)
    parts[c] = *reinterpret_cast<const uint4*>(place.plain + c * 32 + threadIdx.x % 4 * 8);
  uint32_t codes[Block::kRegisters];
  const float scale = RoundToCodes(parts, codes);
  if (!there) return;
  Block::Store(place.codes, place.scales, place.which, place.position, codes, scale);
  StoreRounded<kHead>(codes, scale, place.plain);
}

// A block of threads for each page and vector.
template <int kHead>
__global__ void __launch_bounds__(kThreadsOfBlock)
    FetchKernel(const StoredPage* stored, const __grid_constant__ PromptMemory memory,
                const __grid_constant__ Int8Memory pages, int plane) {
  static_assert(kVectorsOfBlock == kPageSize);
  FollowKernelBefore();
  const StoredPage from = stored[blockIdx.y];
  const int slot = static_cast<int>(threadIdx.x) / 4;
  if (slot >= from.positions) return;
  const VectorPlace<kHead> place(memory, pages, plane, from.page, slot,
                                 static_cast<int>(blockIdx.x));
  uint32_t codes[Int8Block<kHead>::kRegisters];
  const float scale =
      Int8Block<kHead>::Load(place.codes, place.scales, place.which, place.position, codes);
  StoreRounded<kHead>(codes, scale, place.plain);
}

template <typename F>  // f(std::integral_constant<int, head_stride>)
void ForHead(int head_stride, F f) {
  switch (head_stride) {
    case 32:
      return f(std::integral_constant<int, 32>());
    case 64:
      return f(std::integral_constant<int, 64>());
    case 128:
      return f(std::integral_constant<int, 128>());
    default:
      return f(std::integral_constant<int, 256>());
  }
}

}  // namespace

void RoundKeys(const PromptRow* rows, int count, const PromptMemory& memory,
               const Int8Memory& pages, int plane, cudaStream_t stream) {
  const int blocks = (count * 2 * memory.kv_heads + kVectorsOfBlock - 1) / kVectorsOfBlock;
  ForHead(memory.head_stride, [&](auto head) {
    Follow(RoundKernel<decltype(head)::value>, dim3(static_cast<unsigned>(blocks)), kThreadsOfBlock,
           stream, rows, count, memory, pages, plane);
  });
}

void FetchKeys(const StoredPage* stored, int count, const PromptMemory& memory,
               const Int8Memory& pages, int plane, cudaStream_t stream) {
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(2 * memory.kv_heads), static_cast<unsigned>(count));
  ForHead(memory.head_stride, [&](auto head) {
    Follow(FetchKernel<decltype(head)::value>, grid, kThreadsOfBlock, stream, stored, memory, pages,
           plane);
  });
}

}  // namespace loopspec::cuda

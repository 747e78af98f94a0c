#include "backends/cuda/device/attention_math.cuh"
#include "backends/cuda/prefill/prompt_attention.h"
#include "kv/ledger.h"

namespace loopspec::cuda {
namespace {

constexpr int kQueries = 16;  // of a warp
constexpr int kThreadsOfBlock = kAttentionTile / kQueries * 32;

// A CTA per tile of queries and head, a warp per 16 of them; the positions' keys and values are
// in their pages.
template <int kHead>
__global__ void __launch_bounds__(kThreadsOfBlock)
    PortableAttentionKernel(const __grid_constant__ AttentionArguments p) {
  const PromptMemory& memory = p.memory;
  const AttentionTile tile = p.tiles[blockIdx.x];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int in_tile = static_cast<int>(threadIdx.x / 32) * kQueries;
  if (in_tile + kQueries <= tile.first || in_tile >= tile.last) return;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (p.buffers.heads / memory.kv_heads);
  const int base = tile.tile * kAttentionTile + in_tile;  // position of the warp's first query
  const int end = tile.tile * kAttentionTile + min(tile.last, in_tile + kQueries);
  const int row = tile.row + in_tile;
  const auto there = [&](int i) { return i >= tile.first && i < tile.last; };

  AttentionState<kHead, kQueries> state;
  state.Clear();
  int seen[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = g + 8 * i;
    seen[i] = base + at;
#pragma unroll
    for (int c = 0; c < kHead / 32; ++c) {
      state.q[c][i] =
          there(in_tile + at)
              ? LoadCoherent16(p.buffers.q +
                               (static_cast<int64_t>(row + at) * p.buffers.heads + head) * kHead +
                               c * 32 + t * 8)
              : make_uint4(0, 0, 0, 0);
    }
  }
  constexpr int kGroups = 4;
  for (int at = 0; at < end; at += 8 * kGroups) {
    const bf16* keys_at[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int position = min(at + 8 * j + g, end - 1);
      const int page = p.pages[tile.pages + position / kPageSize];
      keys_at[j] =
          memory.pages +
          ((static_cast<int64_t>(page) * memory.planes + p.plane) * memory.kv_heads + kv_head) *
              (2 * kPageSize * kHead) +
          position % kPageSize * kHead;
    }
    uint4 keys[kGroups][kHead / 32], values[kGroups][kHead / 32];
    LoadGroups(keys, [&](int j) { return keys_at[j]; });
    LoadGroups(values, [&](int j) { return keys_at[j] + kPageSize * kHead; });
    float weights[kGroups][4];
    state.template Weigh<false>(keys, at, seen, false, p.buffers.attention_scale, weights);
    state.Add(values, weights);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = g + 8 * i;
    if (!there(in_tile + at)) continue;
    bf16* out = p.buffers.attention + static_cast<int64_t>(row + at) * p.buffers.ld_attention +
                head * memory.head_dim;
    const float scale = 1.0f / state.sum[i];
#pragma unroll
    for (int c = 0; c < kHead / 32; ++c) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int element = c * 32 + t * 8 + k;
        if (element < memory.head_dim)
          out[element] = __float2bfloat16(state.Output(c, i, k) * scale);
      }
    }
  }
}

}  // namespace

void PortableAttention(const AttentionArguments& arguments, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.tile_count),
                  static_cast<unsigned>(arguments.buffers.heads));
  switch (arguments.memory.head_stride) {
    case 32:
      PortableAttentionKernel<32><<<grid, kThreadsOfBlock, 0, stream>>>(arguments);
      break;
    case 64:
      PortableAttentionKernel<64><<<grid, kThreadsOfBlock, 0, stream>>>(arguments);
      break;
    case 128:
      PortableAttentionKernel<128><<<grid, kThreadsOfBlock, 0, stream>>>(arguments);
      break;
    default:
      PortableAttentionKernel<256><<<grid, kThreadsOfBlock, 0, stream>>>(arguments);
      break;
  }
  Check(cudaGetLastError(), "launching attention");
}

}  // namespace loopspec::cuda

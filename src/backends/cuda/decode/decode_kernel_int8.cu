// What differs where pages have int8 keys and values: instances of the decode kernel, and commits,
// which round.
#include "backends/cuda/decode/decode_loop.cuh"
#include "backends/cuda/device/kv_int8.cuh"

namespace loopspec::cuda {
namespace {

// Four lanes for each key and value.
template <int kHead>
__global__ void CommitInt8Kernel(const __grid_constant__ DecodeParams p) {
  using Block = Int8Block<kHead>;
  const CommitInfo commit = At<CommitInfo>(p.plan, p.plan->commits_at)[blockIdx.y];
  const int kv_heads = p.shapes.kv_heads, of_plane = 2 * kv_heads,
            total = p.shapes.planes * of_plane;
  // By a plan of keys: where each plane lies.
  const int32_t* places =
      p.plan->commit_places_at == 0
          ? nullptr
          : At<int32_t>(p.plan, p.plan->commit_places_at) + blockIdx.y * p.shapes.planes;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int in_block = static_cast<int>(threadIdx.x) / 4,
            of_block = static_cast<int>(blockDim.x) / 4;
  // All lanes of a warp stay in the loop.
  for (int begin = static_cast<int>(blockIdx.x) * of_block; begin < total;
       begin += static_cast<int>(gridDim.x) * of_block) {
    const int i = min(begin + in_block, total - 1);  // (plane, head, key or value)
    const bf16* from =
        p.buffers.cell_kv + (static_cast<size_t>(commit.cell) * total + i) * kHead + t * 8;
    uint4 parts[Block::kParts];
#pragma unroll
    for (int c = 0; c < Block::kParts; ++c)
      parts[c] = *reinterpret_cast<const uint4*>(from + c * 32);
    uint32_t codes[Block::kRegisters];
    const float scale = RoundToCodes(parts, codes);
    const size_t at = places == nullptr
                          ? (static_cast<size_t>(commit.page) * total + i) / 2
                          : static_cast<size_t>(places[i / of_plane]) * kv_heads + i % of_plane / 2;
    std::byte* head = reinterpret_cast<std::byte*>(p.buffers.page_kv) + at * Block::kHeadBytes;
    const bool there = places == nullptr || places[i / of_plane] >= 0;
    if (begin + in_block < total && there) {
      Block::Store(head + Block::CodesOf(commit.slot), head + Block::ScalesOf(commit.slot), i % 2,
                   commit.slot % Block::kSplit, codes, scale);
    }
  }
}

}  // namespace

bool PrepareInt8Kernels(int limit, DecodeLaunch& launch) {
  return PrepareKernels<true, false>(limit, launch);
}

void LaunchInt8Commits(const DecodeParams& params, int commits, cudaStream_t stream) {
  const auto launch = [&](auto* kernel) {
    kernel<<<dim3(64, static_cast<unsigned>(commits)), 256, 0, stream>>>(params);
    Check(cudaGetLastError(), "launching the commits");
  };
  switch (params.shapes.head_stride) {
    case 32:
      return launch(CommitInt8Kernel<32>);
    case 64:
      return launch(CommitInt8Kernel<64>);
    case 128:
      return launch(CommitInt8Kernel<128>);
    default:
      return launch(CommitInt8Kernel<256>);
  }
}

}  // namespace loopspec::cuda

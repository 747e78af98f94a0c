#include "backends/cuda/device/hopper.cuh"
#include "backends/cuda/prefill/gemm_epilogue.cuh"
#include "backends/cuda/prefill/prompt_attention.h"
#include "base/check.h"

// A CTA takes one tile of queries of one head. Its last warpgroup brings keys and values into a
// ring of stages; the two others have 64 queries each and take turns: while one's products are
// under way, the other does its softmax. Within one, the product with the keys of the next tile is
// under way beside the softmax of this one.

namespace loopspec::cuda {
namespace {

constexpr int kConsumers = 2;
constexpr int kThreadsOfAttention = (kConsumers + 1) * kWarpgroup;
constexpr int kBoxBytes = 64 * 128;                          // 64 rows of 64 elements
constexpr int kSlabBytes = kAttentionTile / 64 * kBoxBytes;  // a tile's positions, 64 elements each
static_assert(kAttentionTile == 2 * kPageSize && kPageSize == 64);

template <int kHead>
struct Layout {
  static constexpr int kSlabs = kHead / 64;
  static constexpr int kTileBytes = kSlabs * kSlabBytes;
  static constexpr int kStages = 2;
  static constexpr int kKeys = kTileBytes;  // after the queries
  static constexpr int kValues = kKeys + kStages * kTileBytes;
  static constexpr int kBarriers = kValues + kStages * kTileBytes;
  static constexpr int kShared = kBarriers + (1 + 4 * kStages) * 8 + 1024;

  uint32_t base;
  __device__ uint32_t queries() const { return base; }
  __device__ uint32_t keys(int stage) const { return base + kKeys + stage * kTileBytes; }
  __device__ uint32_t values(int stage) const { return base + kValues + stage * kTileBytes; }
  __device__ uint32_t queries_full() const { return base + kBarriers; }
  __device__ uint32_t barrier(int kind, int stage) const {
    return base + kBarriers + 8 + (kind * kStages + stage) * 8;
  }
  __device__ uint32_t keys_full(int stage) const { return barrier(0, stage); }
  __device__ uint32_t keys_empty(int stage) const { return barrier(1, stage); }
  __device__ uint32_t values_full(int stage) const { return barrier(2, stage); }
  __device__ uint32_t values_empty(int stage) const { return barrier(3, stage); }
};

// Use n of a ring of two stages.
__device__ __forceinline__ int StageOf(int use) {
  return use & 1;
}
__device__ __forceinline__ uint32_t ParityOf(int use) {
  return (use >> 1) & 1;
}

template <int kHead>
__device__ void Produce(const AttentionArguments& p, const TensorMap& queries,
                        const TensorMap& keys, const AttentionTile& tile, int head,
                        const Layout<kHead>& at) {
  constexpr int kSlabs = Layout<kHead>::kSlabs, kBytes = Layout<kHead>::kTileBytes;
  ExpectBytes(at.queries_full(), kBytes);
  for (int c = 0; c < kSlabs; ++c) {
    CopyBox(at.queries() + c * kSlabBytes, &queries, head * kHead + c * 64, tile.row,
            at.queries_full(), kEvictFirst);
  }
  const int kv_head = head / (p.buffers.heads / p.memory.kv_heads);
  const int32_t* pages = p.pages + tile.pages;
  // Rows of key/value memory: those of a page's keys, then those of its values.
  const auto first_row = [&](int page) {
    return ((page * p.memory.planes + p.plane) * p.memory.kv_heads + kv_head) * (2 * kPageSize);
  };
  // Where there is no second page yet, the first stands in: its positions are not seen there.
  const auto page_at = [&](int i) { return pages[min(i, tile.page_count - 1)]; };
  int row[2] = {first_row(page_at(2 * tile.tile)), first_row(page_at(2 * tile.tile + 1))};
  for (int n = tile.tile, use = 0; n >= 0; --n, ++use) {
    const int stage = StageOf(use);
    int next[2] = {0, 0};
    if (n > 0) {
      next[0] = first_row(page_at(2 * n - 2));
      next[1] = first_row(page_at(2 * n - 1));
    }
    const auto copy = [&](uint32_t to, uint32_t full, uint32_t empty, int offset) {
      WaitBarrier(empty, ParityOf(use) ^ 1);
      ExpectBytes(full, kBytes);
      for (int half = 0; half < 2; ++half) {
        for (int c = 0; c < kSlabs; ++c) {
          CopyBox(to + c * kSlabBytes + half * kBoxBytes, &keys, c * 64, row[half] + offset, full,
                  kEvictNormal);
        }
      }
    };
    copy(at.keys(stage), at.keys_full(stage), at.keys_empty(stage), 0);
    copy(at.values(stage), at.values_full(stage), at.values_empty(stage), kPageSize);
    row[0] = next[0];
    row[1] = next[1];
  }
}

// Barriers of the CTA that say whose turn it is to start products; 0 is __syncthreads.
template <int kConsumer>
__device__ __forceinline__ void AwaitTurn() {
  asm volatile("bar.sync %0, 256;" ::"n"(2 + kConsumer) : "memory");
}
template <int kConsumer>
__device__ __forceinline__ void GiveTurn() {
  asm volatile("bar.arrive %0, 256;" ::"n"(2 + kConsumer) : "memory");
}

constexpr int kScores = kAttentionTile / 2;  // of a thread: two rows, a quarter of the columns

// The two rows' largest scores and sums so far; the sums are of this thread's columns alone.
struct SoftmaxRows {
  float largest[2], sum[2];
};

// Scores become weights; returns what the sums before shrink by.
__device__ __forceinline__ float2 Weigh(float (&s)[kScores], SoftmaxRows& rows, float scale) {
  float shrink[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top = fmaxf(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int j = 1; j < kScores / 4; ++j)
      top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    top = fmaxf(top, rows.largest[i]);
    shrink[i] = Exp2(__fmul_rn(rows.largest[i] - top, scale));
    rows.largest[i] = top;
    const float minus = -__fmul_rn(top, scale);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int e = 2 * i; e < 2 * i + 2; ++e) {
        s[4 * j + e] = Exp2(fmaf(s[4 * j + e], scale, minus));
        sum += s[4 * j + e];
      }
    }
    rows.sum[i] = fmaf(rows.sum[i], shrink[i], sum);
  }
  return make_float2(shrink[0], shrink[1]);
}

// Weights as the product with the values takes them: the fragment of the scores is, rounded, that
// of its first operand.
__device__ __forceinline__ void RoundWeights(const float (&s)[kScores],
                                             uint32_t (&w)[kScores / 8][4]) {
#pragma unroll
  for (int k = 0; k < kScores / 8; ++k) {
    w[k][0] = PackBF16(s[8 * k], s[8 * k + 1]);
    w[k][1] = PackBF16(s[8 * k + 2], s[8 * k + 3]);
    w[k][2] = PackBF16(s[8 * k + 4], s[8 * k + 5]);
    w[k][3] = PackBF16(s[8 * k + 6], s[8 * k + 7]);
  }
}

// kDim: elements of a head; the others, up to kHead, are zero.
template <int kDim, int kHead>
__device__ __forceinline__ void StartScores(const Layout<kHead>& at, int consumer, int stage,
                                            float (&s)[kScores]) {
  BeginProducts();
#pragma unroll
  for (int c = 0; c < Layout<kHead>::kSlabs; ++c) {
    const uint64_t a = DescribeByRows(at.queries() + c * kSlabBytes + consumer * kBoxBytes);
    const uint64_t b = DescribeByRows(at.keys(stage) + c * kSlabBytes);
#pragma unroll
    for (int k = 0; k < (kDim - 64 * c < 64 ? (kDim - 64 * c) / 16 : 4); ++k)
      MultiplyShared(s, a + k * kNextK, b + k * kNextK, c > 0 || k > 0);
  }
  CommitProducts();
}

template <int kHead>
__device__ __forceinline__ void StartOutputs(const Layout<kHead>& at, int stage,
                                             const uint32_t (&w)[kScores / 8][4],
                                             float (&o)[kHead / 2]) {
  const uint64_t b = DescribeByColumns(at.values(stage), kSlabBytes);
  BeginProducts();
#pragma unroll
  for (int k = 0; k < kScores / 8; ++k)  // 16 positions are 16 rows of 128 bytes
    MultiplyRegisters(o, w[k], b + k * (16 * 128 >> 4));
  CommitProducts();
}

template <int kHead, int kDim, int kConsumer>
__device__ __forceinline__ void Consume(const AttentionArguments& p, const AttentionTile& tile,
                                        int head, const Layout<kHead>& at) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32, t = lane % 4;
  const int row = kConsumer * 64 + warp * 16 + lane / 4;  // of the tile; the thread has row + 8 too
  const float scale = p.buffers.attention_scale;
  const auto give_back = [&](uint32_t barrier) {
    if (lane == 0) Arrive(barrier);
  };
  float s[kScores], o[kHead / 2];
  uint32_t w[kScores / 8][4];
  SoftmaxRows rows{{__int_as_float(0xFF800000), __int_as_float(0xFF800000)}, {0.0f, 0.0f}};
#pragma unroll
  for (int i = 0; i < kHead / 2; ++i) o[i] = 0.0f;
  if (kConsumer == 1 && tile.tile > 0) GiveTurn<0>();

  // The tile on the diagonal: positions after the query's own are not seen.
  WaitBarrier(at.queries_full(), 0);
  WaitBarrier(at.keys_full(0), 0);
  PinSums(s);
  StartScores<kDim>(at, kConsumer, 0, s);
  WaitForProducts<0>();
  PinSums(s);
  give_back(at.keys_empty(0));
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (8 * j + 2 * t + e % 2 > row + 8 * (e / 2)) s[4 * j + e] = __int_as_float(0xFF800000);
    }
  }
  Weigh(s, rows, scale);
  RoundWeights(s, w);

  for (int n = tile.tile - 1, use = 1; n >= 0; --n, ++use) {
    WaitBarrier(at.keys_full(StageOf(use)), ParityOf(use));
    AwaitTurn<kConsumer>();
    PinSums(s);
    PinSums(o);
    StartScores<kDim>(at, kConsumer, StageOf(use), s);
    WaitBarrier(at.values_full(StageOf(use - 1)), ParityOf(use - 1));
    StartOutputs(at, StageOf(use - 1), w, o);
    // Turns alternate; after the last turn there is no consumer to hand it to.
    if (kConsumer == 0 || n > 0) GiveTurn<1 - kConsumer>();
    WaitForProducts<1>();
    PinSums(s);
    give_back(at.keys_empty(StageOf(use)));
    const float2 shrink = Weigh(s, rows, scale);
    WaitForProducts<0>();
    PinSums(o);
    give_back(at.values_empty(StageOf(use - 1)));
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      o[4 * j] = __fmul_rn(o[4 * j], shrink.x);
      o[4 * j + 1] = __fmul_rn(o[4 * j + 1], shrink.x);
      o[4 * j + 2] = __fmul_rn(o[4 * j + 2], shrink.y);
      o[4 * j + 3] = __fmul_rn(o[4 * j + 3], shrink.y);
    }
    RoundWeights(s, w);
  }
  WaitBarrier(at.values_full(StageOf(tile.tile)), ParityOf(tile.tile));
  PinSums(o);
  StartOutputs(at, StageOf(tile.tile), w, o);
  WaitForProducts<0>();
  PinSums(o);

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = rows.sum[i];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const float share = __fdividef(1.0f, sum);
    const int in_tile = row + 8 * i;
    const bool there = in_tile >= tile.first && in_tile < tile.last;
    bf16* to = p.buffers.attention +
               static_cast<int64_t>(tile.row + in_tile) * p.buffers.ld_attention + head * kDim;
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 4) {
      uint32_t v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* x = &o[4 * (j + k) + 2 * i];
        v[k] = PackBF16(__fmul_rn(x[0], share), __fmul_rn(x[1], share));
      }
      const uint4 group = GatherGroups(v[0], v[1], v[2], v[3]);
      if (there) *reinterpret_cast<uint4*>(to + 8 * (j + t)) = group;
    }
  }
}

template <int kHead, int kDim>
__global__ void __launch_bounds__(kThreadsOfAttention, 1)
    AttentionKernel(const __grid_constant__ TensorMap queries,
                    const __grid_constant__ TensorMap keys,
                    const __grid_constant__ AttentionArguments p) {
  static_assert(kDim % 32 == 0 && kDim > kHead - 64 && kDim <= kHead);
  extern __shared__ std::byte memory[];
  const Layout<kHead> at{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == 0) {
    InitBarrier(at.queries_full(), 1);
    for (int stage = 0; stage < Layout<kHead>::kStages; ++stage) {
      InitBarrier(at.keys_full(stage), 1);
      InitBarrier(at.values_full(stage), 1);
      InitBarrier(at.keys_empty(stage), kConsumers * 4);
      InitBarrier(at.values_empty(stage), kConsumers * 4);
    }
    FenceBarrierInit();
    PrefetchMap(&queries);
    PrefetchMap(&keys);
  }
  __syncthreads();
  WaitForKernelBefore();
  StartNextKernel();
  const AttentionTile tile = p.tiles[blockIdx.x / p.buffers.heads];
  const int head = static_cast<int>(blockIdx.x) % p.buffers.heads;
  // The same in all lanes, and the compiler knows it.
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kConsumers) {
    FewerRegisters<24>();
    if (threadIdx.x == kConsumers * kWarpgroup) Produce(p, queries, keys, tile, head, at);
  } else {
    MoreRegisters<240>();
    if (group == 0) {
      Consume<kHead, kDim, 0>(p, tile, head, at);
    } else {
      Consume<kHead, kDim, 1>(p, tile, head, at);
    }
  }
}

template <int kHead, int kDim>
void Launch(const TensorMap& queries, const TensorMap& keys, const AttentionArguments& arguments,
            cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(arguments.tile_count * arguments.buffers.heads));
  config.blockDim = dim3(kThreadsOfAttention);
  config.dynamicSmemBytes = Layout<kHead>::kShared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Check(cudaLaunchKernelEx(&config, AttentionKernel<kHead, kDim>, queries, keys, arguments),
        "launching attention");
}

template <int kHead, int kDim>
void Prepare() {
  Check(cudaFuncSetAttribute(AttentionKernel<kHead, kDim>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<kHead>::kShared),
        "preparing attention");
}

}  // namespace

HopperAttention::HopperAttention(const PromptBuffers& buffers, const PromptMemory& memory,
                                 int rows) {
  LOOPSPEC_CHECK(Takes(memory));
  const int64_t width = int64_t{buffers.heads} * memory.head_stride;
  queries_ = MakeBoxMap(buffers.q, width, rows, width, 64, kAttentionTile);
  const int64_t kv_rows =
      int64_t{memory.page_count} * memory.planes * memory.kv_heads * 2 * kPageSize;
  LOOPSPEC_CHECK(kv_rows < int64_t{1} << 31);
  keys_ = MakeBoxMap(memory.pages, memory.head_stride, kv_rows, memory.head_stride, 64, kPageSize);
  Prepare<64, 64>();
  Prepare<128, 96>();
  Prepare<128, 128>();
}

void HopperAttention::Run(const AttentionArguments& arguments, cudaStream_t stream) const {
  switch (arguments.memory.head_dim) {
    case 64:
      return Launch<64, 64>(queries_, keys_, arguments, stream);
    case 96:
      return Launch<128, 96>(queries_, keys_, arguments, stream);
    default:
      return Launch<128, 128>(queries_, keys_, arguments, stream);
  }
}

}  // namespace loopspec::cuda

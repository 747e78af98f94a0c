#include "backends/cuda/prefill/prompt_rows.h"

#include <algorithm>

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/prefill/follow.cuh"
#include "backends/cuda/prefill/gemm_epilogue.cuh"
#include "kv/ledger.h"

namespace loopspec::cuda {
namespace {

constexpr int kRowThreads = 128;
constexpr int kRowWarps = kRowThreads / 32;

// The same sum in every thread: lanes in a tree, then the warps in order. `scratch` is used once.
__device__ __forceinline__ float RowSum(float value, float* scratch) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) sum += scratch[w];
  return sum;
}

// A row of the stream over the CTA's threads: thread i holds elements 4 (i + kRowThreads j) ...
template <int kParts>
struct Row {
  float4 v[kParts];

  template <typename F>  // f(float4& part, int element)
  __device__ __forceinline__ void ForEach(int hidden, F f) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int i = (j * kRowThreads + static_cast<int>(threadIdx.x)) * 4;
      if (i < hidden) f(v[j], i);
    }
  }
  // RMSNorm.
  __device__ __forceinline__ void Normalise(int hidden, float eps, const float* weights,
                                            float* scratch) {
    float squares = 0.0f;
    ForEach(hidden, [&](float4& x, int) {
      squares = fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, squares))));
    });
    const float mean = __fdividef(RowSum(squares, scratch), static_cast<float>(hidden));
    const float scale = rsqrtf(__fadd_rn(mean, eps));
    ForEach(hidden, [&](float4& x, int i) {
      const float4 w = *reinterpret_cast<const float4*>(weights + i);
      x = make_float4(__fmul_rn(x.x * scale, w.x), __fmul_rn(x.y * scale, w.y),
                      __fmul_rn(x.z * scale, w.z), __fmul_rn(x.w * scale, w.w));
    });
  }
  // x * scale by channel, then + update, both of a row. The order of operations is fixed.
  __device__ __forceinline__ void Inject(int hidden, const RowStep& step, size_t row,
                                         float (&scratch)[2][kRowWarps]) {
    ForEach(hidden, [&](float4& x, int i) {
      const float4 w = *reinterpret_cast<const float4*>(step.scale + i);
      x = make_float4(__fmul_rn(x.x, w.x), __fmul_rn(x.y, w.y), __fmul_rn(x.z, w.z),
                      __fmul_rn(x.w, w.w));
    });
    if (step.update == nullptr) return;
    const float* from = step.update + row * hidden;
    float part = 0.0f;
    if (step.orthogonal) {
      float along = 0.0f, squares = 0.0f;
      ForEach(hidden, [&](float4& a, int i) {
        const float4 b = *reinterpret_cast<const float4*>(from + i);
        along = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, along))));
        squares = fmaf(b.w, b.w, fmaf(b.z, b.z, fmaf(b.y, b.y, fmaf(b.x, b.x, squares))));
      });
      along = RowSum(along, scratch[0]);
      squares = RowSum(squares, scratch[1]);
      part = __fdiv_rn(along, __fadd_rn(squares, step.injection_eps));
    }
    ForEach(hidden, [&](float4& a, int i) {
      const float4 b = *reinterpret_cast<const float4*>(from + i);
      a = make_float4(__fadd_rn(fmaf(-part, b.x, a.x), b.x), __fadd_rn(fmaf(-part, b.y, a.y), b.y),
                      __fadd_rn(fmaf(-part, b.z, a.z), b.z), __fadd_rn(fmaf(-part, b.w, a.w), b.w));
    });
  }
};

template <int kParts>
__global__ void __launch_bounds__(kRowThreads)
    RowKernel(const __grid_constant__ RowStep step, const __grid_constant__ PromptBuffers p,
              const __grid_constant__ EmbeddingSource embedding) {
  __shared__ float scratch[3][kRowWarps], injection_scratch[2][kRowWarps];
  FollowKernelBefore();
  const int h = p.hidden;
  const auto row = static_cast<size_t>(blockIdx.x);
  using Source = RowStep::Source;
  Row<kParts> x;
  if (step.source == Source::kEmbedding) {
    const bf16* from =
        embedding.table.data + static_cast<size_t>(p.rows[row].token) * embedding.table.ld;
    x.ForEach(h, [&](float4& v, int i) {
      v = make_float4(__bfloat162float(from[i]) * embedding.scale,
                      __bfloat162float(from[i + 1]) * embedding.scale,
                      __bfloat162float(from[i + 2]) * embedding.scale,
                      __bfloat162float(from[i + 3]) * embedding.scale);
    });
  } else {
    const float* from = (step.source == Source::kStream ? step.from : step.sums) + row * h;
    x.ForEach(h, [&](float4& v, int i) { v = *reinterpret_cast<const float4*>(from + i); });
  }
  if (step.source == Source::kAdd) {
    // Asked for before the norm, whose sum all threads wait for.
    Row<kParts> before;
    const float* from = step.from + row * h;
    before.ForEach(h, [&](float4& v, int i) { v = *reinterpret_cast<const float4*>(from + i); });
    if (step.post_norm != nullptr) x.Normalise(h, p.eps, step.post_norm, scratch[0]);
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const float4 a = before.v[j], b = x.v[j];
      x.v[j] = make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                           __fadd_rn(a.w, b.w));
    }
  }
  if (step.bias != nullptr) {
    x.ForEach(h, [&](float4& v, int i) {
      const float4 b = *reinterpret_cast<const float4*>(step.bias + i);
      v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
    });
  }
  if (step.scale != nullptr) x.Inject(h, step, row, injection_scratch);
  if (step.loop_norm != nullptr) x.Normalise(h, p.eps, step.loop_norm, scratch[1]);
  if (step.x != nullptr) {
    float* to = step.x + row * h;
    x.ForEach(h, [&](float4& v, int i) { *reinterpret_cast<float4*>(to + i) = v; });
  }
  if (step.out == nullptr) return;
  if (step.pre_norm != nullptr) x.Normalise(h, p.eps, step.pre_norm, scratch[2]);
  bf16* out = step.out + row * step.ld;
  x.ForEach(h, [&](float4& v, int i) {
    *reinterpret_cast<uint2*>(out + i) = make_uint2(PackBF16(v.x, v.y), PackBF16(v.z, v.w));
  });
  if (step.e != nullptr) {
    const bf16* e = step.e + row * h;
    x.ForEach(h, [&](float4&, int i) {
      *reinterpret_cast<uint2*>(out + h + i) = *reinterpret_cast<const uint2*>(e + i);
    });
  }
}

__global__ void StartStateKernel(const __grid_constant__ PromptBuffers p, float* x, bf16* e,
                                 const __grid_constant__ StateParams start) {
  FollowKernelBefore();
  const size_t at = static_cast<size_t>(blockIdx.x) * p.hidden;
  const int position = p.rows[blockIdx.x].position;
  for (int i = threadIdx.x; i < p.hidden; i += blockDim.x) {
    if (e != nullptr) e[at + i] = __float2bfloat16(x[at + i]);
    if (start.kind != StateStart::kPrelude) x[at + i] = StartValue(start, position, i);
  }
}

__global__ void RotationKernel(const __grid_constant__ PromptBuffers p, const double* frequencies,
                               int half) {
  FollowKernelBefore();
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    double sine, cosine;
    sincos(static_cast<double>(p.rows[blockIdx.x].position) * frequencies[i], &sine, &cosine);
    p.rope[static_cast<size_t>(blockIdx.x) * half + i] =
        make_float2(static_cast<float>(cosine), static_cast<float>(sine));
  }
}

__global__ void TailKernel(const PageTail* tails, const __grid_constant__ PromptMemory memory) {
  FollowKernelBefore();
  const PageTail tail = tails[blockIdx.y];
  const size_t plane_head = blockIdx.x;
  const size_t heads = static_cast<size_t>(memory.planes) * memory.kv_heads;
  bf16* values = memory.pages + ((tail.page * heads + plane_head) * 2 + 1) *
                                    static_cast<size_t>(kPageSize * memory.head_stride);
  for (int i = tail.slot * memory.head_stride + static_cast<int>(threadIdx.x) * 8;
       i < kPageSize * memory.head_stride; i += blockDim.x * 8) {
    *reinterpret_cast<uint4*>(values + i) = make_uint4(0, 0, 0, 0);
  }
}

// Where the tiles have element i (below head_dim / 2) of a q or k head; its partner stands 8 rows
// on (TileLayout).
__device__ __forceinline__ int PairRow(int head, int half, int i) {
  return (head * ((half + 7) / 8) + i / 8) * kTileRows + i % 8;
}

__global__ void __launch_bounds__(kRowThreads)
    QkvKernel(const float* sums, int ld, const __grid_constant__ QkWeights weights,
              const __grid_constant__ PromptBuffers p, const __grid_constant__ PromptMemory memory,
              int plane) {
  __shared__ float scratch[2][kRowWarps];
  FollowKernelBefore();
  const auto row = static_cast<size_t>(blockIdx.x);
  const float* from = sums + row * ld;
  const int half = memory.head_dim / 2, stride = memory.head_stride;
  const float2* rope = p.rope + row * half;
  // The row's keys of a head; its values are a page's positions on.
  const auto keys = [&](int head) {
    return memory.pages + p.rows[row].place +
           static_cast<int64_t>((plane * memory.kv_heads + head) * 2) * (kPageSize * stride);
  };
  for (int part = 0; part < 2; ++part) {
    const float* weight = part == 0 ? weights.q_norm : weights.k_norm;
    const int heads = part == 0 ? p.heads : memory.kv_heads;
    const int first_head = part == 0 ? 0 : p.heads;
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares = 0.0f;
      for (int pair = threadIdx.x; pair < heads * half; pair += kRowThreads) {
        const float* x = from + PairRow(first_head + pair / half, half, pair % half);
        squares = fmaf(x[8], x[8], fmaf(x[0], x[0], squares));
      }
      const float mean =
          __fdividef(RowSum(squares, scratch[part]), static_cast<float>(2 * heads * half));
      scale = rsqrtf(__fadd_rn(mean, p.eps));
    }
    for (int pair = threadIdx.x; pair < heads * half; pair += kRowThreads) {
      const int head = pair / half, i = pair % half, at = head * memory.head_dim + i;
      const float* x = from + PairRow(first_head + head, half, i);
      float low = x[0], high = x[8];
      if (weight != nullptr) {
        low = __fmul_rn(low * scale, weight[at]);
        high = __fmul_rn(high * scale, weight[at + half]);
      }
      if (weights.bias != nullptr) {
        const float* bias = weights.bias + first_head * memory.head_dim + at;
        low = __fadd_rn(low, bias[0]);
        high = __fadd_rn(high, bias[half]);
      }
      const float2 turn = rope[i];
      bf16* out = part == 0 ? p.q + (row * p.heads + head) * stride : keys(head);
      out[i] = __float2bfloat16(TurnLow(low, high, turn.x, turn.y));
      out[i + half] = __float2bfloat16(TurnHigh(low, high, turn.x, turn.y));
    }
  }
  const float* values = from + PairRow(p.heads + memory.kv_heads, half, 0);
  for (int i = threadIdx.x; i < memory.kv_heads * memory.head_dim; i += kRowThreads) {
    keys(i / memory.head_dim)[kPageSize * stride + i % memory.head_dim] =
        __float2bfloat16(values[i]);
  }
}

__global__ void SwiGluKernel(const float* sums, int ld, const __grid_constant__ PromptBuffers p) {
  FollowKernelBefore();
  const auto row = static_cast<size_t>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= p.ff) return;
  const float* at = sums + row * ld + i / 8 * kTileRows + i % 8;
  p.ff_in[row * p.ld_ff + i] = __float2bfloat16(Gated(at[0], at[8]));
}

unsigned Unsigned(int n) {
  return static_cast<unsigned>(n);
}

}  // namespace

void RunRows(const RowStep& step, const PromptBuffers& buffers, const EmbeddingSource& embedding,
             int rows, cudaStream_t stream) {
  const dim3 grid(Unsigned(rows));
  if (buffers.hidden <= 4 * 4 * kRowThreads) {
    Follow(RowKernel<4>, grid, kRowThreads, stream, step, buffers, embedding);
  } else if (buffers.hidden <= 6 * 4 * kRowThreads) {
    Follow(RowKernel<6>, grid, kRowThreads, stream, step, buffers, embedding);
  } else if (buffers.hidden <= 11 * 4 * kRowThreads) {
    Follow(RowKernel<11>, grid, kRowThreads, stream, step, buffers, embedding);
  } else {
    Follow(RowKernel<16>, grid, kRowThreads, stream, step, buffers, embedding);
  }
}

void StartState(const PromptBuffers& buffers, float* x, bf16* e, const StateParams& start, int rows,
                cudaStream_t stream) {
  Follow(StartStateKernel, dim3(Unsigned(rows)), 256, stream, buffers, x, e, start);
}

void FillRotations(const PromptBuffers& buffers, const double* frequencies, int half, int rows,
                   cudaStream_t stream) {
  Follow(RotationKernel, dim3(Unsigned(rows)), 64, stream, buffers, frequencies, half);
}

void ClearTails(const PageTail* tails, int count, const PromptMemory& memory, cudaStream_t stream) {
  if (count == 0) return;
  const dim3 grid(Unsigned(memory.planes * memory.kv_heads), Unsigned(count));
  Follow(TailKernel, grid, 128, stream, tails, memory);
}

void FinishQkv(const float* sums, int ld, const QkWeights& weights, const PromptBuffers& buffers,
               const PromptMemory& memory, int plane, int rows, cudaStream_t stream) {
  Follow(QkvKernel, dim3(Unsigned(rows)), kRowThreads, stream, sums, ld, weights, buffers, memory,
         plane);
}

void FinishSwiGlu(const float* sums, int ld, const PromptBuffers& buffers, int rows,
                  cudaStream_t stream) {
  const dim3 grid(Unsigned((buffers.ff + 255) / 256), Unsigned(rows));
  Follow(SwiGluKernel, grid, 256, stream, sums, ld, buffers);
}

}  // namespace loopspec::cuda

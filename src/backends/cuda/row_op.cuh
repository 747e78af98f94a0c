// Operations on whole rows of the residual stream, one block per row: adding up a sublayer's
// partial sums, norms, the embedding, the initial state, and the bf16 inputs of the next matrix.
// Everything float32.
#pragma once

#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/step_types.h"
#include "model/initial_state.h"

namespace loopspec::cuda {

// The same sum in every thread: lanes in a tree, then the warps in order.
__device__ inline float BlockSum(float value, float* scratch) {
  value = WarpSum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += scratch[w];
  return sum;
}

__device__ inline float4 LoadCoherent(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}
__device__ inline void StoreBF16(bf16* to, const float4& v) {
  *reinterpret_cast<uint2*>(to) = make_uint2(PackBF16(v.x, v.y), PackBF16(v.z, v.w));
}

// A row of the stream, spread over the block's threads: thread i holds elements 4 (i + kThreads j)
// ...
template <int kHidden>  // at most so many elements
struct RowRegisters {
  static constexpr int kParts = kHidden / (4 * kThreads);
  float4 v[kParts] = {};  // zero past the end of the row

  template <typename F>  // f(float4& part, int element)
  __device__ __forceinline__ void ForEach(int hidden, F f) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int i = (j * kThreads + static_cast<int>(threadIdx.x)) * 4;
      if (i < hidden) f(v[j], i);
    }
  }
  __device__ __forceinline__ void LoadWeights(int hidden, const float* weights) {
    if (weights == nullptr) return;
    ForEach(hidden, [&](float4& x, int i) { x = LoadLasting(weights + i); });
  }

  __device__ __forceinline__ void Normalise(int hidden, float eps, RowRegisters& weights,
                                            float* scratch) {
    float squares = 0.0f;
    ForEach(hidden,
            [&](float4& x, int) { squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w); });
    const float scale = rsqrtf(BlockSum(squares, scratch) / static_cast<float>(hidden) + eps);
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const float4 x = v[j], w = weights.v[j];
      v[j] =
          make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
    }
  }
};

__device__ __noinline__ inline void FillRope(const DecodeParams& p, int set, int row,
                                             int position) {
  float2* out = p.rope + (static_cast<size_t>(set) * p.max_rows + row) * (p.head_dim / 2);
  for (int i = threadIdx.x; i < p.head_dim / 2; i += kThreads) {
    double sine, cosine;
    sincos(static_cast<double>(position) * p.rope_frequencies[i], &sine, &cosine);
    out[i] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
  }
}

template <int kHidden>
__device__ inline void LoadEmbedding(const DecodeParams& p, int token, RowRegisters<kHidden>& x) {
  const bf16* from = p.embedding.data + static_cast<size_t>(token) * p.embedding.ld;
  x.ForEach(p.hidden, [&](float4& v, int i) {
    v = make_float4(__bfloat162float(from[i]) * p.embed_scale,
                    __bfloat162float(from[i + 1]) * p.embed_scale,
                    __bfloat162float(from[i + 2]) * p.embed_scale,
                    __bfloat162float(from[i + 3]) * p.embed_scale);
  });
}

// P is done, its output lies in `state`: it is kept for the adapter, and the state starts.
__device__ __noinline__ inline void FinishPrelude(const DecodeParams& p, int cell, int position,
                                                  float* state) {
  bf16* e = p.prelude_out + static_cast<size_t>(cell) * p.hidden;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.hidden; i += kThreads) {
    e[i] = __float2bfloat16(__ldcg(state + i));
    state[i] = InitialState(p.state_seed, static_cast<uint32_t>(position), static_cast<uint32_t>(i),
                            p.state_scale);
  }
}

// A new row of a model whose P is the embedding alone.
__device__ __noinline__ inline void StartWithoutPrelude(const DecodeParams& p, const RowInfo& info,
                                                        float* state) {
  const bf16* from = p.embedding.data + static_cast<size_t>(info.token) * p.embedding.ld;
  for (int i = threadIdx.x; i < p.hidden; i += kThreads)
    state[i] = __bfloat162float(from[i]) * p.embed_scale;
  __syncthreads();
  if (p.adapter) FinishPrelude(p, info.cell, info.position, state);
  __syncthreads();
}

// Everything a row operation reads is asked for before anything is waited for: one block works on a
// row, and the time is latency.
template <int kHidden>
__device__ __forceinline__ void RowOp(const DecodeParams& p, const Op& op, int set,
                                      const RowInfo& info, int row, float* scratch) {
  const int h = p.hidden;
  float* state = p.state + static_cast<size_t>(info.cell) * h;
  float* stream = set == kSetCoda ? p.coda_x + static_cast<size_t>(row) * h : state;
  if (op.flags & kOpRope) FillRope(p, set, row, info.position);
  if (op.source == RowSource::kState && info.depth == 0 && p.prelude_layers == 0)
    StartWithoutPrelude(p, info, state);

  RowRegisters<kHidden> x, before, post, loop, pre;
  post.LoadWeights(h, op.post_norm);
  loop.LoadWeights(h, op.loop_norm);
  pre.LoadWeights(h, op.pre_norm);
  const bool sums = op.source == RowSource::kAdd || op.source == RowSource::kReplace;
  if (op.source == RowSource::kAdd) {
    before.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(stream + i); });
  }
  if (op.source == RowSource::kEmbed) {
    LoadEmbedding(p, info.token, x);
  } else {
    const float* from = sums ? p.partials + static_cast<size_t>(row) * h : state;
    x.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(from + i); });
  }
  if (sums) {
    const float* partial = p.partials + static_cast<size_t>(row) * h;
    const size_t stride = static_cast<size_t>(p.max_rows) * h;
#pragma unroll 4
    for (int c = 1; c < op.chunks; ++c) {
      x.ForEach(h, [&](float4& v, int i) {
        const float4 y = LoadCoherent(partial + c * stride + i);
        v = make_float4(v.x + y.x, v.y + y.y, v.z + y.z, v.w + y.w);
      });
    }
    if (op.bias != nullptr) {
      x.ForEach(h, [&](float4& v, int i) {
        const float4 b = *reinterpret_cast<const float4*>(op.bias + i);
        v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
      });
    }
  }
  if (op.source == RowSource::kAdd) {
    if (op.post_norm != nullptr) x.Normalise(h, p.eps, post, scratch);
#pragma unroll
    for (int j = 0; j < RowRegisters<kHidden>::kParts; ++j) {
      const float4 a = before.v[j], b = x.v[j];
      x.v[j] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
  }
  if (op.loop_norm != nullptr) x.Normalise(h, p.eps, loop, scratch);
  if (op.source != RowSource::kState) {
    x.ForEach(h, [&](float4& v, int i) { *reinterpret_cast<float4*>(stream + i) = v; });
  }
  if ((op.flags & kOpFinishPrelude) && p.adapter) {
    __syncthreads();
    FinishPrelude(p, info.cell, info.position, state);
    return;
  }

  if (op.output == RowOutput::kNormed) {
    if (op.pre_norm != nullptr) x.Normalise(h, p.eps, pre, scratch);
    bf16* out = p.act_hidden + static_cast<size_t>(row) * p.ld_hidden;
    x.ForEach(h, [&](float4& v, int i) { StoreBF16(out + i, v); });
  } else if (op.output == RowOutput::kAdapter) {
    bf16* out = p.act_adapter + static_cast<size_t>(row) * p.ld_adapter;
    const bf16* e = p.prelude_out + static_cast<size_t>(info.cell) * h;
    x.ForEach(h, [&](float4& v, int i) {
      StoreBF16(out + i, v);
      *reinterpret_cast<uint2*>(out + h + i) = __ldcg(reinterpret_cast<const uint2*>(e + i));
    });
  }
}

// RMSNorm over all of q and all of k, then the rotation; q to its buffer, k to the cell (Raven
// olmo).
__device__ __forceinline__ void QkNormOp(const DecodeParams& p, const Op& op, int set,
                                         const RowInfo& info, int row, int recurrence,
                                         float* scratch) {
  const float* raw = p.qk_raw + static_cast<size_t>(row) * (p.q_size + p.kv_size);
  const int plane = info.plane + op.layer + (set == kSetCore ? recurrence * p.core_layers : 0);
  bf16* cell = p.cell_kv +
               (static_cast<size_t>(info.cell) * p.planes + plane) * p.kv_heads * 2 * p.head_stride;
  const float2* rope = p.rope + (static_cast<size_t>(set) * p.max_rows + row) * (p.head_dim / 2);
  const int half = p.head_dim / 2;
  for (int part = 0; part < 2; ++part) {
    const float* from = part == 0 ? raw : raw + p.q_size;
    const float* weight = part == 0 ? op.q_norm : op.k_norm;
    const int size = part == 0 ? p.q_size : p.kv_size;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < size; i += kThreads) {
      const float v = __ldcg(from + i);
      squares += v * v;
    }
    const float scale = rsqrtf(BlockSum(squares, scratch) / static_cast<float>(size) + p.eps);
    for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
      const int head = pair / half, i = pair % half;
      const int at = head * p.head_dim + i;
      const float low = __ldcg(from + at) * scale * weight[at];
      const float high = __ldcg(from + at + half) * scale * weight[at + half];
      const float2 turn = __ldcg(rope + i);
      bf16* out = part == 0 ? p.q + (static_cast<size_t>(row) * p.heads + head) * p.head_stride
                            : cell + head * 2 * p.head_stride;
      out[i] = __float2bfloat16(low * turn.x - high * turn.y);
      out[i + half] = __float2bfloat16(high * turn.x + low * turn.y);
    }
  }
}

}  // namespace loopspec::cuda

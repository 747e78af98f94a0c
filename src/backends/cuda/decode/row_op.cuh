// Operations on whole rows of the residual stream, a block for each row: adding up a sublayer's
// partial sums, norms, the embedding, the initial state, and the bf16 inputs of the next matrix.
// Everything float32.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/decode/input_layout.cuh"
#include "backends/cuda/decode/mail.cuh"
#include "backends/cuda/program/step_types.h"
#include "model/initial_state.h"

namespace loopspec::cuda {

// The same sum in every thread: lanes in a tree, then the warps in order. No thread may be reading
// `scratch` from before.
__device__ inline float BlockSum(float value, float* scratch) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  BlockSync();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += scratch[w];
  return sum;
}

__device__ inline float4 LoadCoherent(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}
// A row of the stream, spread over the block's threads: thread i holds elements 4 (i + kThreads j)
// ...
template <int kHidden, bool kExact = false>  // at most so many elements; kExact: just so many
struct RowRegisters {
  static constexpr int kParts = kHidden / (4 * kThreads);
  static constexpr bool kWhole = kExact;
  float4 v[kParts] = {};  // zero past the end of the row

  template <typename F>  // f(float4& part, int element)
  __device__ __forceinline__ void ForEach(int hidden, F f) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int i = (j * kThreads + static_cast<int>(threadIdx.x)) * 4;
      if (kExact || i < hidden) f(v[j], i);
    }
  }
  __device__ __forceinline__ void LoadWeights(int hidden, const float* weights) {
    if (weights == nullptr) return;
    ForEach(hidden, [&](float4& x, int i) { x = LoadLasting(weights + i); });
  }
};

// RMSNorm. Here and below, a product that is added to is written so that the compiler cannot fuse
// the two in one instance of a template and leave them apart in another.
template <typename Row>
__device__ __forceinline__ void Normalise(Row& x, const DecodeParams& p, const Row& weights,
                                          float* scratch) {
  float squares = 0.0f;
  x.ForEach(p.hidden, [&](float4& v, int) {
    squares = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, squares))));
  });
  const float scale = rsqrtf(fmaf(BlockSum(squares, scratch), p.one_over_hidden, p.eps));
#pragma unroll
  for (int j = 0; j < Row::kParts; ++j) {
    const float4 v = x.v[j], w = weights.v[j];
    x.v[j] =
        make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
  }
}

__device__ __noinline__ inline void FillRope(const DecodeParams& p, int set, int row,
                                             int position) {
  float2* out = p.rope + (static_cast<size_t>(set) * p.row_stride + row) * (p.head_dim / 2);
  for (int i = threadIdx.x; i < p.head_dim / 2; i += kThreads) {
    double sine, cosine;
    sincos(static_cast<double>(position) * p.rope_frequencies[i], &sine, &cosine);
    out[i] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
  }
}

template <typename Row>
__device__ inline void LoadEmbedding(const DecodeParams& p, int token, Row& x) {
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
  BlockSync();
  if (p.adapter) FinishPrelude(p, info.cell, info.position, state);
  BlockSync();
}

// Which row a block works on, where what it takes comes from, and where it leaves what it makes.
struct RowAt {
  const RowInfo* infos;  // of row 0
  int set;
  int row;
  bool natural;    // the next matrix's inputs are rows in the order of their elements
  bool narrow;     // which number of partial sums there is
  int flags;       // kRun...
  uint32_t stamp;  // of mail that goes out
  float* scratch;  // [kNormsOfRow][kWarps]

  __device__ __forceinline__ bool Is(int flag) const { return (flags & flag) != 0; }

  // The row's residual stream. `of_block`: the block's own copy of it.
  __device__ __forceinline__ float* Stream(const DecodeParams& p, bool of_block) const {
    if (of_block) return p.own_stream + static_cast<size_t>(blockIdx.x) * p.hidden;
    return set == kSetCoda ? p.coda_x + static_cast<size_t>(row) * p.hidden
                           : p.state + static_cast<size_t>(infos[row].cell) * p.hidden;
  }
};

// Elements i ... i + 3 of the next matrix's input, i a multiple of 4.
class InputWriter {
 public:
  __device__ __forceinline__ InputWriter(const DecodeParams& p, const Op& op, const RowAt& at)
      : natural_(at.natural) {
    const bool adapter = op.output == RowOutput::kAdapter;
    const int ld = adapter ? p.ld_adapter : p.ld_hidden;
    const bool together = at.natural || at.Is(kRunFused);  // a row by itself
    group_stride_ = together ? kInputGroup : kInputGroupStride;
    row_ = at.Is(kRunFused)
               ? OwnInputs()
               : (adapter ? p.act_adapter : p.act_hidden) +
                     (together ? static_cast<size_t>(at.row) * ld : InputAt(at.row, 0, ld));
    if (at.Is(kRunMailOut) && !at.Is(kRunFused))
      mail_ = p.mail_hidden + static_cast<size_t>(at.row) * (ld / 2);
    stamp_ = at.stamp;
  }
  __device__ __forceinline__ void Write(int i, uint2 v) const {
    if (mail_ != nullptr) {
      Post(mail_ + InputPlace(i) / 2, v.x, stamp_);
      Post(mail_ + InputPlace(i + 2) / 2, v.y, stamp_);
      return;
    }
    bf16* group = row_ + i / kInputGroup * group_stride_;
    i %= kInputGroup;
    *reinterpret_cast<uint32_t*>(group + (natural_ ? i : InputPlace(i))) = v.x;
    *reinterpret_cast<uint32_t*>(group + (natural_ ? i + 2 : InputPlace(i + 2))) = v.y;
  }

 private:
  bool natural_;
  int group_stride_;
  bf16* row_;
  Mail* mail_ = nullptr;
  uint32_t stamp_;
};

template <typename Row>
__device__ __forceinline__ void StoreInputs(const DecodeParams& p, const Op& op, const RowAt& at,
                                            Row& x) {
  const int h = p.hidden;
  const InputWriter writer(p, op, at);
  x.ForEach(h, [&](float4& v, int i) {
    writer.Write(i, make_uint2(PackBF16(v.x, v.y), PackBF16(v.z, v.w)));
  });
  if (op.output == RowOutput::kAdapter) {
    const bf16* e = p.prelude_out + static_cast<size_t>(at.infos[at.row].cell) * h;
    x.ForEach(h, [&](float4&, int i) {
      writer.Write(h + i, __ldcg(reinterpret_cast<const uint2*>(e + i)));
    });
  }
  if (at.Is(kRunFused)) {  // the rows' own buffers have their padding zeroed once
    const bool adapter = op.output == RowOutput::kAdapter;
    for (int i = (adapter ? 2 * h : h) + static_cast<int>(threadIdx.x);
         i < (adapter ? p.ld_adapter : p.ld_hidden); i += kThreads) {
      OwnInputs()[InputPlace(i)] = __float2bfloat16(0.0f);
    }
  }
}

// The row's sums, as they come. What lies past the end of the row is asked for inside.
template <typename Row>
__device__ __forceinline__ void ReceiveSums(const DecodeParams& p, const RowAt& at, Row& x) {
  constexpr int kParts = Row::kParts;
  const auto element = [](int j) { return (j * kThreads + static_cast<int>(threadIdx.x)) * 4; };
  const Mail* sums = p.mail_sums + static_cast<size_t>(at.row) * p.hidden;
  const auto place = [&](int j) {
    return sums + (Row::kWhole ? element(j) : min(element(j), p.hidden - 4)) / 2;
  };
  MailBox<kParts> box(p.hidden / 2);
  box.Ask(place);
  box.Wait(at.stamp - 1, place);
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    const uint4 v = box.Values(j);
    if (Row::kWhole || element(j) < p.hidden) {
      x.v[j] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w));
    }
  }
}

// Everything a row operation reads is asked for before anything is waited for: the time is latency.
// kSums: the operation is known to take a matrix's sums, and nothing else is compiled. kExact: the
// row has kHidden elements.
template <int kHidden, bool kSums, bool kExact = false>
__device__ __forceinline__ void RowOp(const DecodeParams& p, const Op& op, const RowAt& at) {
  float* const scratch = at.scratch;
  const int h = p.hidden, row = at.row;
  const RowInfo& info = at.infos[row];
  if constexpr (!kSums) {
    if (op.source == RowSource::kState && info.depth == 0 && p.prelude_layers == 0)
      StartWithoutPrelude(p, info, p.state + static_cast<size_t>(info.cell) * h);
  }

  RowRegisters<kHidden, kExact> x, before, post, loop, pre;
  post.LoadWeights(h, op.post_norm);
  loop.LoadWeights(h, op.loop_norm);
  pre.LoadWeights(h, op.pre_norm);
  if (op.source == RowSource::kAdd) {
    const float* stream = at.Stream(p, at.Is(kRunOwnStream));
    before.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(stream + i); });
  }
  if (kSums || op.source == RowSource::kAdd || op.source == RowSource::kReplace) {
    const float* sums = p.partials + static_cast<size_t>(row) * h;
    const int chunks = op.chunks[at.narrow ? 1 : 0];
    if (kHidden <= kOwnHidden && at.Is(kRunMailIn)) {  // mail has no wider rows
      ReceiveSums(p, at, x);
    } else {
      x.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(sums + i); });
      // Several at once: each takes as long to come as all do.
      constexpr int kAtOnce = kHidden <= kOwnHidden ? 3 : 1;
#pragma unroll 1
      for (int c = 1; c < chunks; c += kAtOnce) {
        x.ForEach(h, [&](float4& v, int i) {
          float4 y[kAtOnce];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            const int chunk = min(c + k, chunks - 1);
            y[k] = LoadCoherent(sums + static_cast<size_t>(chunk) * p.row_stride * h + i);
          }
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            if (c + k < chunks)
              v = make_float4(v.x + y[k].x, v.y + y[k].y, v.z + y[k].z, v.w + y[k].w);
          }
        });
      }
    }
    if (op.bias != nullptr) {
      x.ForEach(h, [&](float4& v, int i) {
        const float4 b = *reinterpret_cast<const float4*>(op.bias + i);
        v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
      });
    }
  } else if (op.source == RowSource::kEmbed) {
    LoadEmbedding(p, info.token, x);
  } else {
    const float* state = p.state + static_cast<size_t>(info.cell) * h;
    x.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(state + i); });
  }
  if (op.source == RowSource::kAdd) {
    if (op.post_norm != nullptr) Normalise(x, p, post, scratch);
#pragma unroll
    for (int j = 0; j < x.kParts; ++j) {
      const float4 a = before.v[j], b = x.v[j];
      x.v[j] = make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                           __fadd_rn(a.w, b.w));
    }
  }
  if (op.loop_norm != nullptr) Normalise(x, p, loop, scratch + kWarps);
  if (op.source != RowSource::kState) {
    float* stream = at.Stream(p, at.Is(kRunFused));
    x.ForEach(h, [&](float4& v, int i) { *reinterpret_cast<float4*>(stream + i) = v; });
  }
  if constexpr (!kSums) {
    if ((op.flags & kOpFinishPrelude) && p.adapter) {
      BlockSync();
      FinishPrelude(p, info.cell, info.position, p.state + static_cast<size_t>(info.cell) * h);
      return;
    }
  }
  if (op.output == RowOutput::kNone) return;
  if (op.output == RowOutput::kNormed && op.pre_norm != nullptr)
    Normalise(x, p, pre, scratch + 2 * kWarps);
  StoreInputs(p, op, at, x);
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
  const float2* rope = p.rope + (static_cast<size_t>(set) * p.row_stride + row) * (p.head_dim / 2);
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
    const float scale =
        rsqrtf(BlockSum(squares, scratch + part * kWarps) / static_cast<float>(size) + p.eps);
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

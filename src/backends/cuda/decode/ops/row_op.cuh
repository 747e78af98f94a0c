// Operations on whole rows of the residual stream, one CTA for each row: adding up a sublayer's
// partial sums, norms, the embedding, the initial state, and the bf16 inputs of the next matrix.
// Everything float32.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/start_state.h"

namespace loopspec::cuda {

// The same sum in every thread: lanes in a tree, then the warps in order. No thread may be reading
// `scratch` from before.
__device__ inline float CtaSum(float value, float* scratch) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  CtaSync();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += scratch[w];
  return sum;
}

__device__ inline float4 LoadCoherent(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}
// A row of the stream, spread over the CTA's threads: thread i holds elements 4 (i + kThreads j) to
// 4 (i + kThreads j) + 3.
template <int kHidden,
          bool kExact = false>  // the row has at most kHidden elements; kExact: exactly
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

// RMSNorm. Here and below, multiply-adds are written so that the compiler cannot fuse them in one
// instance of a template and not in another: all instances must round alike.
template <typename Row>
__device__ __forceinline__ void Normalise(Row& x, const DecodeParams& p, const Row& weights,
                                          float* scratch) {
  float squares = 0.0f;
  x.ForEach(p.shapes.hidden, [&](float4& v, int) {
    squares = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, squares))));
  });
  const float scale =
      rsqrtf(fmaf(CtaSum(squares, scratch), p.shapes.one_over_hidden, p.shapes.eps));
#pragma unroll
  for (int j = 0; j < Row::kParts; ++j) {
    const float4 v = x.v[j], w = weights.v[j];
    x.v[j] =
        make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
  }
}

__device__ __noinline__ inline void FillRope(const DecodeParams& p, int phase, int row,
                                             int position) {
  float2* out = p.buffers.rope +
                (static_cast<size_t>(phase) * p.shapes.row_stride + row) * (p.shapes.head_dim / 2);
  for (int i = threadIdx.x; i < p.shapes.head_dim / 2; i += kThreads) {
    double sine, cosine;
    sincos(static_cast<double>(position) * p.buffers.rope_frequencies[i], &sine, &cosine);
    out[i] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
  }
}

template <typename Row>
__device__ inline void LoadEmbedding(const DecodeParams& p, int token, Row& x) {
  const bf16* from = p.buffers.embedding.data + static_cast<size_t>(token) * p.buffers.embedding.ld;
  x.ForEach(p.shapes.hidden, [&](float4& v, int i) {
    v = make_float4(__bfloat162float(from[i]) * p.shapes.embed_scale,
                    __bfloat162float(from[i + 1]) * p.shapes.embed_scale,
                    __bfloat162float(from[i + 2]) * p.shapes.embed_scale,
                    __bfloat162float(from[i + 3]) * p.shapes.embed_scale);
  });
}

// P is done and its output lies in `state`: it is copied for the adapter, and the state is set to
// its initial value.
__device__ __noinline__ inline void FinishPrelude(const DecodeParams& p, int cell, int position,
                                                  float* state) {
  bf16* e = p.buffers.prelude_out + static_cast<size_t>(cell) * p.shapes.hidden;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.shapes.hidden; i += kThreads) {
    e[i] = __float2bfloat16(__ldcg(state + i));
    if (p.shapes.start.kind != StateStart::kPrelude)
      state[i] = StartValue(p.shapes.start, position, i);
  }
}

__device__ __noinline__ inline void StartState(const DecodeParams& p, int position, float* state) {
#pragma unroll 1
  for (int i = threadIdx.x; i < p.shapes.hidden; i += kThreads)
    state[i] = StartValue(p.shapes.start, position, i);
}

// W e is there: u, which B adds in every recurrence, and the state's initial value, where that is
// not the e that lies there.
template <typename Row>
__device__ __forceinline__ void FinishUpdate(const DecodeParams& p, const Op& op,
                                             const RowInfo& info, Row& sums) {
  const size_t at = static_cast<size_t>(info.cell) * p.shapes.hidden;
  sums.ForEach(p.shapes.hidden, [&](float4& v, int i) {
    const float4 step = *reinterpret_cast<const float4*>(op.bias + i);
    *reinterpret_cast<float4*>(p.buffers.update + at + i) =
        make_float4(__fmul_rn(v.x, step.x), __fmul_rn(v.y, step.y), __fmul_rn(v.z, step.z),
                    __fmul_rn(v.w, step.w));
  });
  if (p.shapes.start.kind != StateStart::kPrelude)
    StartState(p, info.position, p.buffers.state + at);
}

// The state becomes decay state + u, or, where it is orthogonal, the same after decay state has
// lost its part along u. In memory and not inlined, so that other row operations keep their
// registers. A thread reads back what it wrote itself.
__device__ __noinline__ inline void InjectUpdate(const DecodeParams& p, const float* decay,
                                                 int cell, float* scratch) {
  const int h = p.shapes.hidden;
  float* state = p.buffers.state + static_cast<size_t>(cell) * h;
  const float* update = p.buffers.update + static_cast<size_t>(cell) * h;
  float along = 0.0f, squares = 0.0f;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < h; i += 4 * kThreads) {
    const float4 x = LoadCoherent(state + i), d = *reinterpret_cast<const float4*>(decay + i);
    const float4 k = make_float4(__fmul_rn(x.x, d.x), __fmul_rn(x.y, d.y), __fmul_rn(x.z, d.z),
                                 __fmul_rn(x.w, d.w));
    *reinterpret_cast<float4*>(state + i) = k;
    const float4 u = LoadCoherent(update + i);
    along = fmaf(k.w, u.w, fmaf(k.z, u.z, fmaf(k.y, u.y, fmaf(k.x, u.x, along))));
    squares = fmaf(u.w, u.w, fmaf(u.z, u.z, fmaf(u.y, u.y, fmaf(u.x, u.x, squares))));
  }
  float part = 0.0f;
  if (p.shapes.orthogonal) {
    along = CtaSum(along, scratch);
    squares = CtaSum(squares, scratch + kWarps);
    part = __fdiv_rn(along, __fadd_rn(squares, p.shapes.injection_eps));
  }
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < h; i += 4 * kThreads) {
    const float4 k = LoadCoherent(state + i), u = LoadCoherent(update + i);
    *reinterpret_cast<float4*>(state + i) =
        make_float4(__fadd_rn(fmaf(-part, u.x, k.x), u.x), __fadd_rn(fmaf(-part, u.y, k.y), u.y),
                    __fadd_rn(fmaf(-part, u.z, k.z), u.z), __fadd_rn(fmaf(-part, u.w, k.w), u.w));
  }
}

// A new row of a model whose P is the embedding alone.
__device__ __noinline__ inline void StartWithoutPrelude(const DecodeParams& p, const RowInfo& info,
                                                        float* state) {
  const bf16* from =
      p.buffers.embedding.data + static_cast<size_t>(info.token) * p.buffers.embedding.ld;
  for (int i = threadIdx.x; i < p.shapes.hidden; i += kThreads)
    state[i] = __bfloat162float(from[i]) * p.shapes.embed_scale;
  CtaSync();
  if (p.shapes.adapter) FinishPrelude(p, info.cell, info.position, state);
  CtaSync();
}

// Which row a CTA works on, where its inputs come from and where its results go.
struct RowAt {
  const RowInfo* infos;  // of row 0
  int phase;
  int row;
  bool natural;      // the next matrix takes plain rows, not the order of input_layout.cuh
  bool small_batch;  // selects the number of partial sums
  RunFlags flags;
  uint32_t epoch;  // of what is sent
  float* scratch;  // [kNormsOfRow][kWarps]

  __device__ __forceinline__ bool Is(RunFlag flag) const { return flags.Has(flag); }

  // The row's residual stream. `local`: the CTA's own copy of it.
  __device__ __forceinline__ float* Stream(const DecodeParams& p, bool local) const {
    if (local) return p.buffers.local_stream + static_cast<size_t>(blockIdx.x) * p.shapes.hidden;
    return phase == kPhaseCoda
               ? p.buffers.coda_x + static_cast<size_t>(row) * p.shapes.hidden
               : p.buffers.state + static_cast<size_t>(infos[row].cell) * p.shapes.hidden;
  }
};

// Writes the next matrix's input, to memory or to the exchange.
class InputWriter {
 public:
  __device__ __forceinline__ InputWriter(const DecodeParams& p, const Op& op, const RowAt& at)
      : natural_(at.natural) {
    const bool adapter = op.output == RowOutput::kAdapter;
    const int ld = adapter ? p.shapes.ld_adapter : p.shapes.ld_hidden;
    const bool together = at.natural || at.Is(RunFlag::kReplicated);  // a row by itself
    group_stride_ = together ? kInputGroup : kInputGroupStride;
    row_ = at.Is(RunFlag::kReplicated)
               ? LocalInputs()
               : (adapter ? p.buffers.act_adapter : p.buffers.act_hidden) +
                     (together ? static_cast<size_t>(at.row) * ld : InputAt(at.row, 0, ld));
    if (at.Is(RunFlag::kSends) && !at.Is(RunFlag::kReplicated))
      sent_ = p.exchange.hidden + static_cast<size_t>(at.row) * (ld / 2);
    epoch_ = at.epoch;
  }
  // Elements i ... i + 3, i a multiple of 4.
  __device__ __forceinline__ void Write(int i, uint2 v) const {
    if (sent_ != nullptr) {
      Send(sent_ + InputPlace(i) / 2, v.x, epoch_);
      Send(sent_ + InputPlace(i + 2) / 2, v.y, epoch_);
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
  LLWord* sent_ = nullptr;
  uint32_t epoch_;
};

// The same in phases of many rows (device/input_layout.cuh).
class WideInputWriter {
 public:
  __device__ __forceinline__ WideInputWriter(const DecodeParams& p, const Op& op, const RowAt& at)
      : to_(op.output == RowOutput::kAdapter ? p.buffers.act_adapter : p.buffers.act_hidden),
        ld_(op.output == RowOutput::kAdapter ? p.shapes.ld_adapter : p.shapes.ld_hidden),
        row_stride_(p.shapes.row_stride),
        row_(at.row) {}
  // Elements i ... i + 3, i a multiple of 4.
  __device__ __forceinline__ void Write(int i, uint2 v) const {
    *reinterpret_cast<uint2*>(to_ + WideInputAt(row_, i, row_stride_, ld_)) = v;
  }

 private:
  bf16* to_;
  int ld_, row_stride_, row_;
};

// The same by a CTA for itself, where no element pads the row. In few instructions: the CTA's
// product waits.
template <typename Row>
__device__ __forceinline__ void StoreLocalInputs(Row& x) {
  static_assert(Row::kWhole);
  x.ForEach(0, [&](float4& v, int i) {
    auto* to = reinterpret_cast<uint32_t*>(LocalInputs() + InputPlace(i));
    to[0] = PackBF16(v.x, v.y);
    to[(InputPlace(2) - InputPlace(0)) / 2] = PackBF16(v.z, v.w);
  });
}

template <typename Writer, typename Row>
__device__ __forceinline__ void StoreInputs(const DecodeParams& p, const Op& op, const RowAt& at,
                                            Row& x) {
  const int h = p.shapes.hidden;
  const Writer writer(p, op, at);
  x.ForEach(h, [&](float4& v, int i) {
    writer.Write(i, make_uint2(PackBF16(v.x, v.y), PackBF16(v.z, v.w)));
  });
  if (op.output == RowOutput::kAdapter) {
    const bf16* e = p.buffers.prelude_out + static_cast<size_t>(at.infos[at.row].cell) * h;
    x.ForEach(h, [&](float4&, int i) {
      writer.Write(h + i, __ldcg(reinterpret_cast<const uint2*>(e + i)));
    });
  }
  if (at.Is(RunFlag::kReplicated)) {  // in buffers of rows the padding is zeroed once
    const bool adapter = op.output == RowOutput::kAdapter;
    for (int i = (adapter ? 2 * h : h) + static_cast<int>(threadIdx.x);
         i < (adapter ? p.shapes.ld_adapter : p.shapes.ld_hidden); i += kThreads) {
      LocalInputs()[InputPlace(i)] = __float2bfloat16(0.0f);
    }
  }
}

// Receives the row's sums. Threads past the end of the row poll its last elements instead.
template <typename Row>
__device__ __forceinline__ void ReceiveSums(const DecodeParams& p, const RowAt& at, Row& x) {
  constexpr int kParts = Row::kParts;
  const auto element = [](int j) { return (j * kThreads + static_cast<int>(threadIdx.x)) * 4; };
  const LLWord* sums = p.exchange.sums + static_cast<size_t>(at.row) * p.shapes.hidden;
  const auto place = [&](int j) {
    return sums + (Row::kWhole ? element(j) : min(element(j), p.shapes.hidden - 4)) / 2;
  };
  Receiver<kParts> receiver(p.shapes.hidden / 2);
  receiver.Request(place);
  receiver.Wait(at.epoch - 1, place);
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    const uint4 v = receiver.Values(j);
    if (Row::kWhole || element(j) < p.shapes.hidden) {
      x.v[j] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w));
    }
  }
}

// How a row operation runs. kSums: the operation is known to take a matrix's sums, and nothing else
// is compiled. kExact: the row has kHidden elements; with kSums every CTA does it for itself.
// kSumsAtOnce: partial sums that are loaded at once; kWeightsFirst: after the norms' weights, which
// wide rows leave no registers for in the persistent kernel. Writer: of the next matrix's input.
template <int kHiddenSize, bool kSumsAlone, bool kExactSize = false>
struct PersistentRows {
  static constexpr int kHidden = kHiddenSize;
  static constexpr bool kSums = kSumsAlone, kExact = kExactSize;
  static constexpr bool kWeightsFirst = kHidden <= kLocalHidden;
  static constexpr int kSumsAtOnce = kWeightsFirst ? 3 : 2;
  using Writer = InputWriter;
};
template <int kHiddenSize, bool kSumsAlone>
struct WideRows {
  static constexpr int kHidden = kHiddenSize;
  static constexpr bool kSums = kSumsAlone, kExact = false, kWeightsFirst = kSums;
  static constexpr int kSumsAtOnce = kHidden <= kLocalHidden ? 3 : 4;
  using Writer = WideInputWriter;
};

// All loads of a row operation are issued before the first wait: its time is latency. `wait` waits
// for the operations before; the norms' weights do not depend on them.
template <typename How, typename Wait>
__device__ __forceinline__ void RowOp(const DecodeParams& p, const Op& op, const RowAt& at,
                                      const Wait& wait) {
  constexpr int kHidden = How::kHidden;
  constexpr bool kSums = How::kSums, kExact = How::kExact;
  static_assert(kSums || !How::kWeightsFirst || kHidden <= kLocalHidden);
  float* const scratch = at.scratch;
  const int h = p.shapes.hidden, row = at.row;
  const RowInfo& info = at.infos[row];
  if constexpr (!kSums) {
    wait();
    if (op.source == RowSource::kState && info.depth == 0 && !p.shapes.prelude)
      StartWithoutPrelude(p, info, p.buffers.state + static_cast<size_t>(info.cell) * h);
    if (op.source == RowSource::kInject) InjectUpdate(p, op.bias, info.cell, scratch);
  }

  RowRegisters<kHidden, kExact> x, before, post, loop, pre;
  const auto load_weights = [&] {
    post.LoadWeights(h, op.post_norm);
    loop.LoadWeights(h, op.loop_norm);
    pre.LoadWeights(h, op.pre_norm);
  };
  if constexpr (How::kWeightsFirst) load_weights();
  float* to_stream = nullptr;
  if constexpr (kSums && kExact) to_stream = at.Stream(p, true);
  if constexpr (kSums) wait();
  if (op.source == RowSource::kAdd) {
    const float* stream = at.Stream(p, at.Is(RunFlag::kLocalStream));
    before.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(stream + i); });
  }
  if (kSums || op.source == RowSource::kAdd || op.source == RowSource::kReplace ||
      op.source == RowSource::kUpdate) {
    const float* sums = p.buffers.partials + static_cast<size_t>(row) * h;
    const int chunks = op.chunks[at.small_batch ? 1 : 0];
    if (kHidden <= kLocalHidden && at.Is(RunFlag::kReceives)) {  // the exchange has no wider rows
      ReceiveSums(p, at, x);
    } else {
      x.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(sums + i); });
      // Several loads in flight: one takes as long as all of them.
      constexpr int kAtOnce = How::kSumsAtOnce;
#pragma unroll 1
      for (int c = 1; c < chunks; c += kAtOnce) {
        x.ForEach(h, [&](float4& v, int i) {
          float4 y[kAtOnce];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            const int chunk = min(c + k, chunks - 1);
            y[k] = LoadCoherent(sums + static_cast<size_t>(chunk) * p.shapes.row_stride * h + i);
          }
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            if (c + k < chunks)
              v = make_float4(v.x + y[k].x, v.y + y[k].y, v.z + y[k].z, v.w + y[k].w);
          }
        });
      }
    }
    if constexpr (!kSums) {
      if (op.source == RowSource::kUpdate) {
        FinishUpdate(p, op, info, x);
        return;
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
    const float* state = p.buffers.state + static_cast<size_t>(info.cell) * h;
    x.ForEach(h, [&](float4& v, int i) { v = LoadCoherent(state + i); });
  }
  if constexpr (!How::kWeightsFirst) load_weights();
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
  if constexpr (kSums && kExact) {
    // The CTA's next product waits for its inputs, which are normed (kReplicate), and nobody for
    // the stream.
    RowRegisters<kHidden, kExact> stream = x;
    if (op.output == RowOutput::kNormed && op.pre_norm != nullptr)
      Normalise(x, p, pre, scratch + 2 * kWarps);
    StoreLocalInputs(x);
    stream.ForEach(h, [&](float4& v, int i) { *reinterpret_cast<float4*>(to_stream + i) = v; });
    return;
  }
  if (op.source != RowSource::kState && op.source != RowSource::kInject) {
    float* stream = at.Stream(p, at.Is(RunFlag::kReplicated));
    x.ForEach(h, [&](float4& v, int i) { *reinterpret_cast<float4*>(stream + i) = v; });
  }
  if constexpr (!kSums) {
    if (op.flags.Has(OpFlag::kFinishPrelude) && p.shapes.adapter) {
      CtaSync();
      FinishPrelude(p, info.cell, info.position,
                    p.buffers.state + static_cast<size_t>(info.cell) * h);
      return;
    }
  }
  if (op.output == RowOutput::kNone) return;
  if (op.output == RowOutput::kNormed && op.pre_norm != nullptr)
    Normalise(x, p, pre, scratch + 2 * kWarps);
  StoreInputs<typename How::Writer>(p, op, at, x);
}
template <typename How>
__device__ __forceinline__ void RowOp(const DecodeParams& p, const Op& op, const RowAt& at) {
  RowOp<How>(p, op, at, [] {});
}

// RMSNorm over all of q and all of k (Raven olmo) or their biases (Huginn), then the rotation; q to
// its buffer, k to the cell. By `slices` CTAs, of which this is `slice`; norms need a single one.
__device__ __forceinline__ void FinishQkOp(const DecodeParams& p, const Op& op, int phase,
                                           const RowInfo& info, int row, int recurrence,
                                           float* scratch, int slice = 0, int slices = 1) {
  const float* raw =
      p.buffers.qk_raw + static_cast<size_t>(row) * (p.shapes.q_size + p.shapes.kv_size);
  const int plane =
      info.plane + op.layer + (phase == kPhaseCore ? recurrence * p.shapes.core_layers : 0);
  bf16* cell = p.buffers.cell_kv + (static_cast<size_t>(info.cell) * p.shapes.planes + plane) *
                                       p.shapes.kv_heads * 2 * p.shapes.head_stride;
  const float2* rope = p.buffers.rope + (static_cast<size_t>(phase) * p.shapes.row_stride + row) *
                                            (p.shapes.head_dim / 2);
  const int half = p.shapes.head_dim / 2;
  for (int part = 0; part < 2; ++part) {
    const float* from = part == 0 ? raw : raw + p.shapes.q_size;
    const float* weight = part == 0 ? op.q_norm : op.k_norm;
    const float* bias =
        op.qk_bias == nullptr || part == 0 ? op.qk_bias : op.qk_bias + p.shapes.q_size;
    const int size = part == 0 ? p.shapes.q_size : p.shapes.kv_size;
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares = 0.0f;
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const float v = __ldcg(from + i);
        squares += v * v;
      }
      scale = rsqrtf(CtaSum(squares, scratch + part * kWarps) / static_cast<float>(size) +
                     p.shapes.eps);
    }
    for (int pair = static_cast<int>(threadIdx.x) + slice * kThreads; pair < size / 2;
         pair += slices * kThreads) {
      const int head = pair / half, i = pair % half;
      const int at = head * p.shapes.head_dim + i;
      float low = __ldcg(from + at), high = __ldcg(from + at + half);
      if (weight != nullptr) {
        low = low * scale * weight[at];
        high = high * scale * weight[at + half];
      }
      if (bias != nullptr) {
        low = __fadd_rn(low, bias[at]);
        high = __fadd_rn(high, bias[at + half]);
      }
      const float2 turn = __ldcg(rope + i);
      bf16* out = part == 0 ? p.buffers.q + (static_cast<size_t>(row) * p.shapes.heads + head) *
                                                p.shapes.head_stride
                            : cell + head * 2 * p.shapes.head_stride;
      out[i] = __float2bfloat16(low * turn.x - high * turn.y);
      out[i + half] = __float2bfloat16(high * turn.x + low * turn.y);
    }
  }
}

}  // namespace loopspec::cuda

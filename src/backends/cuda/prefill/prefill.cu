#include "backends/cuda/prefill/prefill.h"

#include <algorithm>

#include "backends/cuda/decode/ops/attention_math.cuh"
#include "backends/cuda/decode/ops/row_op.cuh"
#include "base/check.h"

namespace loopspec::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    RowOpKernel(const __grid_constant__ DecodeParams p, const __grid_constant__ Op op, int phase,
                const RowInfo* infos, int first) {
  __shared__ float scratch[kNormsOfRow * kWarps];
  const int row = first + static_cast<int>(blockIdx.x);
  const RowAt at{infos, phase, row, true, false, {}, 0, scratch};
  if (op.flags.Has(OpFlag::kRope)) FillRope(p, phase, row, infos[row].position);
  if (p.shapes.hidden <= kLocalHidden) {
    RowOp<kLocalHidden, false>(p, op, at);
  } else {
    RowOp<kMaxHidden, false>(p, op, at);
  }
}

// Where the tiles have element i (below head_dim / 2) of a q or k head; its partner stands 8 rows
// on (TileLayout).
__device__ int PairRow(int head, int half, int i) {
  return (head * ((half + 7) / 8) + i / 8) * kTileRows + i % 8;
}

// Normalises (where the model does) and rotates q and k; q goes to its buffer, k and v into the
// position's page.
__global__ void __launch_bounds__(kThreads)
    QkvKernel(const __grid_constant__ DecodeParams p, const float* qkv, int ld, const float* q_norm,
              const float* k_norm, int phase, int plane_offset, const RowInfo* infos,
              const int32_t* pages, int first) {
  __shared__ float scratch[2][kWarps];
  const int row = first + static_cast<int>(blockIdx.x);
  const RowInfo info = infos[row];
  const float* from = qkv + static_cast<size_t>(row) * ld;
  const int plane = info.plane + plane_offset;
  const int page = pages[info.position / kPageSize], slot = info.position % kPageSize;
  const float2* rope = p.buffers.rope + (static_cast<size_t>(phase) * p.shapes.row_stride + row) *
                                            (p.shapes.head_dim / 2);
  const int half = p.shapes.head_dim / 2;
  for (int part = 0; part < 2; ++part) {
    const float* weight = part == 0 ? q_norm : k_norm;
    const int size = part == 0 ? p.shapes.q_size : p.shapes.kv_size;
    const int first_head = part == 0 ? 0 : p.shapes.heads;
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares = 0.0f;
      for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const float* x = from + PairRow(first_head + pair / half, half, pair % half);
        squares += x[0] * x[0] + x[8] * x[8];
      }
      scale = rsqrtf(CtaSum(squares, scratch[part]) / static_cast<float>(size) + p.shapes.eps);
    }
    for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
      const int head = pair / half, i = pair % half, at = head * p.shapes.head_dim + i;
      const float* x = from + PairRow(first_head + head, half, i);
      float low = x[0], high = x[8];
      if (weight != nullptr) {
        low = low * scale * weight[at];
        high = high * scale * weight[at + half];
      }
      const float2 turn = rope[i];
      bf16* out = part == 0 ? p.buffers.q + (static_cast<size_t>(row) * p.shapes.heads + head) *
                                                p.shapes.head_stride
                            : const_cast<bf16*>(InPage(p, page, plane, head, slot).key);
      out[i] = __float2bfloat16(low * turn.x - high * turn.y);
      out[i + half] = __float2bfloat16(high * turn.x + low * turn.y);
    }
  }
  for (int i = threadIdx.x; i < p.shapes.kv_size; i += kThreads) {
    const int head = i / p.shapes.head_dim;
    const_cast<bf16*>(InPage(p, page, plane, head, slot).value)[i % p.shapes.head_dim] =
        __float2bfloat16(from[PairRow(p.shapes.heads + p.shapes.kv_heads, half, 0) + i]);
  }
}

__global__ void SwiGluKernel(const __grid_constant__ DecodeParams p, const float* gate_up, int ld,
                             int first) {
  const int row = first + static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= p.shapes.ff) return;
  const float* at = gate_up + static_cast<size_t>(row) * ld + i / 8 * kTileRows + i % 8;
  const float gate = at[0], up = at[8];
  p.buffers.act_ff[static_cast<size_t>(row) * p.shapes.ld_ff + i] =
      __float2bfloat16(Gated(gate, up));
}

// A warp per 16 positions and head; the positions' keys and values are in their pages.
template <int kHead>
__global__ void __launch_bounds__(128)
    AttentionKernel(const __grid_constant__ DecodeParams p, int plane_offset, const RowInfo* infos,
                    const int32_t* pages, int base, int first, int last) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile = static_cast<int>(blockIdx.x) * 4 + static_cast<int>(threadIdx.x / 32);
  const int head = static_cast<int>(blockIdx.y);
  const int tile_row = tile * 16;
  if (tile_row + 16 <= first || tile_row >= last) return;
  const int kv_head = head / (p.shapes.heads / p.shapes.kv_heads);
  const int end = base + min(last, tile_row + 16);  // positions below are attended to
  const int plane = infos[first].plane + plane_offset;

  AttentionState<kHead, 16> state;
  state.Clear();
  int seen[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = tile_row + g + 8 * i;
    const bool there = row >= first && row < last;
    seen[i] = base + row;
#pragma unroll
    for (int c = 0; c < kHead / 32; ++c) {
      state.q[c][i] =
          there ? LoadCoherent16(p.buffers.q +
                                 (static_cast<size_t>(row) * p.shapes.heads + head) * kHead +
                                 c * 32 + t * 8)
                : make_uint4(0, 0, 0, 0);
    }
  }
  constexpr int kGroups = 4;
  for (int at = 0; at < end; at += 8 * kGroups) {
    KeyValue where[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int position = min(at + 8 * j + g, end - 1);
      where[j] = InPage(p, pages[position / kPageSize], plane, kv_head, position % kPageSize);
    }
    uint4 keys[kGroups][kHead / 32], values[kGroups][kHead / 32];
    LoadGroups(keys, [&](int j) { return where[j].key; });
    LoadGroups(values, [&](int j) { return where[j].value; });
    float weights[kGroups][4];
    state.template Weigh<false>(keys, at, seen, false, p.shapes.attention_scale, weights);
    state.Add(values, weights);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = tile_row + g + 8 * i;
    if (row < first || row >= last) continue;
    bf16* out = p.buffers.act_attention + static_cast<size_t>(row) * p.shapes.ld_attention +
                head * p.shapes.head_dim;
    const float scale = 1.0f / state.sum[i];
#pragma unroll
    for (int c = 0; c < kHead / 32; ++c) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int element = c * 32 + t * 8 + k;
        if (element < p.shapes.head_dim)
          out[element] = __float2bfloat16(state.Output(c, i, k) * scale);
      }
    }
  }
}

size_t WidestOutput(const ModelSpec& spec) {
  const int widest = std::max({TileLayout::Plain(spec.hidden).rows(), TileLayout::Qkv(spec).rows(),
                               TileLayout::GateUp(spec).rows()});
  return static_cast<size_t>(kPrefillRows) * static_cast<size_t>(widest);
}

}  // namespace

Prefiller::Prefiller(const DeviceModel& model, const Program& program, const DecodeParams& params,
                     const std::vector<int>& readout_depths, cudaStream_t stream)
    : model_(model),
      program_(program),
      readout_depths_(readout_depths),
      stream_(stream),
      products_(kPrefillRows),
      params_(params),
      host_infos_(static_cast<size_t>(kPhases) * kPrefillRows) {
  const size_t stream_elements =
      static_cast<size_t>(kPrefillRows) * static_cast<size_t>(model.spec.hidden);
  state_ = DeviceArray<float>(stream_elements, "prefill", true);
  coda_x_ = DeviceArray<float>(stream_elements, "prefill", true);
  prelude_out_ = DeviceArray<bf16>(stream_elements, "prefill", true);
  const auto inputs = [](int ld) {
    return DeviceArray<bf16>(static_cast<size_t>(kPrefillRows) * static_cast<size_t>(ld), "prefill",
                             true);
  };
  hidden_ = inputs(params.shapes.ld_hidden);
  coda_hidden_ = inputs(params.shapes.ld_hidden);
  attention_ = inputs(params.shapes.ld_attention);
  ff_ = inputs(params.shapes.ld_ff);
  adapter_ = inputs(model.spec.adapter ? params.shapes.ld_adapter : 0);
  sums_ = DeviceArray<float>(WidestOutput(model.spec), "prefill", true);
  for (auto& infos : infos_) infos = DeviceArray<RowInfo>(kPrefillRows, "prefill", true);
  params_.buffers.state = state_.data();
  params_.buffers.coda_x = coda_x_.data();
  params_.buffers.prelude_out = prelude_out_.data();
  params_.buffers.partials = sums_.data();
  params_.buffers.act_hidden = hidden_.data();
  params_.buffers.act_attention = attention_.data();
  params_.buffers.act_ff = ff_.data();
  params_.buffers.act_adapter = adapter_.data();
}

void Prefiller::Run(const PrefillPlan& plan, const LogitsSink* sink) {
  const int end = plan.start + static_cast<int>(plan.tokens.size());
  const size_t pages = static_cast<size_t>(PagesFor(end));
  if (pages_.size() < pages) {
    const size_t room = std::max<size_t>(256, 2 * pages);
    pages_ = DeviceArray<int32_t>(room, "a page table");
    host_pages_ = PinnedArray<int32_t>(room);
  }
  std::copy_n(plan.sequence.pages, pages, host_pages_.data());
  Check(cudaMemcpyAsync(pages_.data(), host_pages_.data(), pages * sizeof(int32_t),
                        cudaMemcpyHostToDevice, stream_),
        "copying a page table");
  for (int at = plan.start; at < end;) {
    const int base = at / kPrefillRows * kPrefillRows;
    const int next = std::min(end, base + kPrefillRows);
    RunChunk(plan, {base, at - base, next - base}, sink);
    at = next;
  }
  Check(cudaStreamSynchronize(stream_), "waiting for a prompt");
}

void Prefiller::RunChunk(const PrefillPlan& plan, const Chunk& chunk, const LogitsSink* sink) {
  // The last chunk's copy must be done before its staging is written again.
  Check(cudaStreamSynchronize(stream_), "waiting for a chunk of a prompt");
  for (int phase = 0; phase < kPhases; ++phase) {
    RowInfo* out = host_infos_.data() + phase * kPrefillRows;
    std::fill_n(out, kPrefillRows, RowInfo{});
    for (int row = chunk.first; row < chunk.last; ++row) {
      RowInfo& info = out[row];
      info.cell = row;
      info.position = chunk.base + row;
      info.token = plan.tokens[static_cast<size_t>(info.position - plan.start)];
      LOOPSPEC_CHECK(info.token >= 0 && info.token < model_.spec.vocab);
      const int core = model_.spec.prelude_layers;
      info.plane = phase == kPhasePrelude ? 0
                   : phase == kPhaseCore  ? core
                                          : core + model_.spec.recurrence * model_.spec.core_layers;
    }
    Check(cudaMemcpyAsync(infos_[phase].data(), out, kPrefillRows * sizeof(RowInfo),
                          cudaMemcpyHostToDevice, stream_),
          "copying a chunk of a prompt");
  }
  RunOps(program_.ops_begin[kPhasePrelude], program_.ops_end[kPhasePrelude], kPhasePrelude, 0,
         chunk);
  RunOps(program_.core_start, program_.core_start + 1, kPhaseCore, 0, chunk);
  for (int r = 0; r < model_.spec.recurrence; ++r) {
    RunOps(program_.ops_begin[kPhaseCore], program_.ops_end[kPhaseCore], kPhaseCore, r, chunk);
    for (size_t i = 0; i < readout_depths_.size(); ++i) {
      if (readout_depths_[i] == r + 1) Readout(static_cast<int>(i), chunk, sink);
    }
  }
}

// C on the state as it is now. Without a sink only its keys and values are wanted.
void Prefiller::Readout(int readout, const Chunk& chunk, const LogitsSink* sink) {
  const int layers = model_.spec.coda_layers;
  if (layers == 0 && sink == nullptr) return;
  // The next recurrence's input must survive.
  params_.buffers.act_hidden = coda_hidden_.data();
  const int begin = program_.ops_begin[kPhaseCoda], head = program_.ops_end[kPhaseCoda] - 1;
  RunOps(begin, head, kPhaseCoda, readout, chunk);
  if (sink != nullptr) {
    const size_t vocab = static_cast<size_t>(model_.spec.vocab);
    if (logits_.size() == 0) {
      logits_ = DeviceArray<float>(kPrefillRows * vocab, "the logits of a prompt's chunk");
      host_logits_ = PinnedArray<float>(kPrefillRows * vocab);
    }
    products_.Run(model_.head, model_.spec.vocab, params_.buffers.act_hidden, logits_.data(),
                  stream_);
    Check(cudaMemcpyAsync(host_logits_.data(), logits_.data(), logits_.bytes(),
                          cudaMemcpyDeviceToHost, stream_),
          "copying logits");
    Check(cudaStreamSynchronize(stream_), "copying logits");
    for (int row = chunk.first; row < chunk.last; ++row) {
      (*sink)(
          chunk.base + row, readout,
          std::span<const float>(host_logits_.data() + static_cast<size_t>(row) * vocab, vocab));
    }
  }
  params_.buffers.act_hidden = hidden_.data();
}

// `stack`: the recurrence of B, or the readout of C: how many whole stacks of planes lie before.
void Prefiller::RunOps(int begin, int end, int phase, int stack, const Chunk& chunk) {
  const auto rows = static_cast<unsigned>(chunk.last - chunk.first);
  const int layers = phase == kPhaseCoda ? model_.spec.coda_layers : model_.spec.core_layers;
  for (int i = begin; i < end; ++i) {
    Op op = program_.ops[static_cast<size_t>(i)];
    const int plane_offset = op.layer + stack * layers;
    switch (op.type) {
      case OpType::kRows:
        op.chunks[0] = 1;
        RowOpKernel<<<rows, kThreads, 0, stream_>>>(params_, op, phase, infos_[phase].data(),
                                                    chunk.first);
        break;
      case OpType::kMatrix:
        RunMatrix(op, phase, plane_offset, chunk);
        break;
      case OpType::kAttention: {
        const dim3 grid(kPrefillRows / 64, static_cast<unsigned>(params_.shapes.heads));
        const auto launch = [&](auto kernel) {
          kernel<<<grid, 128, 0, stream_>>>(params_, plane_offset, infos_[phase].data(),
                                            pages_.data(), chunk.base, chunk.first, chunk.last);
        };
        switch (params_.shapes.head_stride) {
          case 32:
            launch(AttentionKernel<32>);
            break;
          case 64:
            launch(AttentionKernel<64>);
            break;
          case 128:
            launch(AttentionKernel<128>);
            break;
          default:
            launch(AttentionKernel<256>);
            break;
        }
        break;
      }
      case OpType::kQkNorm:   // done with the rotation
      case OpType::kCombine:  // nothing was split
        break;
    }
    Check(cudaGetLastError(), "launching a prompt's kernels");
  }
}

void Prefiller::RunMatrix(const Op& op, int phase, int plane_offset, const Chunk& chunk) {
  const auto rows = static_cast<unsigned>(chunk.last - chunk.first);
  const DeviceMatrix& weights = program_.weights[static_cast<size_t>(op.matrix)];
  const bf16* input = op.input == Activation::kHidden      ? params_.buffers.act_hidden
                      : op.input == Activation::kAttention ? params_.buffers.act_attention
                      : op.input == Activation::kAdapter   ? params_.buffers.act_adapter
                                                           : params_.buffers.act_ff;
  // Sums that go through a row operation are read as rows of the stream.
  const bool plain = program_.kinds[static_cast<size_t>(op.matrix)] == MatrixKind::kPartial;
  products_.Run(weights, plain ? params_.shapes.hidden : weights.rows, input, sums_.data(),
                stream_);
  switch (program_.kinds[static_cast<size_t>(op.matrix)]) {
    case MatrixKind::kQkv:
    case MatrixKind::kQkvRaw:
      QkvKernel<<<rows, kThreads, 0, stream_>>>(params_, sums_.data(), weights.rows, op.q_norm,
                                                op.k_norm, phase, plane_offset,
                                                infos_[phase].data(), pages_.data(), chunk.first);
      break;
    case MatrixKind::kGateUp: {
      const dim3 grid(static_cast<unsigned>((params_.shapes.ff + kThreads - 1) / kThreads), rows);
      SwiGluKernel<<<grid, kThreads, 0, stream_>>>(params_, sums_.data(), weights.rows,
                                                   chunk.first);
      break;
    }
    case MatrixKind::kPartial:  // the next row operation takes the sums as they are
    case MatrixKind::kHead:
      break;
  }
}

}  // namespace loopspec::cuda

// The epilogue of a matrix product: rotation of q and k, keys and values to the cell, SwiGLU, sums
// for the next row operation, logits; to memory or through the exchange.
#pragma once

#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/exchange/low_latency.cuh"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/kernel_params.h"

namespace loopspec::cuda {

// Explicit fused operations: every instance of this function has to round alike.
__device__ __forceinline__ void Rotate(const float2& cos_sin, float& low, float& high) {
  const float turned = fmaf(low, cos_sin.x, -__fmul_rn(high, cos_sin.y));
  high = fmaf(high, cos_sin.x, __fmul_rn(low, cos_sin.y));
  low = turned;
}

// Thread (g, n) gets outputs g and g + 8 of a tile for batch row n.
class Epilogue {
 public:
  __device__ __forceinline__ Epilogue(const Run& run, const MatrixShare& share, int row, bool live)
      : p_(Context().p),
        kind_(share.kind),
        chunk_(share.chunk_begin),
        per_head_((p_.shapes.head_dim / 2 + 7) / 8),
        qk_heads_(p_.shapes.heads + p_.shapes.kv_heads),
        row_(row),
        epoch_(run.epoch),
        live_(live),
        sends_(run.flags.Has(RunFlag::kSends)) {
    if (!live || (share.kind != MatrixKind::kQkv && share.kind != MatrixKind::kQkvRaw)) return;
    const PhaseContext& phase = Context().phase;
    const RowInfo& info = phase.infos[row];
    const int plane = info.plane + PlaneOffset(run);
    cell_ = p_.buffers.cell_kv + (static_cast<size_t>(info.cell) * p_.shapes.planes + plane) *
                                     p_.shapes.kv_heads * 2 * p_.shapes.head_stride;
    rope_ = p_.buffers.rope + (static_cast<size_t>(phase.index) * p_.shapes.row_stride + row) *
                                  (p_.shapes.head_dim / 2);
  }

  // Loads what Store will need, so that the latency is hidden behind the products.
  __device__ __forceinline__ void Prepare(int tile, int g) {
    if (live_ && kind_ == MatrixKind::kQkv) {
      const int head = Quotient(tile, per_head_);
      const int i = (tile - head * per_head_) * 8 + g;
      if (head < qk_heads_ && i < p_.shapes.head_dim / 2) cos_sin_ = __ldcg(rope_ + i);
    }
  }

  // By whole warps; `there`: this thread has an output.
  __device__ __forceinline__ void Store(int tile, int g, float low, float high, bool there) const {
    const bool live = live_ && there;
    if (kind_ == MatrixKind::kQkv) {
      StoreQkv(tile, g, low, high, live);
      return;
    }
    if (kind_ == MatrixKind::kGateUp) {
      StoreGated(tile * 8 + g, Gated(low, high), live);
      return;
    }
    if (!live) return;
    const int i = tile * kTileRows + g;
    switch (kind_) {
      case MatrixKind::kPartial: {
        if (sends_) {
          LLWord* out = p_.exchange.sums + static_cast<size_t>(row_) * p_.shapes.hidden;
          Send(out + ExchangedSumAt(i, p_.shapes.hidden), low, epoch_);
          Send(out + ExchangedSumAt(i + 8, p_.shapes.hidden), high, epoch_);
          return;
        }
        float* out = p_.buffers.partials +
                     (static_cast<size_t>(chunk_) * p_.shapes.row_stride + row_) * p_.shapes.hidden;
        StorePlain(out, i, p_.shapes.hidden, low, high);
        return;
      }
      case MatrixKind::kHead:
        StorePlain(p_.buffers.logits + static_cast<size_t>(row_) * p_.shapes.vocab, i,
                   p_.shapes.vocab, low, high);
        return;
      default:
        StoreRaw(tile, g, low, high);
    }
  }

 private:
  static __device__ __forceinline__ void StorePlain(float* out, int i, int outputs, float low,
                                                    float high) {
    if (i < outputs) out[i] = low;
    if (i + 8 < outputs) out[i + 8] = high;
  }

  __device__ __forceinline__ void StoreGated(int i, float value, bool live) const {
    const float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    if (!live || i >= p_.shapes.ff) return;
    if (!sends_) {
      p_.buffers.act_ff[InputAt(row_, i, p_.shapes.ld_ff)] = __float2bfloat16(value);
    } else if (i % 2 == 0) {
      Send(p_.exchange.ff + (static_cast<size_t>(row_) * p_.shapes.ld_ff + InputPlace(i)) / 2,
           PackBF16(value, next), epoch_);
    }
  }

  // Rotates q and k. q goes to its buffer, k and v to the cell; or all three through the exchange,
  // and k and v also to the cell for later steps (and later recurrences: PhaseRelation).
  __device__ __forceinline__ void StoreQkv(int tile, int g, float low, float high,
                                           bool live) const {
    const int half = p_.shapes.head_dim / 2;
    int head = Quotient(tile, per_head_), i = (tile - head * per_head_) * 8 + g, other = i + half;
    if (head >= qk_heads_) {  // sixteen values, not rotated
      const int value = (tile - qk_heads_ * per_head_) * kTileRows + g;
      head = Quotient(value, p_.shapes.head_dim);
      i = value - head * p_.shapes.head_dim;
      StoreValue(value, low, live);
      StoreValue(value + 8, high, live);
      other = i + 8;
      head += qk_heads_;
    } else {
      Rotate(cos_sin_, low, high);
      if (live && i < half && !(sends_ && head < p_.shapes.heads)) {
        bf16* out = head < p_.shapes.heads
                        ? p_.buffers.q + (static_cast<size_t>(row_) * p_.shapes.heads + head) *
                                             p_.shapes.head_stride
                        : cell_ + (head - p_.shapes.heads) * 2 * p_.shapes.head_stride;
        out[i] = __float2bfloat16(low);
        out[i + half] = __float2bfloat16(high);
      }
    }
    if (!sends_) return;
    // Even lanes send the pair of the lower elements, odd ones that of the higher.
    const float low_there = __shfl_xor_sync(0xFFFFFFFFu, low, 1),
                high_there = __shfl_xor_sync(0xFFFFFFFFu, high, 1);
    if (!live) return;
    const int at = g % 2 == 0 ? i : other - 1;
    const uint32_t pair = g % 2 == 0 ? PackBF16(low, low_there) : PackBF16(high_there, high);
    // q heads, then k and v of each head in turn.
    const int vector = head < p_.shapes.heads ? head
                       : head < qk_heads_     ? p_.shapes.heads + (head - p_.shapes.heads) * 2
                                              : p_.shapes.heads + (head - qk_heads_) * 2 + 1;
    Send(p_.exchange.qkv +
             (static_cast<size_t>(row_) * (p_.shapes.heads + 2 * p_.shapes.kv_heads) + vector) *
                 half +
             at / 2,
         pair, epoch_);
  }

  __device__ __forceinline__ void StoreRaw(int tile, int g, float low, float high) const {
    const int half = p_.shapes.head_dim / 2;
    const int head = Quotient(tile, per_head_);
    if (head >= qk_heads_) {
      const int i = (tile - qk_heads_ * per_head_) * kTileRows + g;
      StoreValue(i, low, true);
      StoreValue(i + 8, high, true);
      return;
    }
    const int i = (tile - head * per_head_) * 8 + g;
    if (i >= half) return;
    float* out = p_.buffers.qk_raw +
                 static_cast<size_t>(row_) * (p_.shapes.q_size + p_.shapes.kv_size) +
                 head * p_.shapes.head_dim;
    out[i] = low;
    out[i + half] = high;
  }

  __device__ __forceinline__ void StoreValue(int i, float value, bool live) const {
    if (!live || i >= p_.shapes.kv_size) return;
    const int head = Quotient(i, p_.shapes.head_dim);
    cell_[(head * 2 + 1) * p_.shapes.head_stride + i - head * p_.shapes.head_dim] =
        __float2bfloat16(value);
  }

  const DecodeParams& p_;
  MatrixKind kind_;
  int chunk_;  // which partial sum
  int per_head_, qk_heads_;
  int row_;
  uint32_t epoch_;
  bool live_, sends_;
  bf16* cell_ = nullptr;
  const float2* rope_ = nullptr;
  float2 cos_sin_ = {0.0f, 0.0f};
};

}  // namespace loopspec::cuda

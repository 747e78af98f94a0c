// What becomes of the outputs of a matrix product: rotation and the cell for q, k and v, SwiGLU,
// sums for the next row operation, logits; to memory or by mail.
#pragma once

#include "backends/cuda/decode/block_context.cuh"
#include "backends/cuda/decode/device_ops.cuh"
#include "backends/cuda/decode/input_layout.cuh"
#include "backends/cuda/decode/mail.cuh"
#include "backends/cuda/program/step_types.h"

namespace loopspec::cuda {

// What happens to the outputs of a tile. Thread (g, n) gets outputs g and g + 8 of batch row n.
class Epilogue {
 public:
  __device__ __forceinline__ Epilogue(const Run& run, const MatrixShare& share, int row, bool live)
      : p_(Context().p),
        kind_(share.kind),
        chunk_(share.chunk_begin),
        per_head_((p_.head_dim / 2 + 7) / 8),
        qk_heads_(p_.heads + p_.kv_heads),
        row_(row),
        stamp_(run.stamp),
        live_(live),
        mail_((run.flags & kRunMailOut) != 0) {
    if (!live || (share.kind != MatrixKind::kQkv && share.kind != MatrixKind::kQkvRaw)) return;
    const SetContext& set = Context().set;
    const RowInfo& info = set.infos[row];
    const int plane = info.plane + PlaneOffset(run);
    cell_ = p_.cell_kv +
            (static_cast<size_t>(info.cell) * p_.planes + plane) * p_.kv_heads * 2 * p_.head_stride;
    rope_ = p_.rope + (static_cast<size_t>(set.set) * p_.row_stride + row) * (p_.head_dim / 2);
  }

  // Loads what Store will need, early enough for the latency to pass behind the products.
  __device__ __forceinline__ void Prepare(int tile, int g) {
    if (live_ && kind_ == MatrixKind::kQkv) {
      const int head = Quotient(tile, per_head_);
      const int i = (tile - head * per_head_) * 8 + g;
      if (head < qk_heads_ && i < p_.head_dim / 2) cos_sin_ = __ldcg(rope_ + i);
    }
  }

  // By whole warps; `there`: the thread has an output.
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
        if (mail_) {
          Mail* out = p_.mail_sums + static_cast<size_t>(row_) * p_.hidden;
          Post(out + SumPlace(i, p_.hidden), low, stamp_);
          Post(out + SumPlace(i + 8, p_.hidden), high, stamp_);
          return;
        }
        float* out = p_.partials + (static_cast<size_t>(chunk_) * p_.row_stride + row_) * p_.hidden;
        StorePlain(out, i, p_.hidden, low, high);
        return;
      }
      case MatrixKind::kHead:
        StorePlain(p_.logits + static_cast<size_t>(row_) * p_.vocab, i, p_.vocab, low, high);
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
    if (!live || i >= p_.ff) return;
    if (!mail_) {
      p_.act_ff[InputAt(row_, i, p_.ld_ff)] = __float2bfloat16(value);
    } else if (i % 2 == 0) {
      Post(p_.mail_ff + (static_cast<size_t>(row_) * p_.ld_ff + InputPlace(i)) / 2,
           PackBF16(value, next), stamp_);
    }
  }

  // q and k turned, v as it is; q to its buffer, k and v to the cell, or all by mail and k and v to
  // the cell for later steps (and later recurrences: PlanHeader::related).
  __device__ __forceinline__ void StoreQkv(int tile, int g, float low, float high,
                                           bool live) const {
    const int half = p_.head_dim / 2;
    int head = Quotient(tile, per_head_), i = (tile - head * per_head_) * 8 + g, other = i + half;
    if (head >= qk_heads_) {  // sixteen values as they come
      const int value = (tile - qk_heads_ * per_head_) * kTileRows + g;
      head = Quotient(value, p_.head_dim);
      i = value - head * p_.head_dim;
      StoreValue(value, low, live);
      StoreValue(value + 8, high, live);
      other = i + 8;
      head += qk_heads_;
    } else {
      // Fused by hand: every instance of this function has to round alike.
      const float turned = fmaf(low, cos_sin_.x, -__fmul_rn(high, cos_sin_.y));
      high = fmaf(high, cos_sin_.x, __fmul_rn(low, cos_sin_.y));
      low = turned;
      if (live && i < half && !(mail_ && head < p_.heads)) {
        bf16* out = head < p_.heads
                        ? p_.q + (static_cast<size_t>(row_) * p_.heads + head) * p_.head_stride
                        : cell_ + (head - p_.heads) * 2 * p_.head_stride;
        out[i] = __float2bfloat16(low);
        out[i + half] = __float2bfloat16(high);
      }
    }
    if (!mail_) return;
    // Even lanes post the pair of the lower elements, odd ones that of the higher.
    const float low_there = __shfl_xor_sync(0xFFFFFFFFu, low, 1),
                high_there = __shfl_xor_sync(0xFFFFFFFFu, high, 1);
    if (!live) return;
    const int at = g % 2 == 0 ? i : other - 1;
    const uint32_t pair = g % 2 == 0 ? PackBF16(low, low_there) : PackBF16(high_there, high);
    // q heads, then k and v of each head in turn.
    const int vector = head < p_.heads    ? head
                       : head < qk_heads_ ? p_.heads + (head - p_.heads) * 2
                                          : p_.heads + (head - qk_heads_) * 2 + 1;
    Post(p_.mail_qkv + (static_cast<size_t>(row_) * (p_.heads + 2 * p_.kv_heads) + vector) * half +
             at / 2,
         pair, stamp_);
  }

  __device__ __forceinline__ void StoreRaw(int tile, int g, float low, float high) const {
    const int half = p_.head_dim / 2;
    const int head = Quotient(tile, per_head_);
    if (head >= qk_heads_) {
      const int i = (tile - qk_heads_ * per_head_) * kTileRows + g;
      StoreValue(i, low, true);
      StoreValue(i + 8, high, true);
      return;
    }
    const int i = (tile - head * per_head_) * 8 + g;
    if (i >= half) return;
    float* out =
        p_.qk_raw + static_cast<size_t>(row_) * (p_.q_size + p_.kv_size) + head * p_.head_dim;
    out[i] = low;
    out[i + half] = high;
  }

  __device__ __forceinline__ void StoreValue(int i, float value, bool live) const {
    if (!live || i >= p_.kv_size) return;
    const int head = Quotient(i, p_.head_dim);
    cell_[(head * 2 + 1) * p_.head_stride + i - head * p_.head_dim] = __float2bfloat16(value);
  }

  const DecodeParams& p_;
  MatrixKind kind_;
  int chunk_;  // which partial sum
  int per_head_, qk_heads_;
  int row_;
  uint32_t stamp_;
  bool live_, mail_;
  bf16* cell_ = nullptr;
  const float2* rope_ = nullptr;
  float2 cos_sin_ = {0.0f, 0.0f};
};

}  // namespace loopspec::cuda

// The epilogues of products of many rows: what Epilogue does (ops/matrix_epilogue.cuh), to memory
// and for many rows of one tile. Whatever depends on the tile alone is worked out once.
#pragma once

#include <utility>

#include "backends/cuda/decode/ops/matrix_epilogue.cuh"
#include "backends/cuda/device/input_layout.cuh"
#include "backends/cuda/device/kernel_params.h"
#include "backends/cuda/device/wide_context.cuh"

namespace loopspec::cuda {

// Outputs g and g + 8 of a tile, for one row after another: Load what a row needs, then Store it.
struct WideTileAt {
  int tile, g;
  int chunk;         // which partial sum
  int plane_offset;  // of the layer, relative to the row's first plane
};

// Sums for the next row operation, logits: rows of `outputs` floats.
class PlainEpilogue {
 public:
  struct Loaded {};
  __device__ __forceinline__ PlainEpilogue(float* rows, int outputs, const WideTileAt& at)
      : rows_(rows + at.tile * kTileRows + at.g),
        outputs_(outputs),
        low_(at.tile * kTileRows + at.g < outputs),
        high_(at.tile * kTileRows + at.g + 8 < outputs) {}
  __device__ __forceinline__ Loaded Load(int) const { return {}; }
  __device__ __forceinline__ void Store(int row, Loaded, float low, float high) const {
    float* to = rows_ + static_cast<size_t>(row) * static_cast<size_t>(outputs_);
    if (low_) to[0] = low;
    if (high_) to[8] = high;
  }

 private:
  float* rows_;
  int outputs_;
  bool low_, high_;
};

class GatedEpilogue {
 public:
  struct Loaded {};
  __device__ __forceinline__ GatedEpilogue(const DecodeParams& p, const WideTileAt& at)
      : to_(p.buffers.act_ff + WideInputAt(0, at.tile * 8, p.shapes.row_stride, p.shapes.ld_ff)),
        part_(at.tile % 8),
        g_(at.g),
        there_(at.tile * 8 + at.g < p.shapes.ff) {}
  __device__ __forceinline__ Loaded Load(int) const { return {}; }
  __device__ __forceinline__ void Store(int row, Loaded, float gate, float up) const {
    const int at = row * kWideInputGroup + ((part_ ^ row % 8) - part_) * 8 + g_;
    if (there_) to_[at] = __float2bfloat16(Gated(gate, up));
  }

 private:
  bf16* to_;  // row 0, the tile's first element
  int part_;  // of the row's 128 bytes
  int g_;
  bool there_;
};

// kRotated: q and k are rotated; q goes to its buffer, k to the cell. Otherwise both go to qk_raw.
// Values always go to the cell. A tile has pairs (i, i + head_dim / 2) of one head of q or k, or
// sixteen values.
template <bool kRotated>
class QkvEpilogue {
 public:
  struct Loaded {
    float2 cos_sin;
    bf16* cell;
  };
  __device__ __forceinline__ QkvEpilogue(const DecodeParams& p, const WideRun& run,
                                         const WideTileAt& at)
      : p_(p), run_(run), plane_offset_(at.plane_offset), half_(p.shapes.head_dim / 2) {
    const int per_head = (half_ + 7) / 8, qk_heads = p.shapes.heads + p.shapes.kv_heads;
    head_ = Quotient(at.tile, per_head);
    i_ = (at.tile - head_ * per_head) * 8 + at.g;
    values_ = head_ >= qk_heads;
    if (!values_) {
      there_[0] = there_[1] = i_ < half_;
      return;
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int value = (at.tile - qk_heads * per_head) * kTileRows + at.g + 8 * k;
      const int head = Quotient(value, p.shapes.head_dim);
      there_[k] = value < p.shapes.kv_size;
      place_[k] = (head * 2 + 1) * p.shapes.head_stride + value - head * p.shapes.head_dim;
    }
  }

  __device__ __forceinline__ Loaded Load(int row) const {
    Loaded loaded{{0.0f, 0.0f}, nullptr};
    if (kRotated && !values_ && there_[0]) {
      loaded.cos_sin = __ldcg(p_.buffers.rope +
                              (static_cast<size_t>(run_.phase) * p_.shapes.row_stride + row) *
                                  static_cast<size_t>(half_) +
                              i_);
    }
    if (values_ || (kRotated && head_ >= p_.shapes.heads)) {
      const RowInfo& info = run_.infos[row];
      const int plane = info.plane + plane_offset_;
      loaded.cell =
          p_.buffers.cell_kv + (static_cast<size_t>(info.cell) * p_.shapes.planes + plane) *
                                   p_.shapes.kv_heads * 2 * p_.shapes.head_stride;
    }
    return loaded;
  }
  __device__ __forceinline__ void Store(int row, const Loaded& loaded, float low,
                                        float high) const {
    if (values_) {
      if (there_[0]) loaded.cell[place_[0]] = __float2bfloat16(low);
      if (there_[1]) loaded.cell[place_[1]] = __float2bfloat16(high);
    } else if (kRotated) {
      Rotate(loaded.cos_sin, low, high);
      bf16* to = head_ < p_.shapes.heads
                     ? p_.buffers.q + (static_cast<size_t>(row) * p_.shapes.heads + head_) *
                                          p_.shapes.head_stride
                     : loaded.cell + (head_ - p_.shapes.heads) * 2 * p_.shapes.head_stride;
      if (!there_[0]) return;
      to[i_] = __float2bfloat16(low);
      to[i_ + half_] = __float2bfloat16(high);
    } else if (there_[0]) {
      float* to = p_.buffers.qk_raw +
                  static_cast<size_t>(row) * (p_.shapes.q_size + p_.shapes.kv_size) +
                  head_ * p_.shapes.head_dim;
      to[i_] = low;
      to[i_ + half_] = high;
    }
  }

 private:
  const DecodeParams& p_;
  const WideRun& run_;
  int plane_offset_, half_;
  int head_, i_;
  bool values_;
  bool there_[2];
  int place_[2];  // of values, in the cell
};

template <MatrixKind kKind>
__device__ __forceinline__ auto MakeEpilogue(const DecodeParams& p, const WideRun& run,
                                             const WideTileAt& at) {
  if constexpr (kKind == MatrixKind::kQkv || kKind == MatrixKind::kQkvRaw) {
    return QkvEpilogue<kKind == MatrixKind::kQkv>(p, run, at);
  } else if constexpr (kKind == MatrixKind::kGateUp) {
    return GatedEpilogue(p, at);
  } else if constexpr (kKind == MatrixKind::kPartial) {
    const size_t before = static_cast<size_t>(at.chunk) * p.shapes.row_stride * p.shapes.hidden;
    return PlainEpilogue(p.buffers.partials + before, p.shapes.hidden, at);
  } else {
    return PlainEpilogue(p.buffers.logits, p.shapes.vocab, at);
  }
}

// The epilogue of a tile's sums as the matrix instructions leave them in a lane: of rows `first` +
// 8 j and the one after it, sums[4 j + e] has output g + 8 (e / 2) of row e % 2. What the rows need
// is loaded for up to sixteen at once; where that is all of them and kEarly, before the sums are
// there.
template <MatrixKind kKind, int kCount, bool kEarly>
class TileEpilogue {
  static constexpr int kRows = kCount / 2, kParts = (kRows + 15) / 16, kAtOnce = kRows / kParts;
  static_assert(kAtOnce * kParts == kRows);

 public:
  static constexpr bool kLoadsEarly = kEarly && kParts == 1;

  __device__ __forceinline__ TileEpilogue(const DecodeParams& p, const WideRun& run,
                                          const WideTileAt& at, int first)
      : rows_(run.rows), first_(first), epilogue_(MakeEpilogue<kKind>(p, run, at)) {}

  // After the operations before have ended.
  __device__ __forceinline__ void LoadEarly() {
    if constexpr (kLoadsEarly) Load(0);
  }
  __device__ __forceinline__ void Store(const float (&sums)[kCount]) {
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kAtOnce) {
      if constexpr (!kLoadsEarly) Load(begin);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = (begin + i) / 2, e = (begin + i) % 2;
        if (Row(begin + i) < rows_)
          epilogue_.Store(Row(begin + i), loaded_[i], sums[4 * j + e], sums[4 * j + 2 + e]);
      }
    }
  }

 private:
  __device__ __forceinline__ int Row(int i) const {
    return first_ + i / 2 * 8 + i % 2;
  }
  __device__ __forceinline__ void Load(int begin) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (Row(begin + i) < rows_) loaded_[i] = epilogue_.Load(Row(begin + i));
    }
  }

  using Epilogue = decltype(MakeEpilogue<kKind>(std::declval<const DecodeParams&>(),
                                                std::declval<const WideRun&>(),
                                                std::declval<const WideTileAt&>()));
  int rows_, first_;
  Epilogue epilogue_;
  typename Epilogue::Loaded loaded_[kAtOnce];
};

}  // namespace loopspec::cuda

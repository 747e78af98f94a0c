// A model's weights in device memory: matrices as bf16 rows or as codes of few bits
// (weight_form.h), norms and biases as float32.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "backends/cuda/host/cuda_memory.h"
#include "backends/cuda/host/weight_form.h"
#include "model/model.h"

namespace loopspec::cuda {

using bf16 = __nv_bfloat16;

// Inputs of matrix products come in blocks of this many elements; rows are padded to whole blocks
// with zeros, so that no kernel has to check where a row ends.
inline constexpr int kBlockK = 256;
inline int PaddedK(int k) {
  return (k + kBlockK - 1) / kBlockK * kBlockK;
}

inline constexpr int kTileRows =
    16;  // rows of a weight tile: the long side of the matrix instruction
static_assert(kTileRows == kUnitOutputs && kBlockK % kUnitK == 0);

// Matrices are stored in whole tiles. The two halves of a tile hold outputs that are used together:
// rows i and i + head_dim / 2 of a head for the rotation (2 i and 2 i + 1 where the model pairs
// neighbours), gate and up of one output.
struct DeviceMatrix {
  const bf16* data = nullptr;        // kBF16: [rows, ld]
  const std::byte* units = nullptr;  // other forms: [tiles][ld / kUnitK] units
  const float* scales = nullptr;     // kInt8: of each row, over kCodeStep
  int rows = 0;  // a multiple of kTileRows; rows of the checkpoint in the order of TileLayout
  int cols = 0;
  int ld = 0;  // PaddedK(cols)
  WeightForm form = WeightForm::kBF16;

  int tiles() const { return rows / kTileRows; }
  bool packed() const { return form != WeightForm::kBF16; }
  bool there() const { return begin() != nullptr; }
  const void* begin() const { return packed() ? static_cast<const void*>(units) : data; }
  size_t bytes() const {  // of what a product reads, but for kInt8's scales
    return static_cast<size_t>(tiles()) * static_cast<size_t>(ld / kUnitK) *
           static_cast<size_t>(UnitBytes(form));
  }
};

// Which row of the checkpoint's matrix stands in which row of the tiles.
class TileLayout {
 public:
  static TileLayout Plain(int rows) { return TileLayout(0, 0, 0, rows); }
  static TileLayout Qkv(const ModelSpec& spec) {
    return TileLayout(spec.heads + spec.kv_heads, spec.head_dim / 2, spec.head_dim, spec.kv_size(),
                      spec.rope.interleaved);
  }
  static TileLayout GateUp(const ModelSpec& spec) { return TileLayout(1, spec.ff, 2 * spec.ff, 0); }

  int rows() const { return paired_rows() + (plain_ + kTileRows - 1) / kTileRows * kTileRows; }
  // -1: padding.
  int Source(int row) const {
    if (row >= paired_rows()) {
      const int i = row - paired_rows();
      return i < plain_ ? groups_ * group_ + i : -1;
    }
    const int tile = row / kTileRows, in_tile = row % kTileRows;
    const int i = tile % tiles_per_group() * 8 + in_tile % 8;
    if (i >= pairs_) return -1;
    return tile / tiles_per_group() * group_ +
           (neighbours_ ? 2 * i + in_tile / 8 : in_tile / 8 * pairs_ + i);
  }

 private:
  TileLayout(int groups, int pairs, int group, int plain, bool neighbours = false)
      : groups_(groups), pairs_(pairs), group_(group), plain_(plain), neighbours_(neighbours) {}
  int tiles_per_group() const { return (pairs_ + 7) / 8; }
  int paired_rows() const { return groups_ * tiles_per_group() * kTileRows; }

  int groups_, pairs_,
      group_;  // groups of `group_` rows, of which i and i + pairs_ belong together
  int plain_;  // rows that follow, as they come
  // The pairs are rows 2 i and 2 i + 1 instead. Kernels see no difference: what they take for
  // element i + pairs_ of a head is 2 i + 1 of the checkpoint's, for queries and keys alike, and
  // the product of the two does not depend on the order.
  bool neighbours_;
};

struct DeviceLayer {
  const float *attn_norm_in = nullptr, *attn_norm_out = nullptr;
  const float *mlp_norm_in = nullptr, *mlp_norm_out = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  const float* qk_bias =
      nullptr;  // [heads + kv_heads][head_dim], a head's elements as in the tiles
  DeviceMatrix qkv, attn_out, gate_up, down;
};

struct DeviceModel {
  ModelSpec spec;
  DeviceMatrix embedding, head, adapter, update;
  const float *adapter_bias = nullptr, *step = nullptr, *decay = nullptr;
  const float *prelude_norm = nullptr, *loop_norm = nullptr, *final_norm = nullptr;
  std::vector<DeviceLayer> prelude, core, coda;
  size_t core_bytes = 0, prelude_bytes = 0, coda_bytes = 0;  // read by one pass of B, P, C

  DeviceArray<std::byte> matrices;
  DeviceArray<float> vectors;

  bool packed() const;  // whether a matrix has few bits

  // Copies the checkpoint's tensors up through pinned memory. int8 with a scale for each output and
  // int4 in groups stay as they are (FormOf); all others become bf16, and so does the embedding.
  static DeviceModel Load(const Model& model);
  // Random weights made on the device, for timing shapes without a file; `form`: of the matrices
  // that are multiplied.
  static DeviceModel Random(const ModelSpec& spec, uint64_t seed,
                            WeightForm form = WeightForm::kBF16);
};

// The form in which a matrix of the checkpoint is kept.
WeightForm FormOf(const LinearWeights& weights);

}  // namespace loopspec::cuda

// A model's weights in device memory: matrices as bf16 rows, norms and biases as float32.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "backends/cuda/cuda_memory.h"
#include "model/model.h"

namespace loopspec::cuda {

using bf16 = __nv_bfloat16;

// Inputs of matrix products come in blocks of this many elements; rows are padded to whole blocks with zeros, so that
// no kernel has to ask where a row ends.
inline constexpr int kBlockK = 64;
inline int PaddedK(int k) { return (k + kBlockK - 1) / kBlockK * kBlockK; }

struct DeviceMatrix {
  const bf16* data = nullptr;  // [rows, ld]
  int rows = 0;
  int cols = 0;
  int ld = 0;  // PaddedK(cols)
};

struct DeviceBlock {
  const float *attn_norm_in = nullptr, *attn_norm_out = nullptr;
  const float *mlp_norm_in = nullptr, *mlp_norm_out = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  DeviceMatrix qkv, attn_out, gate_up, down;
};

struct DeviceModel {
  ModelSpec spec;
  DeviceMatrix embedding, head, adapter;
  const float *adapter_bias = nullptr, *loop_norm = nullptr, *final_norm = nullptr;
  std::vector<DeviceBlock> prelude, core, coda;
  size_t core_bytes = 0, prelude_bytes = 0, coda_bytes = 0;  // read by one pass of B, P, C

  DeviceArray<bf16> matrices;
  DeviceArray<float> vectors;

  // Copies the checkpoint's tensors up through pinned memory; float32 and float16 become bf16.
  static DeviceModel Load(const Model& model);
  // Random weights made on the device, for timing shapes without a file.
  static DeviceModel Random(const ModelSpec& spec, uint64_t seed);
};

}  // namespace loopspec::cuda

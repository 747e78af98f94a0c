// The weights of a model, bound by role: views of the checkpoint's tensors, checked for shape.
// Nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "model/quantization.h"
#include "tensor/safetensors.h"

namespace loopspec {

// A matrix [out, in] applied as y = W x, possibly given in parts stacked by rows (q, k, v of Ouro
// are three tensors, Raven's Wqkv is one).
struct LinearWeights {
  std::vector<TensorView> parts;  // each [rows, in]
  TensorView bias;                // [out], may be empty

  int64_t in() const { return parts.empty() ? 0 : parts[0].shape[1]; }
  int64_t out() const;
  size_t bytes() const;
};

struct BlockWeights {
  TensorView attn_norm_in, attn_norm_out;  // [hidden]; which are there depends on NormPlacement
  TensorView mlp_norm_in, mlp_norm_out;    // [hidden]
  TensorView q_norm, k_norm;               // [q_size], [kv_size] when qk_norm
  TensorView qk_bias;                      // [q_size + kv_size] elements, q's first, when qk_bias
  LinearWeights qkv;                       // rows q | k | v: [q_size + 2 kv_size, hidden]
  LinearWeights attn_out;                  // [hidden, q_size]
  LinearWeights gate_up;                   // rows gate | up: [2 ff, hidden]
  LinearWeights down;                      // [hidden, ff]

  size_t bytes() const;
};

struct ModelWeights {
  TensorView embedding;  // [vocab, hidden]
  std::vector<BlockWeights> prelude, core, coda;
  LinearWeights adapter;             // [hidden, 2 hidden], columns state | e
  TensorView loop_norm, final_norm;  // [hidden]
  LinearWeights head;                // [vocab, hidden]

  // Bytes that one pass must read: the floor of its time is these over the bandwidth.
  size_t prelude_bytes() const;  // blocks only: of the embedding one row is read
  size_t core_bytes() const;
  size_t coda_bytes() const;  // blocks, norm and head
  int64_t parameters = 0;     // elements of all bound tensors
};

// Binds every tensor; throws Error naming a tensor that is missing, unknown, misshapen or of an
// unsupported type.
ModelWeights BindWeights(const ModelSpec& spec, const Checkpoint& checkpoint,
                         Quantization quantization = Quantization::kNone);

}  // namespace loopspec

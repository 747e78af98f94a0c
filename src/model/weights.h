// The weights of a model, bound by role: views of the checkpoint's tensors, checked for shape.
// Nothing is copied but vectors that a file stores in another form than they are used in.
#pragma once

#include <cstdint>
#include <memory>
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
  // Whether GPUs read it as it is stored: all parts in one of two forms (QuantizedTensor).
  bool IsInt8OfOutputs() const;
  bool IsInt4OfGroups() const;
  size_t gpu_bytes() const;  // that it takes there, as bf16 where neither holds; without padding
};

// One of a mixture's feed-forwards.
struct ExpertWeights {
  LinearWeights gate_up, down;  // as below
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
  LinearWeights router;                    // [experts, hidden], and instead of the two above
  std::vector<ExpertWeights> experts;      // these,
  int active_experts = 0;                  // of which a row takes this many

  size_t bytes() const;  // read for one row
};

struct ModelWeights {
  TensorView embedding;  // [vocab, hidden]
  std::vector<BlockWeights> prelude, core, coda;
  LinearWeights adapter;   // Injection::kLinear: [hidden, 2 hidden], columns state | e
  LinearWeights update;    // kDiagonal, kOrthogonal: W of u = step (W e), [hidden, hidden]
  TensorView step, decay;  // and their factors for each channel, [hidden]
  TensorView prelude_norm, loop_norm, final_norm;  // [hidden]
  LinearWeights head;                              // [vocab, hidden]

  // Bytes that one pass must read: the floor of its time is these over the bandwidth.
  size_t prelude_bytes() const;  // blocks, norm and update: of the embedding one row is read
  size_t core_bytes() const;
  size_t coda_bytes() const;  // blocks, norm and head
  // All of them in a GPU's memory, where the embedding is bf16.
  size_t gpu_bytes() const;
  double core_passes = 1;  // times that a recurrence goes through B's blocks, on average
  int64_t parameters = 0;  // elements of all bound tensors
  std::vector<std::shared_ptr<const std::vector<float>>> own;  // what is no view of the checkpoint
};

// Binds every tensor; throws Error naming a tensor that is missing, unknown, misshapen or of an
// unsupported type.
ModelWeights BindWeights(const ModelSpec& spec, const Checkpoint& checkpoint,
                         Quantization quantization = Quantization::kNone);

}  // namespace loopspec

// The model's weights as the CPU kernels want them: matrices where the checkpoint maps them, norms
// widened to float32.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/matmul.h"
#include "backends/cpu/matmul_quantized.h"
#include "backends/cpu/memory.h"
#include "model/model.h"

namespace loopspec::cpu {

// y = W x (+ bias), W possibly in parts stacked by rows.
struct Linear {
  struct Part {
    const std::byte* data;
    int64_t rows;
    const QuantizedMatrix* quantized = nullptr;  // weights of few bits instead
  };
  const MatMulKernel* kernel = nullptr;
  std::vector<Part> parts;
  int64_t in = 0, out = 0;
  int64_t row_bytes = 0;
  bool shuffled = false;    // parts are in the kernel's own order
  bool from_memory = true;  // no cache keeps them from one use to the next
  std::function<void(const std::byte* packed, int rows)> observe;  // mostly none
  std::vector<float> bias;                                         // empty: none

  // Outputs [begin, end) of every packed row: to[row * stride + i] for i in [0, end - begin).
  // `next`: weights that the caller will want afterwards.
  void Multiply(int64_t begin, int64_t end, const std::byte* packed, int rows, float* to,
                int64_t stride, const std::byte* next = nullptr) const;
  // Where the weights of output `begin` lie.
  const std::byte* At(int64_t begin) const;
};

struct Expert {
  Linear gate_up, down;
};

struct Block {
  std::vector<float> attn_norm_in, attn_norm_out, mlp_norm_in, mlp_norm_out, q_norm, k_norm;
  std::vector<float> qk_bias;  // [q_size + kv_size], or empty
  Linear qkv, attn_out, gate_up, down;
  Linear router;  // of a mixture, which has experts instead of gate_up and down
  std::vector<Expert> experts;
};

struct Weights {
  TensorView embedding;
  std::vector<Block> prelude, core, coda;
  Linear adapter, update, head;
  std::vector<float> step, decay;  // of the update, by channel
  std::vector<float> prelude_norm, loop_norm, final_norm;
  // Matrices that had to be rounded to bf16 (float32 or f16 checkpoints run with bf16 activations),
  // and small ones packed for speed. All others stay where the checkpoint maps them.
  std::vector<std::unique_ptr<uint16_t[]>> converted;
  std::vector<LazyBuffer> packed;            // blocks that several matrices share
  std::deque<PackedQuantized> quantized;     // matrices of few bits, in the kernels' order
  std::vector<const MatMulKernel*> kernels;  // those in use
  bool bf16 = false;                         // activations and keys/values
  int64_t matrix_bytes = 0;                  // the embedding among them

  Weights(const Model& model, ComputeMode compute, const InputObserver& observer = {});
  // Bytes of `rows` rows of k inputs, packed for any kernel in use.
  size_t PackedBytes(int rows, int64_t k) const;
};

// kAuto: bf16 for checkpoints that are stored so or meant to run so, where the machine has
// instructions for it, else float32.
ComputeMode ResolveCompute(const Model& model, ComputeMode wanted);

}  // namespace loopspec::cpu

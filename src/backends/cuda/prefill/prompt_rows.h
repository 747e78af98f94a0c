// What happens to a prompt's rows between the matrix products: embedding, residual sums and norms,
// the rotation, SwiGLU. Everything float32; a CTA for each row, so that no row depends on
// another.
#pragma once

#include "backends/cuda/device/start_state.h"
#include "backends/cuda/prefill/prefill_plan.h"

namespace loopspec::cuda {

// One operation on rows of the residual stream x [rows][hidden].
struct RowStep {
  enum class Source { kEmbedding, kStream, kAdd, kReplace };
  Source source = Source::kStream;
  const float* from = nullptr;  // kStream, kAdd: the stream as it is now
  float* x = nullptr;           // the stream as it becomes; null: it stays as it is
  // kAdd: x + post_norm(sums), kReplace: sums + bias.
  const float* sums = nullptr;
  const float* bias = nullptr;
  const float* post_norm = nullptr;
  // By channel, where given: kReplace: sums * scale, kStream: x * scale.
  const float* scale = nullptr;
  // Added after that, [rows][hidden]. `orthogonal`: to what has lost its part along it.
  const float* update = nullptr;
  bool orthogonal = false;
  float injection_eps = 0.0f;
  const float* loop_norm = nullptr;  // on the stream itself
  // What the next product takes, bf16 [rows][ld]: pre_norm(x), x where that is null; nothing where
  // `out` is null. Where `e` is given, [rows][hidden], it follows x in the same row.
  const float* pre_norm = nullptr;
  bf16* out = nullptr;
  int ld = 0;
  const bf16* e = nullptr;
};
struct EmbeddingSource {
  DeviceMatrix table;
  float scale = 1.0f;
};
void RunRows(const RowStep& step, const PromptBuffers& buffers, const EmbeddingSource& embedding,
             int rows, cudaStream_t stream);

// P is done: e = x, where there is an e, and x becomes the initial state, where that is another.
void StartState(const PromptBuffers& buffers, float* x, bf16* e, const StateParams& start, int rows,
                cudaStream_t stream);
// Cosines and sines of the rows' positions.
void FillRotations(const PromptBuffers& buffers, const double* frequencies, int half, int rows,
                   cudaStream_t stream);
void ClearTails(const PageTail* tails, int count, const PromptMemory& memory, cudaStream_t stream);

// What q and k need before they are rotated; each may be null.
struct QkWeights {
  const float *q_norm, *k_norm;  // [q_size], [kv_size]
  const float* bias;             // of both: [heads + kv_heads][head_dim]
};
// Sums of the product with W_qkv, float32 [rows][ld] in the order of TileLayout: norms and biases
// where given, rotation; q to its buffer, k and v to the rows' pages.
void FinishQkv(const float* sums, int ld, const QkWeights& weights, const PromptBuffers& buffers,
               const PromptMemory& memory, int plane, int rows, cudaStream_t stream);
// Sums of gate and up, float32 [rows][ld] in the order of TileLayout.
void FinishSwiGlu(const float* sums, int ld, const PromptBuffers& buffers, int rows,
                  cudaStream_t stream);

}  // namespace loopspec::cuda

// The operations between the matrix products: norms, rotary embedding, SwiGLU, attention of one
// row. All in float32 and each a function of one row, so that rows never influence each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace loopspec::cpu {

// out = x / rms(x) * weight; x and out may be the same.
void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out);

// x += y
void AddTo(float* x, const float* y, int64_t n);

// out = silu(gate) * up
void SwiGlu(const float* gate, const float* up, int64_t n, float* out);

// Rotates one head in the half-split form: pairs (i, i + n/2). cos and sin have n/2 entries.
void Rotate(float* head, const float* cos, const float* sin, int n);
// The same in the interleaved form: pairs (2i, 2i + 1).
void RotateInterleaved(float* head, const float* cos, const float* sin, int n);

void ToBF16(const float* values, int64_t n, uint16_t* out);

// Keys and values of `count` consecutive positions, head_dim elements each.
struct KvRun {
  const std::byte* keys;
  const std::byte* values;
  int64_t count;
  // As many keys that the same thread will read next, to be fetched meanwhile; null: none known.
  const std::byte* next = nullptr;
  bool cell = false;  // int8 ones lie differently in cells and pages
};

struct AttentionCall {
  const float* q;  // [group, head_dim], rotated: the query heads that share this key/value head
  int group;
  int head_dim;
  float scale;  // 1 / sqrt(head_dim)
  std::span<const KvRun>
      runs;           // the row's positions 0, 1, ... in order; the cut into runs does not matter
  int64_t positions;  // their number
  float* scratch;     // AttentionScratch floats
  float* out;         // [group, head_dim]
};

// Scores and weights of every position, and room for the query in the kernel's own form.
inline int64_t AttentionScratch(int64_t positions, int head_dim) {
  return 2 * positions + 256 + 8 * head_dim;
}

// softmax(q k^T scale) v over float32 keys and values, or bf16 ones with q and the weights rounded
// to bf16.
using AttentionFunction = void (*)(const AttentionCall& call);
AttentionFunction ChooseAttention(DType kv);
// The portable version, for tests against the chosen one.
AttentionFunction HighwayAttention(DType kv);
// Arm BFDOT/BFMLAL; null where the build or the machine has none.
AttentionFunction BfdotAttention();
// Over int8 keys and values (kv_int8.h), for heads of a multiple of four; the best of this machine,
// and the portable one. They give the same bits.
AttentionFunction Int8Attention(int head_dim);
AttentionFunction PortableInt8Attention();
// x86 AVX512-VNNI and Arm SDOT, for multiples of 16; null where the build or the machine has none.
AttentionFunction VnniInt8Attention();
AttentionFunction SdotInt8Attention();

}  // namespace loopspec::cpu

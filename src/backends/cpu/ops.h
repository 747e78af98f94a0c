// The operations between the matrix products: norms, rotary embedding, SwiGLU, attention.
// All in float32 and each a function of one row, so that rows never influence each other.
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

// s = decay * s + u, by channel.
void InjectDiagonal(float* s, const float* decay, const float* u, int64_t n);
// The same after decay * s has lost its part along u: k - (k.u) / (u.u + eps) u + u, k = decay * s.
void InjectOrthogonal(float* s, const float* decay, const float* u, float eps, int64_t n);

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

// A query head of one row, over positions [0, positions).
struct AttentionQuery {
  const float* q;  // [head_dim], rotated
  int64_t positions;
  float* out;  // [head_dim]
  // int8 keys alone: to the keys and values of the call's first runs, whole pages, this query adds
  // residuals of `bits` bits (kv_residual.h), each page's head here. There are none of the others.
  std::span<const std::byte* const> residuals = {};
  int bits = 0;
};

// Keys and values that queries [begin, end) of a call read after those that all of them read.
struct OwnRuns {
  size_t begin, end;
  std::span<const KvRun> runs;
};

inline constexpr int kMostQueries = 8;

// Scores and weights of every position, and room for the query in the kernel's own form.
inline int64_t AttentionScratch(int64_t positions, int head_dim) {
  return 2 * positions + 256 + 8 * head_dim;
}

// Queries that read the same keys and values; no query changes the bits of another.
struct AttentionCall {
  std::span<const AttentionQuery> queries;  // kMostQueries at most; the last has most positions
  int head_dim;
  float scale;                  // 1 / sqrt(head_dim)
  std::span<const KvRun> runs;  // positions 0, 1, ... in order; the cut into runs does not matter
  float* scratch;               // AttentionScratch floats for each query
  // int8 keys alone: where given, `runs` are whole pages that all queries read whole, and each
  // query is in one of these. Then `longest` is the most positions of a query.
  std::span<const OwnRuns> own = {};
  int64_t longest = 0;

  int64_t positions() const { return longest > 0 ? longest : queries.back().positions; }
  float* Scratch(size_t query) const {
    return scratch + static_cast<int64_t>(query) * AttentionScratch(positions(), head_dim);
  }
  // Calls body(runs, first position, run after them or null) for runs that all queries read before
  // the next: few enough to stay in the first cache.
  template <class Body>
  void ForSpans(Body body) const {
    constexpr int64_t kSpan = 64;
    int64_t begin = 0;
    for (size_t at = 0; at < runs.size() && begin < positions();) {
      size_t end = at;
      int64_t count = 0;
      do count += runs[end++].count;
      while (end < runs.size() && count + runs[end].count <= kSpan);
      body(runs.subspan(at, end - at), begin, end < runs.size() ? &runs[end] : nullptr);
      begin += count;
      at = end;
    }
  }
};

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
// x86 AVX512-VNNI, Arm I8MM and dot products, for multiples of 16; null where the build or the
// machine has none.
AttentionFunction VnniInt8Attention();
AttentionFunction UsmmlaInt8Attention();
AttentionFunction SdotInt8Attention();

}  // namespace loopspec::cpu

// Attention of a few queries to many positions, one warp at a time, on matrix instructions straight
// from memory.
//
// Up to 16 queries are the long side of the instruction, positions the short one: S = Q K^T in
// pieces of 8 positions. The fragment of S that a thread holds is, rounded to bf16, the fragment of
// P that P V needs; values are loaded by rows like keys and transposed in registers. A thread needs
// no more than a pointer to each position's key and value, so it makes no difference to any bit
// whether a position lies in a page or in a cell.
#pragma once

#include "backends/cuda/block_context.cuh"
#include "backends/cuda/device_ops.cuh"
#include "backends/cuda/mail.cuh"
#include "backends/cuda/step_types.h"
#include "kv/ledger.h"

namespace loopspec::cuda {

// Key and value of one position; both have head_stride elements.
struct KeyValue {
  const bf16* key;
  const bf16* value;
};

template <int kHead>
struct AttentionState {
  static constexpr int kParts = kHead / 32;
  uint4 q[kParts][2];     // queries g and g + 8: elements 32 c + 8 t ... + 7
  float o[kParts][4][4];  // [c][r]: columns 32 c + 8 t' + 2 r ...
  float maximum[2], sum[2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][r][e] = 0.0f;
      }
    }
    maximum[0] = maximum[1] = __int_as_float(0xFF800000);
    sum[0] = sum[1] = 0.0f;
  }

  // Weights s of positions base ... base + 8 kGroups - 1, whose keys LoadGroups left in `keys`;
  // what was added up before shrinks as needed. A query sees positions up to its own (last0 for
  // query g, last1 for g + 8).
  template <int kGroups>
  __device__ __forceinline__ void Weigh(const uint4 (&keys)[kGroups][kParts], int base, int last0,
                                        int last1, float scale, float (&s)[kGroups][4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int c = 0; c < kParts; ++c) Mma32(s[j], q[c][0], q[c][1], keys[j][c]);
    }
    float top[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int position = base + 8 * j + 2 * t;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int last = e < 2 ? last0 : last1;
        s[j][e] = position + (e & 1) <= last ? s[j][e] * scale : __int_as_float(0xFF800000);
        top[e / 2] = fmaxf(top[e / 2], s[j][e]);
      }
    }
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], 2));
      // A query with no position yet (padding of the tile) must not turn into NaN.
      const float finite = top[i] == __int_as_float(0xFF800000) ? 0.0f : top[i];
      shrink[i] = exp2f(maximum[i] - finite);
      maximum[i] = top[i];
      top[i] = finite;
    }
    float added[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = exp2f(s[j][e] - top[e / 2]);
        added[e / 2] += s[j][e];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 1);
      added[i] += __shfl_xor_sync(0xFFFFFFFFu, added[i], 2);
      sum[i] = sum[i] * shrink[i] + added[i];
    }
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][r][e] *= shrink[e / 2];
      }
    }
  }

  // Adds the positions' values with these weights.
  template <int kGroups>
  __device__ __forceinline__ void Add(const uint4 (&values)[kGroups][kParts],
                                      const float (&s)[kGroups][4]) {
#pragma unroll
    for (int j = 0; j < kGroups; j += 2) {
      const uint32_t a0 = PackBF16(s[j][0], s[j][1]), a1 = PackBF16(s[j][2], s[j][3]);
      const uint32_t a2 = PackBF16(s[j + 1][0], s[j + 1][1]),
                     a3 = PackBF16(s[j + 1][2], s[j + 1][3]);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const uint4& v0 = values[j][c];
        const uint4& v1 = values[j + 1][c];
        Mma(o[c][0], a0, a1, a2, a3, Transpose(v0.x), Transpose(v1.x));
        Mma(o[c][1], a0, a1, a2, a3, Transpose(v0.y), Transpose(v1.y));
        Mma(o[c][2], a0, a1, a2, a3, Transpose(v0.z), Transpose(v1.z));
        Mma(o[c][3], a0, a1, a2, a3, Transpose(v0.w), Transpose(v1.w));
      }
    }
  }

  // This thread's 8 contiguous outputs of part c for query g (i = 0) or g + 8 (i = 1): elements 32
  // c + 8 t ...
  __device__ __forceinline__ float Output(int c, int i, int k) const {
    return o[c][k / 2][2 * i + k % 2];
  }
};

// Keys or values of 8 kGroups positions; at(j) points to the one at place 8 j + g.
template <int kGroups, int kParts, typename F>
__device__ __forceinline__ void LoadGroups(uint4 (&to)[kGroups][kParts], F at) {
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const bf16* from = at(j) + threadIdx.x % 4 * 8;
#pragma unroll
    for (int c = 0; c < kParts; ++c) to[j][c] = LoadCoherent16(from + c * 32);
  }
}

// The page of a position holds [plane][kv_head][2][kPageSize][head_stride].
__device__ inline KeyValue InPage(const DecodeParams& p, int page, int plane, int head, int slot) {
  const bf16* at =
      p.page_kv + ((static_cast<size_t>(page) * p.planes + plane) * p.kv_heads + head) *
                      (2 * kPageSize * p.head_stride);
  return {at + slot * p.head_stride, at + (kPageSize + slot) * p.head_stride};
}
// A lane's parts of one vector of `mail_qkv`; zeros for vector -1.
template <int kParts>
__device__ __forceinline__ void ReceiveVector(const Mail* mail, int vector, uint4 (&to)[kParts]) {
#pragma unroll
  for (int c = 0; c < kParts; ++c) to[c] = make_uint4(0, 0, 0, 0);
  if (vector < 0) return;
  const Mail* from = mail + static_cast<size_t>(vector) * (kParts * 16) + threadIdx.x % 4 * 4;
  Receive<kParts>(
      StampIn(), [&](int c) { return from + c * 16; }, [&](int c, const uint4& v) { to[c] = v; });
}

// One unit: the rows' query heads that share KV head `head`, over one split. Leaves partial
// results. All keys and values of the split are on their way at once.
template <int kHead>
__device__ __forceinline__ void AttendUnit(const AttentionUnit* which, int head, int plane_offset) {
  constexpr int kSplit = SplitPositions(kHead), kGroups = kSplit / 8, kParts = kHead / 32;
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const AttentionUnit unit = *which;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = p.group;
  const int queries = unit.count * group;
  const int begin = unit.split * kSplit;
  const size_t head_at = static_cast<size_t>(unit.plane + plane_offset) * p.kv_heads + head;
  const size_t heads = static_cast<size_t>(p.planes) * p.kv_heads;
  const int vectors = p.heads + 2 * p.kv_heads;  // of a row's mail
  const bf16* page = p.page_kv + (unit.page * heads + head_at) * (2 * kPageSize * kHead) +
                     begin % kPageSize * kHead;

  // Place 8 j + g of the split.
  KeyValue at[kGroups];
  if (begin + kSplit <= unit.committed) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const bf16* key = page + (8 * j + g) * kHead;
      at[j] = {key, key + kPageSize * kHead};
    }
  } else {
    const int32_t* chain = context.chains + unit.chain;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int position = min(begin + 8 * j + g, unit.position);
      const bf16* key = page + (position - begin) * kHead;
      at[j] = {key, key + kPageSize * kHead};
      if (position >= unit.committed) {
        const int cell = position == unit.position ? unit.cell : chain[position - unit.committed];
        key = p.cell_kv + (cell * heads + head_at) * (2 * kHead);
        at[j] = {key, key + kHead};
      }
    }
  }

  for (int first = 0; first < queries; first += 16) {
    AttentionState<kHead> state;
    uint4 keys[kGroups][kParts];
    LoadGroups(keys, [&](int j) { return at[j].key; });
    int slot[2], last[2], vector[2];  // vector: which of all query heads, -1 for none
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first + g + 8 * i;
      QueryRow row{unit.row, unit.partial, unit.position};
      int query_head = head * group + query;
      if (unit.count > 1 && query < queries) {
        row = context.set.query_rows[unit.first + query / group];
        query_head = head * group + query % group;
      }
      const bool there = query < queries;
      slot[i] = there ? (row.partial + unit.split) * p.heads + query_head : -1;
      last[i] = row.position;
      vector[i] = !there            ? -1
                  : ArrivesByMail() ? row.row * vectors + query_head
                                    : row.row * p.heads + query_head;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint4 q[kParts];
      if (ArrivesByMail()) {
        ReceiveVector<kParts>(p.mail_qkv, vector[i], q);
      } else {
        const bf16* source = p.q + static_cast<size_t>(max(vector[i], 0)) * kHead + t * 8;
#pragma unroll
        for (int c = 0; c < kParts; ++c) {
          q[c] = vector[i] >= 0 ? LoadCoherent16(source + c * 32) : make_uint4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (int c = 0; c < kParts; ++c) state.q[c][i] = q[c];
    }
    // The key and value of a lone row's own position are as new as its query.
    const int own = unit.position - begin;
    const int mine = own < kSplit && own % 8 == g ? unit.row * vectors + p.heads + head * 2 : -1;
    const auto put = [&](const uint4(&vector_parts)[kParts], uint4(&to)[kGroups][kParts]) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int c = 0; c < kParts; ++c)
          to[j][c] = mine >= 0 && j == own / 8 ? vector_parts[c] : to[j][c];
      }
    };
    if (own < kSplit && ArrivesByMail()) {
      uint4 parts[kParts];
      ReceiveVector<kParts>(p.mail_qkv, mine, parts);
      put(parts, keys);
    }
    uint4 values[kGroups][kParts];
    LoadGroups(values, [&](int j) { return at[j].value; });
    state.Clear();
    float weights[kGroups][4];
    state.Weigh(keys, begin, last[0], last[1], p.attention_scale, weights);
    if (own < kSplit && ArrivesByMail()) {
      uint4 parts[kParts];
      ReceiveVector<kParts>(p.mail_qkv, mine < 0 ? -1 : mine + 1, parts);
      put(parts, values);
    }
    state.Add(values, weights);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (slot[i] < 0) continue;
      if (MailsOut(CurrentOp())) {
        Mail* out = p.mail_o + static_cast<size_t>(slot[i]) * kHead + t * 8;
#pragma unroll
        for (int c = 0; c < kParts; ++c) {
#pragma unroll
          for (int k = 0; k < 8; k += 2) {
            PostTwo(out + c * 32 + k, state.Output(c, i, k), state.Output(c, i, k + 1), StampOut());
          }
        }
        if (t == 0)
          PostTwo(p.mail_ml + static_cast<size_t>(slot[i]) * 2, state.maximum[i], state.sum[i],
                  StampOut());
        continue;
      }
      float* out = p.attention_o + static_cast<size_t>(slot[i]) * kHead + t * 8;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        float4* to = reinterpret_cast<float4*>(out + c * 32);
        to[0] = make_float4(state.Output(c, i, 0), state.Output(c, i, 1), state.Output(c, i, 2),
                            state.Output(c, i, 3));
        to[1] = make_float4(state.Output(c, i, 4), state.Output(c, i, 5), state.Output(c, i, 6),
                            state.Output(c, i, 7));
      }
      if (t == 0) p.attention_ml[slot[i]] = make_float2(state.maximum[i], state.sum[i]);
    }
  }
}

// Piece i of attention is head i % kv_heads of unit i / kv_heads; neighbouring pieces go to
// different multiprocessors.
__device__ __forceinline__ int FirstPiece() {
  return static_cast<int>(blockIdx.x + gridDim.x * (threadIdx.x / 32));
}
__device__ __forceinline__ int PieceStride() {
  return static_cast<int>(gridDim.x) * kWarps;
}

// Keeps the units of the warp's first pieces at hand: they are the same in every layer.
__device__ __forceinline__ void CacheUnits() {
  BlockContext& context = Context();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kWords = sizeof(AttentionUnit) / sizeof(uint32_t);
  const int kv_heads = context.p.kv_heads;
#pragma unroll
  for (int n = 0; n < kCachedUnits; ++n) {
    const int piece = FirstPiece() + n * PieceStride();
    if (piece < context.set.units * kv_heads && lane < kWords) {
      reinterpret_cast<uint32_t*>(&context.unit_cache[warp][n])[lane] =
          reinterpret_cast<const uint32_t*>(context.set.all_units + piece / kv_heads)[lane];
    }
    __syncwarp();
    if (lane == 0) context.unit_cache[warp][n].head = piece % kv_heads;
  }
  __syncwarp();
}

// The plane of the current operation's layer, from the row's first.
__device__ __forceinline__ int PlaneOffset(const Op& op) {
  return op.layer + Context().set.recurrence * Context().p.core_layers;
}

// Has the committed keys and values of the warp's first pieces brought nearer, for the next layer.
// By one lane per piece.
__device__ __forceinline__ void PrefetchKeys(int plane_offset) {
  const BlockContext& context = Context();
  const DecodeParams& p = context.p;
  const int n = threadIdx.x % 32;
  const int piece = FirstPiece() + n * PieceStride();
  if (n >= kCachedUnits || piece >= context.set.units * p.kv_heads) return;
  const AttentionUnit& unit = context.unit_cache[threadIdx.x / 32][n];
  const int begin = unit.split * p.split;
  const int count = min(p.split, unit.committed - begin);
  const int plane = unit.plane + plane_offset;
  if (count <= 0 || plane >= p.planes) return;
  const KeyValue at = InPage(p, unit.page, plane, unit.head, begin % kPageSize);
  const int bytes = count * p.head_stride * static_cast<int>(sizeof(bf16));
  Prefetch(at.key, bytes);
  Prefetch(at.value, bytes);
}

template <int kHead>
__device__ __noinline__ void AttendUnits() {
  const BlockContext& context = Context();
  const int kv_heads = context.p.kv_heads;
  const int total = context.set.units * kv_heads;
  int n = 0;
#pragma unroll 1
  for (int i = FirstPiece(); i < total; i += PieceStride(), ++n) {
    const bool cached = n < kCachedUnits;
    const AttentionUnit* unit =
        cached ? &context.unit_cache[threadIdx.x / 32][n] : context.set.all_units + i / kv_heads;
    AttendUnit<kHead>(unit, cached ? unit->head : i % kv_heads, PlaneOffset(CurrentOp()));
  }
}

__device__ __forceinline__ void AttentionOp() {
  switch (Context().p.head_stride) {
    case 32:
      AttendUnits<32>();
      break;
    case 64:
      AttendUnits<64>();
      break;
    case 128:
      AttendUnits<128>();
      break;
    default:
      AttendUnits<256>();
      break;
  }
}

// Adds up a row's splits and rounds to the next matrix's input. A warp takes 32 elements of a head:
// eight lanes have four elements each, and four such groups of lanes take every fourth split; their
// sums meet in a tree.
__device__ __noinline__ inline void MergeOp() {
  const bool mail = ArrivesByMail();
  constexpr int kAtOnce = 32;  // splits
  const DecodeParams& p = Context().p;
  const RowInfo* infos = Context().set.infos;
  const int rows = Context().set.rows;
  const int lane = threadIdx.x % 32, phase = lane / 8;
  const int parts = (p.head_dim + 31) / 32, per_row = p.heads * parts;
  const int total = rows * per_row;
  // The next layer's keys have the time until its attention to come; memory has little to do now.
  PrefetchKeys(PlaneOffset(CurrentOp()) + 1);
  for (int i = FirstPiece(); i < total; i += PieceStride()) {
    const int row = i < per_row ? 0 : i / per_row, part = i - row * per_row,
              head = Quotient(part, parts), element = (part - head * parts) * 32 + lane % 8 * 4;
    const int first = infos[row].partial, splits = infos[row].splits;
    const float2* ml = p.attention_ml + static_cast<size_t>(first) * p.heads + head;
    const float* o =
        p.attention_o + (static_cast<size_t>(first) * p.heads + head) * p.head_stride + element;
    float top = __int_as_float(0xFF800000);
    float sum = 0.0f;
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int base = 0; base < splits; base += kAtOnce) {
      const int mine = base + lane;
      float2 part = make_float2(__int_as_float(0xFF800000), 0.0f);
      float4 out[kAtOnce / 4];
      if (mail) {
        // Past the last split it is asked for once more, and not used.
        const auto slot = [&](int split) {
          return static_cast<size_t>(first + min(split, splits - 1)) * p.heads + head;
        };
        Receive<kAtOnce / 4>(
            StampIn(),
            [&](int j) { return p.mail_o + slot(base + 4 * j + phase) * p.head_dim + element; },
            [&](int j, const uint4& v) {
              const bool there = base + 4 * j + phase < splits;
              out[j] = make_float4(
                  there ? __uint_as_float(v.x) : 0.0f, there ? __uint_as_float(v.y) : 0.0f,
                  there ? __uint_as_float(v.z) : 0.0f, there ? __uint_as_float(v.w) : 0.0f);
            });
        uint4 both;
        do {
          both = Peek(p.mail_ml + slot(mine) * 2);
        } while (!HasCome(both, StampIn()));
        if (mine < splits) part = make_float2(__uint_as_float(both.x), __uint_as_float(both.z));
      } else if (mine < splits) {
        part = __ldcg(ml + static_cast<size_t>(mine) * p.heads);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce / 4 && !mail; ++j) {
        const int split = base + 4 * j + phase;
        out[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (split < splits) {
          out[j] = __ldcg(reinterpret_cast<const float4*>(o + static_cast<size_t>(split) * p.heads *
                                                                  p.head_stride));
        }
      }
      float larger = part.x;
#pragma unroll
      for (int mask = 1; mask < 32; mask <<= 1)
        larger = fmaxf(larger, __shfl_xor_sync(0xFFFFFFFFu, larger, mask));
      larger = fmaxf(larger, top);
      const float shrink = exp2f(top - larger), weight = exp2f(part.x - larger);
      top = larger;
      sum = sum * shrink + WarpSum(part.y * weight);
      value = make_float4(value.x * shrink, value.y * shrink, value.z * shrink, value.w * shrink);
#pragma unroll
      for (int j = 0; j < kAtOnce / 4; ++j) {
        const float w = __shfl_sync(0xFFFFFFFFu, weight, 4 * j + phase);
        value.x = fmaf(out[j].x, w, value.x);
        value.y = fmaf(out[j].y, w, value.y);
        value.z = fmaf(out[j].z, w, value.z);
        value.w = fmaf(out[j].w, w, value.w);
      }
    }
    float v[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[e] += __shfl_down_sync(0xFFFFFFFFu, v[e], 16);
      v[e] += __shfl_down_sync(0xFFFFFFFFu, v[e], 8);
    }
    sum = 1.0f / sum;
    if (phase == 0) {
      bf16* to = p.act_attention + static_cast<size_t>(row) * p.ld_attention;
      const int at = head * p.head_dim + element;
      if (mail) {
        Mail* pairs = p.mail_attention + static_cast<size_t>(row) * (p.ld_attention / 2);
        Post(pairs + InputPlace(at) / 2, PackBF16(v[0] * sum, v[1] * sum), StampOut());
        Post(pairs + InputPlace(at + 2) / 2, PackBF16(v[2] * sum, v[3] * sum), StampOut());
        continue;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (element + e < p.head_dim) to[InputPlace(at + e)] = __float2bfloat16(v[e] * sum);
      }
    }
  }
}

}  // namespace loopspec::cuda

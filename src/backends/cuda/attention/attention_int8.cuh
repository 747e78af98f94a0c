// Attention to int8 keys and values of a phase's rows: pieces as in attention_op.cuh. There is a
// function for pieces that the producer warp fetches, and others for those that the warp loads
// itself, which have all that lies in cells.
#pragma once

#include "backends/cuda/attention/attention_math_int8.cuh"
#include "backends/cuda/attention/attention_pieces.cuh"
#include "backends/cuda/device/cta_context.cuh"
#include "backends/cuda/device/weight_ring.cuh"

namespace loopspec::cuda {

// The scales of a split, spread over the lanes: they are loaded long before they are used. Lane i
// has those of positions i, i + 32 ...
template <int kHead>
struct LaneScales {
  using Block = Int8Block<kHead>;
  static constexpr int kEach = (Block::kSplit + 31) / 32;
  float of[2][kEach];  // of keys and of values

  __device__ __forceinline__ void Load(const std::byte* split_scales) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        of[which][i] = __ldcg(
            reinterpret_cast<const float*>(split_scales + Block::ScaleAt(which, 32 * i + lane)));
    }
  }
  __device__ __forceinline__ void Spread(int which, typename Block::Scales& scales) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j) {
      const float from = of[which][j / 4];
      scales[j] = make_float2(__shfl_sync(0xFFFFFFFFu, from, j % 4 * 8 + 2 * t),
                              __shfl_sync(0xFFFFFFFFu, from, j % 4 * 8 + 2 * t + 1));
    }
  }
};

// KV heads of all planes from those of a recurrence's first layer to the operation's.
__device__ __forceinline__ size_t PageHeads(const Run& run) {
  return static_cast<size_t>(PageOffset(run)) * Context().p.shapes.kv_heads;
}

// The codes and scales of a split that begins at `begin`, whose first key is at `first` in the
// plane of the recurrence's first layer.
template <int kHead>
struct SplitPlace {
  const std::byte *codes, *scales;

  __device__ __forceinline__ SplitPlace(const bf16* first, int begin, size_t page_heads) {
    using Block = Int8Block<kHead>;
    codes = reinterpret_cast<const std::byte*>(first) + page_heads * Block::kHeadBytes;
    const int slot = begin % kPageSize;
    scales = codes + (Block::ScalesOf(slot) - Block::CodesOf(slot));
  }
};

// One vector of a head, spread over the warp: much shorter code than four lanes take for it. Lane i
// has elements kEach i ..., and where the head is smaller than that, again.
template <int kHead>
struct WarpVector {
  static constexpr int kEach = kHead <= 128 ? 4 : 8, kLanes = kHead / kEach;
  uint32_t x[kEach / 2];

  __device__ __forceinline__ void Load(const bf16* vector) {
    const bf16* from = vector + threadIdx.x % kLanes * kEach;
    if constexpr (kEach == 4) {
      const uint2 v = __ldcg(reinterpret_cast<const uint2*>(from));
      x[0] = v.x;
      x[1] = v.y;
    } else {
      const uint4 v = LoadCoherent16(from);
      x[0] = v.x;
      x[1] = v.y;
      x[2] = v.z;
      x[3] = v.w;
    }
  }
  __device__ __forceinline__ Int8Scale Scale(float most) const {
    int top = 0;
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const uint32_t pair = x[i] & 0x7FFF7FFFu;
      top = max(top, max(static_cast<int>(pair << 16), static_cast<int>(pair & 0xFFFF0000u)));
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
      top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, mask));
    return Int8Scale(top, most);
  }
  // What lanes have of the vector's four elements each becomes what the lanes t of a quad hold.
  static __device__ __forceinline__ void Gather(const uint32_t (&four)[kEach / 4],
                                                uint32_t (&to)[kHead / 16]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int r = 0; r < kHead / 16; ++r) {
      const int unit = 4 * (r - r % 2) + 2 * t + r % 2;  // elements 4 unit ...
      to[r] = __shfl_sync(0xFFFFFFFFu, four[kEach == 4 ? 0 : r % 2], kEach == 4 ? unit : unit / 2);
    }
  }
  __device__ __forceinline__ float ToCodes(uint32_t (&codes)[kHead / 16]) const {
    const Int8Scale by = Scale(127.0f);
    uint32_t four[kEach / 4];
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i) four[i] = RoundFour(x[2 * i], x[2 * i + 1], by.inverse);
    Gather(four, codes);
    return by.scale;
  }
  __device__ __forceinline__ float ToDigits(uint32_t (&high)[kHead / 16],
                                            uint32_t (&low)[kHead / 16]) const {
    const Int8Scale by = Scale(kMostDigits);
    uint32_t fours[2][kEach / 4];
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i) {
      uint32_t u[4];
      RoundPair(x[2 * i], by.inverse, kToDigits, u[0], u[1]);
      RoundPair(x[2 * i + 1], by.inverse, kToDigits, u[2], u[3]);
      DigitsOfFour(u, fours[0][i], fours[1][i]);
    }
    Gather(fours[0], high);
    Gather(fours[1], low);
    return by.scale;
  }
};

// Receives vectors of exchange.qkv, the lane's four elements of each.
template <int kHead, int kCount>
__device__ __forceinline__ void ReceiveVectors(const int (&vectors)[kCount], uint32_t epoch,
                                               WarpVector<kHead> (&to)[kCount]) {
  if constexpr (kHead <= 128) {
    const LLWord* from = Context().p.exchange.qkv + threadIdx.x % (kHead / 4) * 2;
    uint32_t missing;
    do {
      uint4 words[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        words[i] = Poll(from + static_cast<size_t>(vectors[i]) * (kHead / 2));
      missing = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        missing |= Missing(words[i], epoch);
        to[i].x[0] = words[i].x;
        to[i].x[1] = words[i].z;
      }
    } while (missing != 0 && !MustGiveUp());
    __syncwarp();
  }
}

// The digits of the piece's queries. `only`: that of a piece that has one.
template <int kHead>
__device__ __forceinline__ void SetQueries(const AttentionPiece& piece, const Run& run,
                                           const LaneQuery& query, int queries,
                                           const WarpVector<kHead>& only,
                                           Int8State<kHead, kUnitQueries>& state) {
  const float attention_scale = Context().p.shapes.attention_scale;
  if (queries == 1) {
    state.scale[0] = __fmul_rn(only.ToDigits(state.high[0], state.low[0]), attention_scale);
    return;
  }
  uint4 parts[kHead / 32];
  LoadQueryParts<kHead>(query, run, parts);
  state.SetQuery(0, query.valid, parts, attention_scale);
}

template <int kHead, typename Ring>
__device__ __forceinline__ void AttendStreamedInt8(const AttentionPiece& piece, const KeySpan& span,
                                                   const Run& run, Ring& ring) {
  using Block = Int8Block<kHead>;
  const DecodeParams& p = Context().p;
  const size_t page_heads = PageHeads(run);
  LaneScales<kHead> scales_now, scales_next;
  scales_next.Load(SplitPlace<kHead>(piece.page, piece.begin, page_heads).scales);
  const LaneQuery query = QueryOfLane(piece, 0);
  const int last[1] = {query.last};
  Int8State<kHead, kUnitQueries> state;
  {
    WarpVector<kHead> only[1];
    const int queries = piece.count * p.shapes.group;
    if (queries == 1) {
      if (run.flags.Has(RunFlag::kReceives)) {
        ReceiveVectors<kHead>({query.row * (p.shapes.heads + 2 * p.shapes.kv_heads) + query.head},
                              run.epoch - 1, only);
      } else {
        only[0].Load(p.buffers.q +
                     (static_cast<size_t>(query.row) * p.shapes.heads + query.head) * kHead);
      }
    }
    SetQueries<kHead>(piece, run, query, queries, only[0], state);
  }
  state.Clear();
  int slot = query.slot, left = piece.merged;
#pragma unroll 1
  for (int split = 0; split < piece.splits; ++split) {
    typename Block::Codes codes;
    typename Block::Scales scales;
    float weights[Block::kGroups][4];
    scales_now = scales_next;
    const int next = min(split + 1, piece.splits - 1);
    if (next > split) {
      scales_next.Load(SplitPlace<kHead>(KeysOf(span, next, piece.head),
                                         piece.begin + next * Block::kSplit, page_heads)
                           .scales);
    }
    __syncwarp();
    const uint32_t stage = ring.WaitStage();
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j) Block::LoadShared(stage, 0, j, codes[j]);
    scales_now.Spread(0, scales);
    state.Score(codes, scales, weights);
    uint32_t read = 0;
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j) read |= Block::LoadShared(stage, 1, j, codes[j]);
    __syncwarp();
    ring.Refill(read);
    state.template Soften<false>(0, last, true, weights);
    scales_now.Spread(1, scales);
    state.Add(codes, WeightDigits<Block::kGroups, 1>(weights, scales));
    if (--left == 0) {
      StorePartial<kHead>(run, slot, state);
      state.Clear();
      left = piece.merged;
      if (slot >= 0) slot += p.shapes.heads;
    }
  }
}

// Keys, or values, of a split that a warp loads itself: in pages, in the cells of the row's
// ancestors, and the row's own.
template <int kHead>
class LoadedKeys {
 public:
  using Block = Int8Block<kHead>;
  typename Block::Codes codes;

  // Loads keys (which 0) or values (1) that lie in pages.
  __device__ __forceinline__ void LoadPages(const SplitPlace<kHead>& place,
                                            const AttentionPiece& piece, int begin, int which) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j) {
      scale_[j] = 0.0f;
#pragma unroll
      for (int r = 0; r < Block::kRegisters; ++r) codes[j][r] = 0;
      if (begin + 8 * j + g < piece.committed)
        scale_[j] = Block::Load(place.codes, place.scales, which, 8 * j + g, codes[j]);
    }
    __syncwarp();
  }

  // Loads keys or values of ancestors, which lie in cells, and rounds them.
  __device__ __forceinline__ void LoadCells(const AttentionPiece& piece, size_t plane_heads,
                                            int begin, int which) {
    const CtaContext& context = Context();
    const ShapeParams& shapes = context.p.shapes;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const size_t stride = static_cast<size_t>(shapes.planes) * shapes.kv_heads * (2 * kHead);
    const bf16* cells =
        context.p.buffers.cell_kv +
        (static_cast<size_t>(piece.plane) * shapes.kv_heads + piece.head + plane_heads) *
            (2 * kHead) +
        which * kHead + threadIdx.x % 4 * 8;
#pragma unroll 1
    for (int group = max(piece.committed - begin, 0) / 8;
         group < Block::kGroups && begin + 8 * group < piece.position; ++group) {
      const int position = begin + 8 * group + g;
      const bool there = position >= piece.committed && position < piece.position;
      const int cell = there ? (context.chains + piece.chain)[position - piece.committed] : 0;
      uint4 key[Block::kParts] = {};
#pragma unroll
      for (int c = 0; c < Block::kParts; ++c)
        LoadCoherent16(there, cells + cell * stride + c * 32, key[c]);
      __syncwarp();
      uint32_t rounded[Block::kRegisters];
      const float scale = RoundToCodes(key, rounded);
#pragma unroll
      for (int j = 0; j < Block::kGroups; ++j) Put(j, there && j == group, rounded, scale);
    }
  }

  // The row's own, at position `own` of the split and at all after it, which get no weight.
  __device__ __forceinline__ void PutOwn(const WarpVector<kHead>& key, int own) {
    uint32_t rounded[Block::kRegisters];
    const float scale = key.ToCodes(rounded);
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j) Put(j, 8 * j + g >= own, rounded, scale);
  }

  __device__ __forceinline__ void SpreadScales(typename Block::Scales& scales) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int j = 0; j < Block::kGroups; ++j)
      scales[j] = make_float2(__shfl_sync(0xFFFFFFFFu, scale_[j], 8 * t),
                              __shfl_sync(0xFFFFFFFFu, scale_[j], 8 * t + 4));
  }

 private:
  __device__ __forceinline__ void Put(int j, bool here,
                                      const uint32_t (&rounded)[Block::kRegisters], float scale) {
    scale_[j] = here ? scale : scale_[j];
#pragma unroll
    for (int r = 0; r < Block::kRegisters; ++r) codes[j][r] = here ? rounded[r] : codes[j][r];
  }

  float scale_[Block::kGroups];  // of position 8 j + g
};

// The query of a piece that has one, and the row's own key and value, which come from the same
// operation.
template <int kHead>
__device__ __forceinline__ void LoadOwn(const AttentionPiece& piece, const Run& run,
                                        size_t plane_heads, WarpVector<kHead> (&own)[3]) {
  const DecodeParams& p = Context().p;
  if (run.flags.Has(RunFlag::kReceives)) {
    const int first = piece.row * (p.shapes.heads + 2 * p.shapes.kv_heads),
              key = first + p.shapes.heads + piece.head * 2;
    ReceiveVectors<kHead>({first + piece.head * p.shapes.group, key, key + 1}, run.epoch - 1, own);
    return;
  }
  const bf16* cell = piece.cell + plane_heads * (2 * kHead);
  own[0].Load(p.buffers.q +
              (static_cast<size_t>(piece.row) * p.shapes.heads + piece.head * p.shapes.group) *
                  kHead);
  own[1].Load(cell);
  own[2].Load(cell + kHead);
  __syncwarp();
}

// A split by itself. What is in pages is requested before the queries are waited for.
template <int kHead>
__device__ __forceinline__ void AttendLoadedInt8(const AttentionPiece& piece, const Run& run) {
  using Block = Int8Block<kHead>;
  const DecodeParams& p = Context().p;
  const size_t plane_heads = static_cast<size_t>(PlaneOffset(run)) * p.shapes.kv_heads;
  const int begin = piece.begin, own = piece.position - begin;
  const int queries = piece.count * p.shapes.group;
#pragma unroll 1
  for (int first = 0; first < queries; first += kUnitQueries) {
    const SplitPlace<kHead> place(piece.page, begin, PageHeads(run));
    LoadedKeys<kHead> keys, values;
    keys.LoadPages(place, piece, begin, 0);
    values.LoadPages(place, piece, begin, 1);
    const LaneQuery query = QueryOfLane(piece, first);
    const int last[1] = {query.last};
    Int8State<kHead, kUnitQueries> state;
    typename Block::Scales scales;
    float weights[Block::kGroups][4];
    WarpVector<kHead> vectors[3];
    LoadOwn<kHead>(piece, run, plane_heads, vectors);
    SetQueries<kHead>(piece, run, query, queries, vectors[0], state);
    state.Clear();
    // Chains of latencies that have nothing to do with each other.
    if (own < Block::kSplit) {
      keys.PutOwn(vectors[1], own);
      values.PutOwn(vectors[2], own);
    }
    keys.LoadCells(piece, plane_heads, begin, 0);
    values.LoadCells(piece, plane_heads, begin, 1);
    keys.SpreadScales(scales);
    state.Score(keys.codes, scales, weights);
    values.SpreadScales(scales);
    state.template Soften<true>(begin, last, begin + Block::kSplit <= piece.committed, weights);
    const WeightDigits<Block::kGroups, 1> digits(weights, scales);
    StoreWeight(run, query.slot, state.maximum[0], state.sum[0]);
    const PartialResults<kHead> results(run, query.slot);
#pragma unroll
    for (int c = 0; c < Block::kParts; ++c) {
      float o[4][2] = {};
      state.AddPart(c, values.codes, digits, o);
      results.Store(c, o);
    }
  }
}

// Several splits that are one partial.
template <int kHead>
__device__ __forceinline__ void AttendMergedInt8(const AttentionPiece& piece, const KeySpan& span,
                                                 const Run& run) {
  using Block = Int8Block<kHead>;
  const DecodeParams& p = Context().p;
  const size_t plane_heads = static_cast<size_t>(PlaneOffset(run)) * p.shapes.kv_heads;
#pragma unroll 1
  for (int first = 0; first < piece.count * p.shapes.group; first += kUnitQueries) {
    const LaneQuery query = QueryOfLane(piece, first);
    const int last[1] = {query.last};
    Int8State<kHead, kUnitQueries> state;
    WarpVector<kHead> vectors[3];
    LoadOwn<kHead>(piece, run, plane_heads, vectors);
    SetQueries<kHead>(piece, run, query, piece.count * p.shapes.group, vectors[0], state);
    state.Clear();
    int slot = query.slot, left = piece.merged;
#pragma unroll 1
    for (int split = 0; split < piece.splits; ++split) {
      const int begin = piece.begin + split * Block::kSplit, own = piece.position - begin;
      const SplitPlace<kHead> place(KeysOf(span, split, piece.head), begin, PageHeads(run));
      typename Block::Scales scales;
      float weights[Block::kGroups][4];
      LoadedKeys<kHead> keys;
      const auto load = [&](int which) {
        keys.LoadPages(place, piece, begin, which);
        keys.LoadCells(piece, plane_heads, begin, which);
        if (own < Block::kSplit) keys.PutOwn(vectors[1 + which], own);
        keys.SpreadScales(scales);
      };
      load(0);
      state.Score(keys.codes, scales, weights);
      state.template Soften<false>(begin, last, begin + Block::kSplit <= piece.committed, weights);
      load(1);
      state.Add(keys.codes, WeightDigits<Block::kGroups, 1>(weights, scales));
      if (--left > 0 && split + 1 < piece.splits) continue;
      StorePartial<kHead>(run, slot, state);
      state.Clear();
      left = piece.merged;
      if (slot >= 0) slot += p.shapes.heads;
    }
  }
}

// The warp's pieces that the producer warp fetches.
template <int kHead, typename Kind>
__device__ __noinline__ void AttendStreamedPiecesInt8() {
  const Run run = CurrentRun();
  const CtaContext& context = Context();
  if (!StreamsKeys(context.phase.units)) return;
  const int kv_heads = context.p.shapes.kv_heads;
  // Unless pieces are single splits, those come first.
  const int total =
      (context.phase.pieces == PieceKind::kSplits ? context.phase.units : context.phase.spans) *
      kv_heads;
  Ring<Kind> ring;
#pragma unroll 1
  for (int i = FirstPiece(), n = 0; i < total; i += PieceStride(), ++n) {
    const AttentionPiece piece = PieceAt(i, n, run.recurrence);
    if (piece.whole != 0) {
      AttendStreamedInt8<kHead>(piece, SpanOf(Quotient(i, kv_heads), run.recurrence), run, ring);
    }
  }
  ring.Save();
}

// The warp's pieces that it loads itself.
template <int kHead, bool kProducer, bool kMerged>
__device__ __noinline__ void AttendLoadedPiecesInt8() {
  const Run run = CurrentRun();
  const CtaContext& context = Context();
  const bool streams = kProducer && StreamsKeys(context.phase.units);
  const int kv_heads = context.p.shapes.kv_heads, total = context.phase.units * kv_heads;
  const int spans =
      streams && context.phase.pieces != PieceKind::kSplits ? context.phase.spans * kv_heads : 0;
#pragma unroll 1
  for (int i = FirstPiece(), n = 0; i < total; i += PieceStride(), ++n) {
    if (i < spans) continue;
    const AttentionPiece piece = PieceAt(i, n, run.recurrence);
    if (streams && piece.whole != 0) continue;
    if constexpr (kMerged) {
      AttendMergedInt8<kHead>(piece, SpanOf(i / kv_heads, run.recurrence), run);
    } else {
      AttendLoadedInt8<kHead>(piece, run);
    }
  }
}

// Nothing is kept in registers across the calls: the kernel's loop makes them.
template <int kHead, typename Kind>
__device__ __forceinline__ void AttendInt8() {
  if constexpr (Kind::kProducer) AttendStreamedPiecesInt8<kHead, Kind>();
  if (Context().phase.pieces == PieceKind::kMergedSpans) {
    AttendLoadedPiecesInt8<kHead, Kind::kProducer, true>();
  } else {
    AttendLoadedPiecesInt8<kHead, Kind::kProducer, false>();
  }
}

}  // namespace loopspec::cuda

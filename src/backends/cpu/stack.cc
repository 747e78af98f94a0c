#include "backends/cpu/stack.h"

#include <algorithm>

#include "backends/cpu/kv_int8.h"
#include "base/check.h"

namespace loopspec::cpu {
namespace {

constexpr int kMostJoinedDims = 512;  // of a head whose queries read runs of their own

const float* Data(const std::vector<float>& v) {
  return v.empty() ? nullptr : v.data();
}

}  // namespace

Stack::Stack(const ModelSpec& spec, const Weights& weights, KvMemory& kv,
             const KeyRounding& round_keys, int threads, int row_capacity, int64_t max_positions)
    : spec_(spec),
      weights_(weights),
      kv_(kv),
      round_keys_(round_keys),
      attention_(kv.int8() ? Int8Attention(spec.head_dim)
                           : ChooseAttention(weights.bf16 ? DType::kBF16 : DType::kF32)),
      max_positions_(max_positions) {
  // Rows of the feed-forward: with a mixture, every row stands with each of its experts.
  int slots = row_capacity;
  if (spec.experts > 0) {
    for (const MatMulKernel* kernel : weights.kernels)
      slot_block_ = std::max(slot_block_, kernel->row_block);
    slots = row_capacity * spec.active_experts + spec.experts * slot_block_;
    const auto rows = static_cast<size_t>(row_capacity);
    normed_.resize(rows * static_cast<size_t>(spec.hidden));
    scores_.resize(rows * static_cast<size_t>(spec.experts));
    choices_.resize(rows * static_cast<size_t>(spec.active_experts));
    slot_rows_.resize(static_cast<size_t>(slots));
    expert_slots_.resize(static_cast<size_t>(spec.experts) + 1);
    expert_rows_.resize(static_cast<size_t>(spec.experts));
  }
  packed_ =
      LazyBuffer(std::max(weights.PackedBytes(row_capacity, (spec.adapter() ? 2 : 1) * spec.hidden),
                          weights.PackedBytes(slots, spec.hidden)));
  packed_att_ = LazyBuffer(weights.PackedBytes(row_capacity, spec.q_size()));
  packed_ff_ = LazyBuffer(weights.PackedBytes(slots, spec.ff));
  qkv_.resize(static_cast<size_t>(row_capacity) *
              static_cast<size_t>(spec.q_size() + 2 * spec.kv_size()));
  sub_.resize(static_cast<size_t>(slots) * static_cast<size_t>(spec.hidden));
  scratch_.resize(static_cast<size_t>(threads));
  for (Scratch& scratch : scratch_) {
    scratch.row.resize(static_cast<size_t>(std::max(spec.hidden, spec.q_size())));
    scratch.gate.resize(static_cast<size_t>(row_capacity * kFfChunk));
    scratch.up.resize(static_cast<size_t>(row_capacity * kFfChunk));
    scratch.attention = LazyBuffer(
        static_cast<size_t>(kMostQueries * AttentionScratch(max_positions, spec.head_dim)) *
        sizeof(float));
    const auto queries = static_cast<size_t>(std::max(kMostQueries, spec.heads / spec.kv_heads));
    scratch.head_out.resize(queries * static_cast<size_t>(spec.head_dim));
    scratch.queries.reserve(queries);
    scratch.tiles.reserve(static_cast<size_t>(row_capacity + 1));
    scratch.row_residuals.reserve(kMostQueries);
    scratch.runs.reserve(static_cast<size_t>(PagesFor(max_positions) + row_capacity + 1));
    if (!kv.kept().has_window()) continue;
    // The pages of a window and a chain of cells for each row of a tile.
    scratch.own.reserve(kMostQueries);
    scratch.own_runs.reserve(
        static_cast<size_t>(kMostQueries * (kv.kept().window_pages() + row_capacity + 1)));
    if (kv.kept().residual_bytes() == 0) continue;
    scratch.residuals.reserve(static_cast<size_t>(kMostQueries * PagesFor(max_positions)));
  }
}

void Stack::Blocks(Worker& worker, std::span<const Block> blocks, std::span<const BatchRow> rows,
                   bool related, int first_call) {
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    AttentionPart(worker, blocks[layer], rows, first_call + static_cast<int>(layer), related);
    if (!blocks[layer].experts.empty()) {
      ExpertsPart(worker, blocks[layer], rows);
      continue;
    }
    // After the last block most often comes the first again.
    MlpPart(worker, blocks[layer], blocks[(layer + 1) % blocks.size()], rows);
  }
}

// x += norm_out(W_o attention(norm_in(x))), each norm where the layout has it (see NormPlacement).
void Stack::AttentionPart(Worker& worker, const Block& block, std::span<const BatchRow> rows,
                          int layer, bool related) {
  Scratch& scratch = scratch_[static_cast<size_t>(worker.index())];
  const int n = static_cast<int>(rows.size());
  const int64_t h = spec_.hidden;
  const int64_t qkv_size = spec_.q_size() + 2 * spec_.kv_size();
  const auto eps = static_cast<float>(spec_.norm_eps);
  const Worker::Range mine = worker.Share(n);

  for (int64_t r = mine.begin; r < mine.end; ++r) {
    const float* input = rows[r].x;
    if (!block.attn_norm_in.empty()) {
      RmsNorm(input, Data(block.attn_norm_in), eps, h, scratch.row.data());
      input = scratch.row.data();
    }
    block.qkv.kernel->pack(packed_.data(), static_cast<int>(r), h, 0, input, h);
  }
  worker.Sync();

  const Worker::Range hidden = worker.Share(h, block.attn_out.kernel->grain);
  const HeadTasks tasks = ShareHeads(worker, n);
  if (tasks.own) {
    ProjectHeads(block, tasks.heads, n, block.attn_out.At(hidden.begin));
  } else {
    const Worker::Range outputs = worker.Share(qkv_size, block.qkv.kernel->grain);
    block.qkv.Multiply(outputs.begin, outputs.end, packed_.data(), n, qkv_.data() + outputs.begin,
                       qkv_size, block.attn_out.At(hidden.begin));
    worker.Sync();
  }

  if (spec_.qk_norm) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* q = qkv_.data() + r * qkv_size;
      float* k = q + spec_.q_size();
      RmsNorm(q, Data(block.q_norm), eps, spec_.q_size(), q);
      RmsNorm(k, Data(block.k_norm), eps, spec_.kv_size(), k);
    }
    worker.Sync();
  }

  // Where rows attend to each other (a prompt's chunk, a chain of branches at the same depth), or a
  // tile has rows whose keys another worker stores, all keys and values of a head must be in place
  // before anybody reads them.
  for (int64_t t = tasks.begin; t < tasks.end; ++t) {
    const BatchRow& row = rows[tasks.Row(t)];
    StoreKeysValues(block, row, row.plane + layer, tasks.Head(t),
                    qkv_.data() + tasks.Row(t) * qkv_size);
  }
  FindTiles(rows, worker.count(), scratch.tiles);
  // A tile's rows read the same keys, so one head after the other.
  const int tiles = static_cast<int>(scratch.tiles.size()) - 1;
  if ((related || tiles < n) && !tasks.own) worker.Sync();
  const HeadTasks tile_tasks = ShareHeads(worker, tiles, tiles < n);
  for (int64_t t = tile_tasks.begin; t < tile_tasks.end; ++t) {
    const auto rows_of = [&](int64_t task) {
      const int* tile = scratch.tiles.data() + tile_tasks.Row(task);
      return rows.subspan(static_cast<size_t>(tile[0]), static_cast<size_t>(tile[1] - tile[0]));
    };
    const std::span<const BatchRow> tile = rows_of(t);
    const int64_t following = std::min(t + 1, tile_tasks.end - 1);
    const BatchRow &last = tile.back(), &next = rows_of(following).back();
    scratch.own.clear();
    scratch.residuals.clear();
    scratch.row_residuals.clear();
    if (tile.size() > 1 && last.cell_count > 0) {
      FindSharedRuns(tile, layer, tile_tasks.Head(t), scratch);
    } else {
      FindRuns(last, last.plane + layer, tile_tasks.Head(t), next, next.plane + layer,
               tile_tasks.Head(following), scratch);
    }
    AttendTile(block, tile, scratch.tiles[static_cast<size_t>(tile_tasks.Row(t))],
               tile_tasks.Head(t), worker.index());
  }
  worker.Sync();
  if (!HeadsPackAlone(*block.attn_out.kernel)) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      block.attn_out.kernel->pack(packed_att_.data(), static_cast<int>(r), spec_.q_size(), 0,
                                  qkv_.data() + r * qkv_size, spec_.q_size());
    }
    worker.Sync();
  }

  const std::byte* next =
      block.experts.empty() ? block.gate_up.At(ShareFf(worker, block).begin) : block.router.At(0);
  block.attn_out.Multiply(hidden.begin, hidden.end, packed_att_.data(), n,
                          sub_.data() + hidden.begin, h, next);
  worker.Sync();

  for (int64_t r = mine.begin; r < mine.end; ++r)
    AddSublayer(rows[r].x, sub_.data() + r * h, block.attn_norm_out);
}

// x += norm(sub), or, where norms come after the sum, x = norm(x + sub).
void Stack::AddSublayer(float* x, float* sub, const std::vector<float>& norm_out) const {
  const auto eps = static_cast<float>(spec_.norm_eps);
  const int64_t h = spec_.hidden;
  const bool after_sum = spec_.norms == NormPlacement::kAfterSum;
  if (!after_sum && !norm_out.empty()) RmsNorm(sub, Data(norm_out), eps, h, sub);
  AddTo(x, sub, h);
  if (after_sum) RmsNorm(x, Data(norm_out), eps, h, x);
}

// Heads that divide evenly stay with one worker from their projections to their output, and nobody
// waits in between; otherwise pairs of row and head are dealt out once all projections are there.
Stack::HeadTasks Stack::ShareHeads(const Worker& worker, int rows, bool by_head) const {
  const int workers = worker.count(), grain = weights_.core[0].qkv.kernel->grain;
  if (spec_.kv_heads % workers == 0 && spec_.head_dim % grain == 0 && !spec_.qk_norm) {
    const Worker::Range heads = worker.Share(spec_.kv_heads);
    return {true, heads, 0, rows * (heads.end - heads.begin), rows, by_head};
  }
  const Worker::Range tasks = worker.Share(int64_t{rows} * spec_.kv_heads);
  return {false, {0, spec_.kv_heads}, tasks.begin, tasks.end, rows, by_head};
}

// Queries, keys and values of the key/value heads [heads.begin, heads.end).
void Stack::ProjectHeads(const Block& block, Worker::Range heads, int rows, const std::byte* next) {
  const int64_t d = spec_.head_dim, group = spec_.heads / spec_.kv_heads;
  const int64_t qkv_size = spec_.q_size() + 2 * spec_.kv_size();
  const int64_t k = spec_.q_size(), v = k + spec_.kv_size();
  const Worker::Range parts[] = {{heads.begin * group * d, heads.end * group * d},
                                 {k + heads.begin * d, k + heads.end * d},
                                 {v + heads.begin * d, v + heads.end * d}};
  for (int i = 0; i < 3; ++i) {
    block.qkv.Multiply(parts[i].begin, parts[i].end, packed_.data(), rows,
                       qkv_.data() + parts[i].begin, qkv_size,
                       i < 2 ? block.qkv.At(parts[i + 1].begin) : next);
  }
}

// `bias`: of all heads of q and k, at this one; null: none.
void Stack::RotateHead(const BatchRow& row, const float* bias, float* head) const {
  const int d = spec_.head_dim;
  if (bias != nullptr) AddTo(head, bias, d);
  (spec_.rope.interleaved ? RotateInterleaved : Rotate)(head, row.cos, row.sin, d);
}

// Rotates and stores the key of one head, stores its value.
void Stack::StoreKeysValues(const Block& block, const BatchRow& row, int plane, int head,
                            float* qkv) {
  const int d = spec_.head_dim;
  const int64_t at = spec_.q_size() + int64_t{head} * d;
  float* k = qkv + at;
  float* v = k + spec_.kv_size();
  RotateHead(row, block.qk_bias.empty() ? nullptr : block.qk_bias.data() + at, k);
  if (round_keys_) {
    round_keys_({k, static_cast<size_t>(d)});
    round_keys_({v, static_cast<size_t>(d)});
  }
  const KvMemory::Slot own = row.cell >= 0 ? KvMemory::Slot{-1, -1}
                                           : kv_.Own(row.sequence, row.position / kPageSize, plane);
  const int offset = row.position % kPageSize;
  const KvMemory::Place to = row.cell >= 0 ? kv_.InCell(row.cell, plane, head)
                                           : kv_.InPage(own.page, own.slot, head, offset);
  if (kv_.int8()) {
    if (row.cell >= 0) {
      StoreInt8(k, v, d, to.keys);
    } else {
      StoreInt8InPage(k, v, d, kv_.InPage(own.page, own.slot, head, 0).keys, offset);
    }
  } else if (weights_.bf16) {
    ToBF16(k, d, reinterpret_cast<uint16_t*>(to.keys));
    ToBF16(v, d, reinterpret_cast<uint16_t*>(to.values));
  } else {
    std::copy_n(k, d, reinterpret_cast<float*>(to.keys));
    std::copy_n(v, d, reinterpret_cast<float*>(to.values));
  }
}

// Heads whose size is no multiple of the kernel's block meet inside a block and must be packed as a
// whole row; so must rows that are rounded with one scale.
bool Stack::HeadsPackAlone(const MatMulKernel& kernel) const {
  return kernel.finish == nullptr &&
         spec_.heads / spec_.kv_heads * spec_.head_dim % kernel.k_block == 0;
}

// Where the keys and values of one row and head lie, and where those that are wanted after them.
void Stack::FindRuns(const BatchRow& row, int plane, int head, const BatchRow& next_row,
                     int next_plane, int next_head, Scratch& scratch) const {
  std::vector<KvRun>& runs = scratch.runs;
  runs.clear();
  const KvMemory::Reader here(kv_, row.sequence, plane, head, row.position);
  const KvMemory::Reader after(kv_, next_row.sequence, next_plane, next_head, next_row.position);
  for (int64_t at = 0; at < row.page_positions; at += kPageSize) {
    const KvMemory::Place place = here.Page(at / kPageSize);
    const std::byte* next =
        at < next_row.page_positions ? after.Page(at / kPageSize).keys : nullptr;
    runs.push_back({place.keys, place.values, std::min<int64_t>(kPageSize, row.page_positions - at),
                    next == place.keys ? nullptr : next});
  }
  for (int i = 0; i < row.cell_count; ++i) {
    const KvMemory::Place place = kv_.InCell(row.cells[i], plane, head);
    runs.push_back({place.keys, place.values, 1, nullptr, true});
  }
  FindResiduals(here, scratch);
}

// What a row adds to the pages before its window.
void Stack::FindResiduals(const KvMemory::Reader& reader, Scratch& scratch) const {
  const size_t begin = scratch.residuals.size();
  const int bits = reader.residual_bits();
  for (int64_t page = 0; bits > 0 && page < reader.far_pages(); ++page)
    scratch.residuals.push_back(reader.Residuals(page));
  scratch.row_residuals.push_back({begin, scratch.residuals.size() - begin, bits});
}

// The runs of rows that read the same loop before their window: those before it, and each row's
// own.
void Stack::FindSharedRuns(std::span<const BatchRow> rows, int layer, int head,
                           Scratch& scratch) const {
  const auto group = static_cast<size_t>(spec_.heads / spec_.kv_heads);
  const int64_t far = kv_.FarPages(rows[0].sequence, rows[0].plane + layer, rows[0].position);
  scratch.runs.clear();
  scratch.own_runs.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const BatchRow& row = rows[r];
    const int plane = row.plane + layer;
    const KvMemory::Reader reader(kv_, row.sequence, plane, head, row.position);
    for (int64_t page = 0; r == 0 && page < far; ++page) {
      const KvMemory::Place place = reader.Page(page);
      scratch.runs.push_back({place.keys, place.values, kPageSize});
    }
    const size_t begin = scratch.own_runs.size();
    for (int64_t at = far * kPageSize; at < row.page_positions; at += kPageSize) {
      const KvMemory::Place place = reader.Page(at / kPageSize);
      scratch.own_runs.push_back(
          {place.keys, place.values, std::min<int64_t>(kPageSize, row.page_positions - at)});
    }
    for (int i = 0; i < row.cell_count; ++i) {
      const KvMemory::Place place = kv_.InCell(row.cells[i], plane, head);
      scratch.own_runs.push_back({place.keys, place.values, 1, nullptr, true});
    }
    FindResiduals(reader, scratch);
    // As numbers first: the list may move while it grows.
    scratch.own.push_back(
        {r * group, (r + 1) * group, {scratch.own_runs.data(), scratch.own_runs.size() - begin}});
  }
  const KvRun* at = scratch.own_runs.data();
  for (OwnRuns& own : scratch.own) {
    own.runs = {at, own.runs.size()};
    at += own.runs.size();
  }
}

// Whether the pages before their windows are the same, and read from the same loop.
bool Stack::ReadTheSameLoop(const BatchRow& row, const BatchRow& other) const {
  const KeptPlanes& kept = kv_.kept();
  if (!kept.has_window() || row.sequence.pages != other.sequence.pages) return false;
  if (row.cell_count == 0 || other.cell_count == 0) return false;
  const int64_t far = kv_.FarPages(row.sequence, row.plane, row.position);
  return far > 0 && far == kv_.FarPages(other.sequence, other.plane, other.position) &&
         kept.At(row.sequence.recurrences, row.plane).far ==
             kept.At(other.sequence.recurrences, other.plane).far;
}

// Rows that attend together: consecutive ones that read the same pages and no cells, each no fewer
// positions than the one before, as those of a prompt do; or branches, at any depths, that read the
// same loop before their windows, as far as every worker keeps a tile. Every other row is a tile of
// its own. The rows of a prompt's chunk are in one span.
void Stack::FindTiles(std::span<const BatchRow> rows, int workers, std::vector<int>& tiles) const {
  const int most = std::max(1, kMostQueries / (spec_.heads / spec_.kv_heads));
  const int most_branches =
      spec_.head_dim > kMostJoinedDims
          ? 1
          : std::min<int>(most, static_cast<int>(std::ssize(rows)) * spec_.kv_heads / workers);
  tiles.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const bool joins = r > 0 && static_cast<int>(r) - tiles.back() < most &&
                       rows[r].sequence.pages == rows[r - 1].sequence.pages &&
                       rows[r].plane == rows[r - 1].plane && rows[r].cell_count == 0 &&
                       rows[r - 1].cell_count == 0 &&
                       rows[r].page_positions >= rows[r - 1].page_positions;
    const bool joins_branch = r > 0 && static_cast<int>(r) - tiles.back() < most_branches &&
                              ReadTheSameLoop(rows[r], rows[r - 1]);
    if (!joins && !joins_branch) tiles.push_back(static_cast<int>(r));
  }
  tiles.push_back(static_cast<int>(rows.size()));
}

// The query heads of one key/value head, over the runs just found: rotate, attend, and pack the
// result as input of W_o.
void Stack::AttendTile(const Block& block, std::span<const BatchRow> rows, int first_row, int head,
                       int worker) {
  const MatMulKernel& kernel = *block.attn_out.kernel;
  Scratch& scratch = scratch_[static_cast<size_t>(worker)];
  const int d = spec_.head_dim;
  const int group = spec_.heads / spec_.kv_heads;
  const int64_t qkv_size = spec_.q_size() + 2 * spec_.kv_size(), at = int64_t{head} * group * d;
  const float* bias = block.qk_bias.empty() ? nullptr : block.qk_bias.data() + at;
  LOOPSPEC_CHECK(rows.back().positions() <= max_positions_);
  scratch.queries.clear();
  float* out = scratch.head_out.data();
  for (size_t r = 0; r < rows.size(); ++r) {
    const RowResiduals& more = scratch.row_residuals[scratch.own.empty() ? 0 : r];
    const std::span residuals = std::span(scratch.residuals).subspan(more.begin, more.count);
    float* q = qkv_.data() + (first_row + static_cast<int64_t>(r)) * qkv_size + at;
    for (int g = 0; g < group; ++g, out += d) {
      RotateHead(rows[r], bias == nullptr ? nullptr : bias + g * d, q + g * d);
      scratch.queries.push_back({q + g * d, rows[r].positions(), out, residuals, more.bits});
    }
  }
  const std::span<const AttentionQuery> queries = scratch.queries;
  const auto scale = static_cast<float>(spec_.AttentionScale());
  auto* attention_scratch = reinterpret_cast<float*>(scratch.attention.data());
  if (!scratch.own.empty()) {
    int64_t longest = 0;
    for (const AttentionQuery& query : queries) longest = std::max(longest, query.positions);
    LOOPSPEC_CHECK(longest <= max_positions_ && queries.size() <= kMostQueries);
    attention_({queries, d, scale, scratch.runs, attention_scratch, scratch.own, longest});
  }
  for (size_t i = 0; scratch.own.empty() && i < queries.size(); i += kMostQueries) {
    attention_({queries.subspan(i, std::min<size_t>(kMostQueries, queries.size() - i)), d, scale,
                scratch.runs, attention_scratch});
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const int row = first_row + static_cast<int>(r);
    const float* from = scratch.head_out.data() + static_cast<int64_t>(r) * group * d;
    if (HeadsPackAlone(kernel)) {
      kernel.pack(packed_att_.data(), row, spec_.q_size(), at, from, group * d);
    } else {
      std::copy_n(from, group * d, qkv_.data() + row * qkv_size + at);
    }
  }
}

// A worker's share of gate and of up must be whole blocks of both kernels.
int64_t Stack::FfGrain(const Block& block) const {
  return std::max(block.gate_up.kernel->grain, block.down.kernel->k_block);
}
Worker::Range Stack::ShareFf(const Worker& worker, const Block& block) const {
  return worker.Share(spec_.ff, FfGrain(block));
}

// x += norm_out(W_down swiglu(W_gate_up norm_in(x)))
void Stack::MlpPart(Worker& worker, const Block& block, const Block& next,
                    std::span<const BatchRow> rows) {
  Scratch& scratch = scratch_[static_cast<size_t>(worker.index())];
  const int n = static_cast<int>(rows.size());
  const int64_t h = spec_.hidden, ff = spec_.ff;
  const auto eps = static_cast<float>(spec_.norm_eps);
  const Worker::Range mine = worker.Share(n);

  for (int64_t r = mine.begin; r < mine.end; ++r) {
    const float* input = rows[r].x;
    if (!block.mlp_norm_in.empty()) {
      RmsNorm(input, Data(block.mlp_norm_in), eps, h, scratch.row.data());
      input = scratch.row.data();
    }
    block.gate_up.kernel->pack(packed_.data(), static_cast<int>(r), h, 0, input, h);
  }
  worker.Sync();

  // Gate and up of the same outputs meet in the worker's own scratch and leave as packed input of
  // `down`.
  const Worker::Range outputs = ShareFf(worker, block);
  const Worker::Range hidden = worker.Share(h, block.down.kernel->grain);
  const int64_t grain = FfGrain(block), step = std::max(grain, kFfChunk / grain * grain);
  for (int64_t at = outputs.begin; at < outputs.end; at += step) {
    const int64_t count = std::min(step, outputs.end - at);
    block.gate_up.Multiply(at, at + count, packed_.data(), n, scratch.gate.data(), kFfChunk,
                           block.gate_up.At(ff + at));
    block.gate_up.Multiply(
        ff + at, ff + at + count, packed_.data(), n, scratch.up.data(), kFfChunk,
        at + count < outputs.end ? block.gate_up.At(at + count) : block.down.At(hidden.begin));
    for (int r = 0; r < n; ++r) {
      float* gate = scratch.gate.data() + r * kFfChunk;
      SwiGlu(gate, scratch.up.data() + r * kFfChunk, count, gate);
      block.down.kernel->PackPiece(packed_ff_.data(), r, ff, at, gate, count);
    }
  }
  worker.Sync();
  if (block.down.kernel->finish != nullptr) {
    for (int64_t r = mine.begin; r < mine.end; ++r)
      block.down.kernel->finish(packed_ff_.data(), static_cast<int>(r), ff);
    worker.Sync();
  }

  const HeadTasks tasks = ShareHeads(worker, n);
  const int64_t first = tasks.own
                            ? tasks.heads.begin * (spec_.heads / spec_.kv_heads) * spec_.head_dim
                            : worker.Share(next.qkv.out, next.qkv.kernel->grain).begin;
  block.down.Multiply(hidden.begin, hidden.end, packed_ff_.data(), n, sub_.data() + hidden.begin, h,
                      next.qkv.At(first));
  worker.Sync();

  for (int64_t r = mine.begin; r < mine.end; ++r)
    AddSublayer(rows[r].x, sub_.data() + r * h, block.mlp_norm_out);
}

void Stack::FinishPrelude(Worker& worker, std::span<const BatchRow> rows,
                          std::span<float* const> states) {
  const Linear& update = weights_.update;
  const int n = static_cast<int>(rows.size());
  const int64_t h = spec_.hidden;
  const Worker::Range mine = worker.Share(n);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    float* e = rows[r].x;
    if (spec_.prelude_norm)
      RmsNorm(e, weights_.prelude_norm.data(), static_cast<float>(spec_.norm_eps), h, e);
    if (!states.empty()) std::copy_n(e, h, states[r]);
    if (spec_.two_states() && spec_.start == StateStart::kPrelude)
      std::copy_n(e, h, states[r] + h);  // L, which follows H
    if (spec_.injects_update())
      update.kernel->pack(packed_.data(), static_cast<int>(r), h, 0, e, h);
  }
  worker.Sync();
  if (!spec_.injects_update()) return;
  const Worker::Range hidden = worker.Share(h, update.kernel->grain);
  update.Multiply(hidden.begin, hidden.end, packed_.data(), n, sub_.data() + hidden.begin, h);
  worker.Sync();
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    for (int64_t i = 0; i < h; ++i)
      rows[r].x[i] = weights_.step[static_cast<size_t>(i)] * sub_[static_cast<size_t>(r * h + i)];
  }
  worker.Sync();
}

void Stack::Inject(Worker& worker, std::span<const BatchRow> rows,
                   std::span<const float* const> e) {
  if (spec_.adapter()) Adapter(worker, rows, e);
  if (!spec_.injects_update()) return;
  const Worker::Range mine = worker.Share(static_cast<int64_t>(rows.size()));
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    if (spec_.injection == Injection::kDiagonal) {
      InjectDiagonal(rows[r].x, weights_.decay.data(), e[r], spec_.hidden);
    } else {
      InjectOrthogonal(rows[r].x, weights_.decay.data(), e[r],
                       static_cast<float>(spec_.injection_eps), spec_.hidden);
    }
  }
}

void Stack::Adapter(Worker& worker, std::span<const BatchRow> rows,
                    std::span<const float* const> e) {
  const Linear& adapter = weights_.adapter;
  const int n = static_cast<int>(rows.size());
  const int64_t h = spec_.hidden;
  const Worker::Range mine = worker.Share(n);
  Scratch& scratch = scratch_[static_cast<size_t>(worker.index())];
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    if (h % adapter.kernel->k_block == 0) {
      adapter.kernel->PackPiece(packed_.data(), static_cast<int>(r), 2 * h, 0, rows[r].x, h);
      adapter.kernel->PackPiece(packed_.data(), static_cast<int>(r), 2 * h, h, e[r], h);
      if (adapter.kernel->finish != nullptr)
        adapter.kernel->finish(packed_.data(), static_cast<int>(r), 2 * h);
    } else {
      scratch.row.resize(static_cast<size_t>(2 * h));
      std::copy_n(rows[r].x, h, scratch.row.data());
      std::copy_n(e[r], h, scratch.row.data() + h);
      adapter.kernel->pack(packed_.data(), static_cast<int>(r), 2 * h, 0, scratch.row.data(),
                           2 * h);
    }
  }
  worker.Sync();
  const Worker::Range hidden = worker.Share(h, adapter.kernel->grain);
  adapter.Multiply(hidden.begin, hidden.end, packed_.data(), n, sub_.data() + hidden.begin, h);
  worker.Sync();
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    std::copy_n(sub_.data() + r * h, h, rows[r].x);
    if (!adapter.bias.empty()) AddTo(rows[r].x, adapter.bias.data(), h);
  }
}

void Stack::LoopNorm(Worker& worker, std::span<const BatchRow> rows) {
  if (weights_.loop_norm.empty()) return;
  const Worker::Range mine = worker.Share(static_cast<int64_t>(rows.size()));
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    RmsNorm(rows[r].x, weights_.loop_norm.data(), static_cast<float>(spec_.norm_eps), spec_.hidden,
            rows[r].x);
  }
}

void Stack::CodaInput(const float* state, float* to) const {
  if (spec_.coda_norm) {
    RmsNorm(state, weights_.final_norm.data(), static_cast<float>(spec_.norm_eps), spec_.hidden,
            to);
  } else {
    std::copy_n(state, spec_.hidden, to);
  }
}

void Stack::Head(Worker& worker, std::span<const BatchRow> rows, float* logits) {
  Scratch& scratch = scratch_[static_cast<size_t>(worker.index())];
  const Linear& head = weights_.head;
  const int n = static_cast<int>(rows.size());
  const int64_t h = spec_.hidden;
  const Worker::Range mine = worker.Share(n);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    const float* input = rows[r].x;
    if (!weights_.final_norm.empty()) {
      RmsNorm(input, weights_.final_norm.data(), static_cast<float>(spec_.norm_eps), h,
              scratch.row.data());
      input = scratch.row.data();
    }
    head.kernel->pack(packed_.data(), static_cast<int>(r), h, 0, input, h);
  }
  worker.Sync();
  const Worker::Range outputs = worker.Share(spec_.vocab, head.kernel->grain);
  head.Multiply(outputs.begin, outputs.end, packed_.data(), n, logits + outputs.begin, spec_.vocab);
  worker.Sync();
}

}  // namespace loopspec::cpu

#include "backends/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/bandwidth.h"
#include "backends/cpu/kv_int8.h"
#include "backends/cpu/kv_residual.h"
#include "base/check.h"
#include "base/error.h"
#include "base/memory_limit.h"
#include "base/timer.h"
#include "model/hashed_state.h"
#include "model/initial_state.h"

namespace loopspec {

ComputeMode CpuComputeMode(const Model& model, ComputeMode wanted) {
  return cpu::ResolveCompute(model, wanted);
}

std::unique_ptr<Backend> MakeCpuBackend(const Model& model, const BackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(model, options);
}

namespace cpu {
namespace {

constexpr int kChunk = 64;            // prompt positions at a time; their number changes no bit
constexpr size_t kCachedStates = 64;  // more than the positions a branch tree mostly spans
constexpr size_t kLongestChain = 64;  // ancestors of a branch; a longer chain allocates

// Bytes of all that grows with the positions and cells asked for.
struct Needs {
  double fixed, per_position;
};

KeptPlanes PlanesOf(const ModelSpec& spec, const BackendOptions& options) {
  return KeptPlanes(spec, static_cast<int>(options.readout_depths.size()), options.key_plan);
}

int64_t PageBytes(const ModelSpec& spec, const BackendOptions& options) {
  const int64_t plane = KvMemory::BytesPerPosition(spec, 1, KvHeadBytes(options, spec.head_dim));
  return PlanesOf(spec, options).BytesPerPosition(plane) * kPageSize;
}

Needs NeedsOf(const ModelSpec& spec, const BackendOptions& options) {
  const int planes = PlanesOf(spec, options).planes();
  const auto cell = static_cast<double>(
      KvMemory::BytesPerPosition(spec, planes, KvHeadBytes(options, spec.head_dim)));
  const auto kv = static_cast<double>(PageBytes(spec, options)) / kPageSize;
  const double distributions =
      static_cast<double>(MostDrafts(options) + 1) * spec.vocab * sizeof(float);
  // Attention keeps a score and a weight of each query and position, rotary embedding a row of its
  // table for each position.
  const double scratch = static_cast<double>(options.threads) * 2 * kMostQueries * sizeof(float);
  return {options.cells * (cell + distributions),
          kv + scratch + static_cast<double>(spec.head_dim) * sizeof(float)};
}

// Of all positions, and a window for each of the texts that share them, as far as they have no page
// in common.
int PagesOf(const ModelSpec& spec, const BackendOptions& options) {
  const int window = PlanesOf(spec, options).window_pages();
  const int pages = PagesFor(options.kv_positions);
  const int texts = options.kv_memory > 0 ? 1 : std::clamp(options.cells / 4, 1, pages);
  return pages + texts * window;
}

void CheckPlan(const ModelSpec& spec, const BackendOptions& options) {
  if (options.key_plan && options.key_plan->plan.HasResiduals() &&
      spec.head_dim > kMostResidualDims)
    Fail("plan of keys {}: residuals need heads of up to {}, this model's are of {}",
         options.key_plan->text(), kMostResidualDims, spec.head_dim);
}

BackendOptions Grant(const Model& model, BackendOptions options) {
  const ModelSpec& spec = model.spec;
  if (options.readout_depths.empty()) options.readout_depths = {spec.recurrence};
  LOOPSPEC_CHECK(options.readout_depths.back() == spec.recurrence);
  LOOPSPEC_CHECK(std::is_sorted(options.readout_depths.begin(), options.readout_depths.end()));
  options.compute = ResolveCompute(model, options.compute);
  if (options.kv_type != KvType::kCompute &&
      (spec.head_dim % 4 != 0 || spec.head_dim > kInt8MostDims))
    Fail("key/value type int8 needs heads of a multiple of 4 up to {}, this model's are of {}",
         kInt8MostDims, spec.head_dim);
  LOOPSPEC_CHECK((options.kv_type == KvType::kLoops) == options.key_plan.has_value());
  CheckPlan(spec, options);
  LOOPSPEC_CHECK(!options.round_keys ||
                 (options.compute == ComputeMode::kF32 && options.kv_type == KvType::kCompute));
  if (options.threads <= 0) options.threads = UsableCores();
  if (options.kv_share > 0) {
    const double beside =
        static_cast<double>(GetMemoryLimit().bytes) - NeedsOf(spec, options).fixed;
    options.kv_memory = static_cast<int64_t>(std::max(beside, 0.0) * options.kv_share);
  }
  if (options.kv_memory > 0 || options.kv_share > 0) {
    const int64_t page = PageBytes(spec, options);
    CheckMemory(static_cast<double>(options.kv_memory), "keys and values of that size");
    const int64_t window = PlanesOf(spec, options).window_pages();
    options.kv_positions = (options.kv_memory / page - window) * kPageSize;
    if (options.kv_positions <= 0)
      Fail("key/value memory of {} bytes is less than one page of {} positions needs ({} bytes)",
           options.kv_memory, kPageSize, page * (1 + window));
  }
  const Needs needs = NeedsOf(spec, options);
  if (options.kv_positions <= 0) {
    const double half = static_cast<double>(GetMemoryLimit().bytes) / 2;
    const double fitting = std::max((half - needs.fixed) / needs.per_position, double{kPageSize});
    options.kv_positions =
        static_cast<int64_t>(std::min<double>(spec.max_positions, std::floor(fitting)));
  }
  CheckMemory(
      needs.fixed + needs.per_position * static_cast<double>(PagesOf(spec, options)) * kPageSize,
      fmt::format("{} positions and {} live branches", options.kv_positions, options.cells));
  return options;
}

}  // namespace

CpuBackend::CpuBackend(const Model& model, const BackendOptions& options)
    : model_(model),
      options_(Grant(model, options)),
      planes_(model.spec, static_cast<int>(options_.readout_depths.size())),
      weights_(model, options_.compute, options_.observe_inputs),
      pages_(PagesOf(model.spec, options_)),
      pool_(options_.threads),
      kv_(model.spec, PlanesOf(model.spec, options_), pages_, options_.cells,
          KvHeadBytes(options_, model.spec.head_dim), options_.kv_type != KvType::kCompute),
      stack_(model.spec, weights_, kv_, options_.round_keys, options_.threads,
             std::max(options_.cells, kChunk), int64_t{pages_} * kPageSize + options_.cells + 1),
      frequencies_(model.spec.RopeFrequencies()) {
  const ModelSpec& spec = model.spec;
  const auto cells = static_cast<size_t>(options_.cells);
  const auto hidden = static_cast<size_t>(spec.hidden);
  states_.resize(cells * static_cast<size_t>(StateSize()));
  if (spec.keeps_input()) injected_.resize(cells * hidden);
  const size_t positions = static_cast<size_t>(pages_) * kPageSize + cells;
  rotary_ = LazyBuffer(positions * static_cast<size_t>(spec.head_dim) * sizeof(float));
  rotary_ready_.resize(positions);
  const auto drafts = static_cast<size_t>(MostDrafts(options_));
  distributions_ = LazyBuffer(cells * drafts * static_cast<size_t>(spec.vocab) * sizeof(float));
  if (spec.start != StateStart::kPrelude)
    initial_states_.resize(kCachedStates, {-1, std::vector<float>(hidden)});
  decide_.resize(static_cast<size_t>(options_.threads));
  rows_.reserve(cells);
  fresh_.reserve(cells);
  fresh_states_.reserve(cells);
  readout_rows_.reserve(cells);
  e_.reserve(cells);
  coda_x_.resize(cells * hidden);
  // Room for the largest step there can be, so that none allocates: every row at a readout, with a
  // full chain.
  row_cells_.reserve(cells * (std::min(kLongestChain, cells) + 1));
  logits_.reserve(cells * static_cast<size_t>(spec.vocab));
  result_.decisions.reserve(cells);
  for (DecideScratch& scratch : decide_) {
    scratch.values.reserve(static_cast<size_t>(spec.vocab));
    scratch.filter.candidates.reserve(static_cast<size_t>(spec.vocab));
  }
}

void CpuBackend::Embed(int32_t token, float* to) {
  LOOPSPEC_CHECK(token >= 0 && token < model_.spec.vocab);
  const TensorView& table = weights_.embedding;
  const auto scale = static_cast<float>(model_.spec.embed_scale);
  const int64_t h = model_.spec.hidden;
  if (table.quantized != nullptr) {
    table.quantized->DequantizeRow(token, to, embed_scratch_);
    for (int64_t i = 0; i < h; ++i) to[i] *= scale;
    return;
  }
  const std::byte* row = table.data + token * h * static_cast<int64_t>(SizeOf(table.dtype));
  if (table.dtype == DType::kBF16) {
    for (int64_t i = 0; i < h; ++i) {
      uint16_t bits;
      std::memcpy(&bits, row + 2 * i, 2);
      to[i] = scale * BF16ToFloat(bits);
    }
  } else {
    for (int64_t i = 0; i < h; ++i) to[i] = scale * LoadElement(row, table.dtype, i);
  }
}

void CpuBackend::FillInitialState(int32_t position, float* to) {
  const auto hidden = static_cast<size_t>(model_.spec.hidden);
  const bool hashed = model_.spec.start == StateStart::kHashed;
  const double scale = model_.spec.state_std * model_.spec.embed_scale;
  const auto hash_scale = static_cast<float>(std::sqrt(2.0 / static_cast<double>(hidden)));
  CachedState& cached = initial_states_[static_cast<size_t>(position) % kCachedStates];
  if (cached.position != position) {
    cached.position = position;
    const auto at = static_cast<uint32_t>(position);
    for (uint32_t i = 0; i < hidden; ++i) {
      cached.state[i] =
          hashed ? HashedState(at, i, hash_scale) : InitialState(options_.state_seed, at, i, scale);
    }
  }
  std::copy(cached.state.begin(), cached.state.end(), to);
}

const float* CpuBackend::Rotary(int32_t position) {
  const size_t half = frequencies_.size();
  auto* table = reinterpret_cast<float*>(rotary_.data()) + static_cast<size_t>(position) * 2 * half;
  if (!rotary_ready_[static_cast<size_t>(position)]) {
    rotary_ready_[static_cast<size_t>(position)] = true;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      table[i] = static_cast<float>(std::cos(angle));
      table[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

// ---- A step ----

void CpuBackend::PrepareStep(const StepPlan& plan) {
  const ModelSpec& spec = model_.spec;
  LOOPSPEC_CHECK(static_cast<int>(plan.rows.size()) <= options_.cells);
  rows_.clear();
  fresh_.clear();
  fresh_states_.clear();
  readout_rows_.clear();
  e_.clear();
  row_cells_.clear();
  size_t cells = 0;
  for (const RowPlan& row : plan.rows) cells += static_cast<size_t>(row.chain_length) + 1;
  row_cells_.reserve(cells);  // rows point into it
  // Two rows of one sequence at one depth may be a branch and its ancestor.
  related_ = false;
  plane_taken_.assign(plan.sequences.size() * static_cast<size_t>(spec.recurrence), 0);
  for (const RowPlan& row : plan.rows) {
    const int32_t* list = row_cells_.data() + row_cells_.size();
    row_cells_.insert(row_cells_.end(), plan.chains.begin() + row.chain_begin,
                      plan.chains.begin() + row.chain_begin + row.chain_length);
    row_cells_.push_back(row.cell);
    char& taken = plane_taken_[static_cast<size_t>(row.sequence * spec.recurrence + row.depth)];
    related_ = related_ || taken != 0;
    taken = 1;
    const float* rotary = Rotary(row.position);
    const SequencePlan& sequence = plan.sequences[static_cast<size_t>(row.sequence)];
    LOOPSPEC_CHECK(window_pages() == 0 || sequence.window != nullptr);
    const int64_t committed = row.position - row.chain_length;
    LOOPSPEC_CHECK(committed >= 0 && row.depth + plan.recurrences <= spec.recurrence);
    BatchRow batch{State(row.cell),
                   sequence,
                   committed,
                   list,
                   row.chain_length + 1,
                   row.cell,
                   row.position,
                   planes_.Core(0, row.depth + 1),
                   rotary,
                   rotary + spec.head_dim / 2};
    rows_.push_back(batch);
    if (spec.keeps_input()) e_.push_back(Injected(row.cell));
    if (row.depth > 0) continue;
    StartState(row.position, batch.x, fresh_states_);
    if (spec.keeps_input()) batch.x = Injected(row.cell);
    Embed(row.token, batch.x);
    batch.plane = planes_.Prelude(0);
    fresh_.push_back(batch);
  }
  for (size_t i = 0; i < plan.readouts.size(); ++i) {
    const ReadoutPlan& readout = plan.readouts[i];
    const RowPlan& row = plan.rows[static_cast<size_t>(readout.row)];
    LOOPSPEC_CHECK(row.depth + plan.recurrences ==
                   options_.readout_depths[static_cast<size_t>(readout.readout)]);
    BatchRow batch = rows_[static_cast<size_t>(readout.row)];
    if (spec.coda_layers > 0) {  // the coda must not disturb the state, which goes on
      batch.x = coda_x_.data() + i * static_cast<size_t>(spec.hidden);
      batch.plane = planes_.Coda(0, readout.readout);
    } else if (spec.two_states()) {
      batch.x = High(batch.x);
    }
    readout_rows_.push_back(batch);
  }
  logits_.resize(plan.readouts.size() * static_cast<size_t>(spec.vocab));
  result_.decisions.resize(plan.readouts.size());
}

void CpuBackend::Commits(Worker& worker, const StepPlan& plan) {
  if (plan.commits.empty()) return;
  for (const CommitPlan& commit : plan.commits) {
    const Worker::Range planes = worker.Share(kv_.planes());
    kv_.Commit(commit.cell, plan.sequences[static_cast<size_t>(commit.sequence)], commit.position,
               planes.begin, planes.end);
  }
  worker.Sync();
}

// Sets the state of a new row, or lists it among those that P will set.
void CpuBackend::StartState(int32_t position, float* state, std::vector<float*>& from_prelude) {
  const bool two = model_.spec.two_states();
  if (model_.spec.start != StateStart::kPrelude)
    FillInitialState(position, two ? High(High(state)) : state);
  if (two) {
    from_prelude.push_back(High(state));
  } else if (model_.spec.start == StateStart::kPrelude && model_.spec.keeps_input()) {
    from_prelude.push_back(state);
  }
}

void CpuBackend::Prelude(Worker& worker, std::span<const BatchRow> rows,
                         std::span<float* const> states, bool related) {
  stack_.Blocks(worker, weights_.prelude, rows, related);
  stack_.FinishPrelude(worker, rows, states);
}

void CpuBackend::Recurrence(Worker& worker, std::span<BatchRow> rows,
                            std::span<const float* const> e, bool related) {
  if (model_.spec.two_states()) {
    HierarchicalRecurrence(worker, rows, e, related);
    return;
  }
  stack_.Inject(worker, rows, e);
  stack_.Blocks(worker, weights_.core, rows, related);
  stack_.LoopNorm(worker, rows);
}

// L several times, then H: each from the sum of the two. Rows stand at one update together.
void CpuBackend::HierarchicalRecurrence(Worker& worker, std::span<BatchRow> rows,
                                        std::span<const float* const> e, bool related) {
  const ModelSpec& spec = model_.spec;
  const Worker::Range mine = worker.Share(static_cast<int64_t>(rows.size()));
  const std::span<const Block> all = weights_.core;
  const size_t half = all.size() / 2;
  int call = 0;
  for (int update = 0; update <= spec.low_cycles; ++update) {
    const bool low = update < spec.low_cycles;
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float *x = rows[r].x, *high = High(x);
      std::copy_n(high, spec.hidden, x);
      AddTo(x, High(high), spec.hidden);
    }
    stack_.Inject(worker, rows, e);
    const std::span<const Block> blocks = !spec.split_core ? all
                                          : low            ? all.subspan(half)
                                                           : all.first(half);
    for (int i = 0; i < spec.core_repeats; ++i) {
      stack_.Blocks(worker, blocks, rows, related, call);
      call += static_cast<int>(blocks.size());
    }
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* high = High(rows[r].x);
      std::copy_n(rows[r].x, spec.hidden, low ? High(high) : high);
    }
  }
}

void CpuBackend::RunStep(Worker& worker, const StepPlan& plan) {
  const ModelSpec& spec = model_.spec;
  const bool lead = worker.index() == 0;
  Timer timer;
  Commits(worker, plan);
  if (!fresh_.empty() && has_prelude()) Prelude(worker, fresh_, fresh_states_, related_);
  if (lead) result_.prelude_seconds = timer.Seconds();
  timer.Reset();

  for (int n = 0; n < plan.recurrences && !rows_.empty(); ++n) {
    Recurrence(worker, rows_, e_, related_);
    // The next recurrence is one depth on. Nobody waits: planes are read in attention only, and
    // every block has barriers before and after it.
    if (lead) {
      for (BatchRow& row : rows_) row.plane += spec.core_calls();
    }
  }
  if (!rows_.empty()) worker.Sync();
  if (lead) result_.recur_seconds = timer.Seconds();
  timer.Reset();

  if (!readout_rows_.empty()) {
    const Worker::Range mine = worker.Share(static_cast<int64_t>(readout_rows_.size()));
    if (spec.coda_layers > 0) {
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const float* state =
            rows_[static_cast<size_t>(plan.readouts[static_cast<size_t>(i)].row)].x;
        stack_.CodaInput(Readable(state), readout_rows_[static_cast<size_t>(i)].x);
      }
      stack_.Blocks(worker, weights_.coda, readout_rows_, related_);
    }
    stack_.Head(worker, readout_rows_, logits_.data());
    const DistributionStore store{reinterpret_cast<float*>(distributions_.data()),
                                  MostDrafts(options_), spec.vocab};
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const ReadoutPlan& readout = plan.readouts[static_cast<size_t>(i)];
      const std::span<const float> logits(logits_.data() + i * spec.vocab,
                                          static_cast<size_t>(spec.vocab));
      result_.decisions[static_cast<size_t>(i)] =
          Decide(readout, plan.rows[static_cast<size_t>(readout.row)].cell, logits, store,
                 decide_[static_cast<size_t>(worker.index())]);
    }
  }
  worker.Sync();
  if (lead) result_.readout_seconds = timer.Seconds();
}

Ticket CpuBackend::Submit(const StepPlan& plan) {
  PrepareStep(plan);
  pool_.Run([&](Worker& worker) { RunStep(worker, plan); });
  return 0;
}

const StepResult& CpuBackend::Wait(Ticket) {
  return result_;
}

void CpuBackend::SavePages(std::span<const int32_t> pages, std::byte* to) {
  const auto bytes = static_cast<size_t>(kv_.page_bytes());
  for (size_t i = 0; i < pages.size(); ++i) std::memcpy(to + i * bytes, kv_.Page(pages[i]), bytes);
}

void CpuBackend::LoadPages(std::span<const int32_t> pages, const std::byte* from) {
  const auto bytes = static_cast<size_t>(kv_.page_bytes());
  for (size_t i = 0; i < pages.size(); ++i)
    std::memcpy(kv_.Page(pages[i]), from + i * bytes, bytes);
}

void CpuBackend::CopyPage(int32_t from, int32_t to) {
  std::memcpy(kv_.Page(to), kv_.Page(from), static_cast<size_t>(kv_.page_bytes()));
}

Backend::FloatKeys CpuBackend::KeysOf(int32_t page, int plane, int head) {
  if (options_.compute != ComputeMode::kF32 || options_.kv_type != KvType::kCompute)
    Fail("the CPU hands out no keys in bf16 or int8, expected float32");
  const KvMemory::Place at = kv_.InPage(page, plane, head, 0);
  const auto count = static_cast<size_t>(kPageSize * model_.spec.head_dim);
  return {{reinterpret_cast<float*>(at.keys), count}, {reinterpret_cast<float*>(at.values), count}};
}

void CpuBackend::ReadLogits(int readout, std::span<float> out) {
  const auto vocab = static_cast<size_t>(model_.spec.vocab);
  LOOPSPEC_CHECK(out.size() == vocab &&
                 (static_cast<size_t>(readout) + 1) * vocab <= logits_.size());
  std::copy_n(logits_.begin() + static_cast<int64_t>(readout) * model_.spec.vocab, vocab,
              out.begin());
}

double CpuBackend::ReadBandwidth() {
  return MeasureReadBandwidth(options_.threads);
}

// ---- Prompts ----

int CpuBackend::PrefillChunk() const {
  return kChunk;
}

Ticket CpuBackend::SubmitPrefill(std::span<const PrefillPlan> parts) {
  for (const PrefillPlan& part : parts) PrefillPart(part, {});
  return 0;
}

void CpuBackend::Score(const PrefillPlan& plan, const LogitsSink& sink) {
  PrefillPart(plan, {.logits = &sink});
}

void CpuBackend::ScoreStates(const PrefillPlan& plan, const LogitsSink& sink,
                             const StateSink& states) {
  PrefillPart(plan, {.logits = &sink, .states = &states});
}

void CpuBackend::PrefillPart(const PrefillPlan& plan, const Sinks& sinks) {
  for (size_t at = 0; at < plan.tokens.size();) {
    PrefillPlan chunk = plan;
    chunk.start += static_cast<int32_t>(at);
    // By a plan of keys the rows of a chunk read the last loop of all spans but their own and the
    // one before, so they are of one span.
    const int most = window_pages() > 0 ? kChunk - chunk.start % kChunk : kChunk;
    chunk.tokens =
        plan.tokens.subspan(at, std::min(static_cast<size_t>(most), plan.tokens.size() - at));
    RunChunk(chunk, sinks);
    at += chunk.tokens.size();
  }
}

void CpuBackend::RunChunk(const PrefillPlan& plan, const Sinks& sinks) {
  const ModelSpec& spec = model_.spec;
  const std::span<const int32_t> tokens = plan.tokens;
  const int32_t start = plan.start;
  const int last = plan.recurrences > 0 ? plan.recurrences : spec.recurrence;
  LOOPSPEC_CHECK(last <= spec.recurrence);
  SequencePlan sequence = plan.sequence;
  sequence.recurrences = last;
  LOOPSPEC_CHECK(window_pages() == 0 || sequence.window != nullptr);
  const size_t n = tokens.size();
  const auto hidden = static_cast<size_t>(spec.hidden);
  const auto state_size = static_cast<size_t>(StateSize());
  chunk_x_.resize(kChunk * state_size);
  chunk_e_.resize(spec.keeps_input() ? kChunk * hidden : 0);
  chunk_coda_.resize(kChunk * hidden);
  if (sinks.logits != nullptr) chunk_logits_.resize(kChunk * static_cast<size_t>(spec.vocab));

  std::vector<BatchRow> rows(n), prelude(n);
  std::vector<const float*> e(spec.keeps_input() ? n : 0);
  std::vector<float*> states;
  for (size_t i = 0; i < n; ++i) {
    const int32_t position = start + static_cast<int32_t>(i);
    const float* rotary = Rotary(position);
    float* x = chunk_x_.data() + i * state_size;
    rows[i] = {x,  sequence, position + 1,       nullptr, 0,
               -1, position, planes_.Core(0, 1), rotary,  rotary + spec.head_dim / 2};
    prelude[i] = rows[i];
    prelude[i].plane = planes_.Prelude(0);
    StartState(position, x, states);
    if (spec.keeps_input()) {
      prelude[i].x = chunk_e_.data() + i * hidden;
      e[i] = prelude[i].x;
    }
    Embed(tokens[i], prelude[i].x);
  }
  if (has_prelude()) pool_.Run([&](Worker& worker) { Prelude(worker, prelude, states, true); });
  size_t next = 0;  // readout depth to come
  // A run for every recurrence: between runs the team may change.
  for (int depth = 1; depth <= last; ++depth) {
    const bool readout = depth == options_.readout_depths[next];
    pool_.Run([&](Worker& worker) {
      Recurrence(worker, rows, e, true);
      if (!readout) return;
      worker.Sync();
      ChunkReadout(worker, rows, static_cast<int>(next), start, sinks);
    });
    if (readout) ++next;
    for (BatchRow& row : rows) row.plane += spec.core_calls();
  }
  if (kv_.kept().residual_bytes() == 0) return;
  pool_.Run([&](Worker& worker) {
    const Worker::Range planes = worker.Share(kv_.planes());
    kv_.MakeResiduals(sequence, start, start + std::ssize(tokens), planes.begin, planes.end);
  });
}

void CpuBackend::ChunkReadout(Worker& worker, std::span<BatchRow> rows, int readout, int32_t start,
                              const Sinks& sinks) {
  const ModelSpec& spec = model_.spec;
  if (spec.coda_layers == 0 && sinks.logits == nullptr) return;
  // Every worker has its own list of the rows; what they point to is shared.
  std::vector<BatchRow> coda(rows.begin(), rows.end());
  if (spec.two_states()) {
    for (BatchRow& row : coda) row.x = High(row.x);
  }
  if (spec.coda_layers > 0) {
    for (size_t i = 0; i < coda.size(); ++i) {
      coda[i].x = chunk_coda_.data() + i * static_cast<size_t>(spec.hidden);
      coda[i].plane = planes_.Coda(0, readout);
    }
    const Worker::Range mine = worker.Share(static_cast<int64_t>(rows.size()));
    for (int64_t i = mine.begin; i < mine.end; ++i)
      stack_.CodaInput(Readable(rows[static_cast<size_t>(i)].x), coda[static_cast<size_t>(i)].x);
    stack_.Blocks(worker, weights_.coda, coda, true);
  }
  if (sinks.logits != nullptr) {
    stack_.Head(worker, coda, chunk_logits_.data());
    for (size_t i = 0; worker.index() == 0 && i < rows.size(); ++i) {
      const int32_t position = start + static_cast<int32_t>(i);
      if (sinks.states != nullptr)
        (*sinks.states)(position, readout, {Readable(rows[i].x), static_cast<size_t>(spec.hidden)});
      (*sinks.logits)(position, readout,
                      {chunk_logits_.data() + i * static_cast<size_t>(spec.vocab),
                       static_cast<size_t>(spec.vocab)});
    }
  }
  worker.Sync();
}

}  // namespace cpu
}  // namespace loopspec

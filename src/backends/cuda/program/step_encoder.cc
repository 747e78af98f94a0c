#include "backends/cuda/program/step_encoder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "kv/planes.h"

namespace loopspec::cuda {

StepEncoder::StepEncoder(const ModelSpec& spec, const KeptPlanes& kept, int split, int warps,
                         int cells, int readouts)
    : spec_(spec), kept_(kept), split_(split), warps_(warps), cells_(cells), readouts_(readouts) {}

// Room for `count` elements at a 16-byte boundary; `offset` says where.
template <typename T>
T* StepEncoder::Append(PinnedArray<std::byte>& buffer, size_t count, int32_t& offset) {
  const size_t at = (used_ + 15) / 16 * 16;
  const size_t end = at + count * sizeof(T);
  if (end > buffer.size()) {
    PinnedArray<std::byte> larger(std::max(end, 2 * buffer.size()));
    if (used_ > 0) std::memcpy(larger.data(), buffer.data(), used_);
    buffer = std::move(larger);
  }
  used_ = end;
  offset = static_cast<int32_t>(at);
  return reinterpret_cast<T*>(buffer.data() + at);
}

EncodedStep StepEncoder::Encode(const StepPlan& plan, PinnedArray<std::byte>& buffer) {
  LOOPSPEC_CHECK(!plan.rows.empty() || plan.readouts.empty());
  LOOPSPEC_CHECK(static_cast<int>(plan.rows.size()) <= cells_);
  LOOPSPEC_CHECK(static_cast<int>(plan.readouts.size()) <= cells_);
  used_ = 0;
  header_ = {};
  step_ = {};
  int32_t at;
  Append<PlanHeader>(buffer, 1, at);
  header_.recurrences = plan.recurrences;
  EncodeChains(plan, buffer);
  for (const Phase phase : {kPhasePrelude, kPhaseCore, kPhaseCoda})
    EncodePhase(plan, phase, buffer);
  EncodeReadouts(plan, buffer);
  std::memcpy(buffer.data(), &header_, sizeof(header_));
  step_.bytes = used_;
  return step_;
}

void StepEncoder::EncodeChains(const StepPlan& plan, PinnedArray<std::byte>& buffer) {
  int32_t* chains = Append<int32_t>(buffer, plan.chains.size(), header_.chains_at);
  std::copy(plan.chains.begin(), plan.chains.end(), chains);
  header_.chain_count = static_cast<int32_t>(plan.chains.size());

  auto* commits = Append<CommitInfo>(buffer, plan.commits.size(), header_.commits_at);
  for (size_t i = 0; i < plan.commits.size(); ++i) {
    const CommitPlan& commit = plan.commits[i];
    const int32_t* table = plan.sequences[static_cast<size_t>(commit.sequence)].pages;
    commits[i] = {commit.cell, table[commit.position / kPageSize], commit.position % kPageSize};
  }
  header_.commits = step_.commits = static_cast<int>(plan.commits.size());
  if (kept_.has_window()) EncodeCommitPlaces(plan, buffer);
}

// Loops that the plan leaves out lie in the window's pages, planes that the text has not nowhere.
void StepEncoder::EncodeCommitPlaces(const StepPlan& plan, PinnedArray<std::byte>& buffer) {
  const auto planes = static_cast<size_t>(kept_.planes());
  auto* places = Append<int32_t>(buffer, plan.commits.size() * planes, header_.commit_places_at);
  for (const CommitPlan& commit : plan.commits) {
    const SequencePlan& sequence = plan.sequences[static_cast<size_t>(commit.sequence)];
    LOOPSPEC_CHECK(sequence.window != nullptr);
    for (int plane = 0; plane < kept_.planes(); ++plane)
      *places++ = PlaceOf(sequence, commit.position / kPageSize, plane, 0);
  }
}

namespace {

// A row of a phase, and which planes it works on: those of rows with the same level are the same.
struct Member {
  const RowPlan* row;
  int level;
};

bool IsAncestor(const StepPlan& plan, const RowPlan& other, const RowPlan& row) {
  const auto chain =
      std::span(plan.chains)
          .subspan(static_cast<size_t>(row.chain_begin), static_cast<size_t>(row.chain_length));
  return other.sequence == row.sequence &&
         std::find(chain.begin(), chain.end(), other.cell) != chain.end();
}

}  // namespace

PhaseRelation RelationOf(const StepPlan& plan, Phase phase) {
  std::array<Member, kSmallBatchRows> members;
  size_t count = 0;
  const auto add = [&](const RowPlan& row, int level) {
    if (count < members.size()) members[count] = {&row, level};
    ++count;
  };
  if (phase == kPhaseCoda) {
    for (const ReadoutPlan& readout : plan.readouts)
      add(plan.rows[static_cast<size_t>(readout.row)], readout.readout);
  } else {
    for (const RowPlan& row : plan.rows) {
      if (phase == kPhaseCore || row.depth == 0) add(row, row.depth);
    }
  }
  if (count > members.size()) return PhaseRelation::kNone;
  const int recurrences = phase == kPhaseCore ? plan.recurrences : 1;
  PhaseRelation relation = PhaseRelation::kNone;
  for (const Member& member : std::span(members).first(count)) {
    for (const Member& other : std::span(members).first(count)) {
      const int apart = other.level - member.level;
      if (apart < 0 || apart >= recurrences || !IsAncestor(plan, *other.row, *member.row)) continue;
      if (apart == 0) return PhaseRelation::kSameDepth;
      relation = PhaseRelation::kEarlierRecurrence;
    }
  }
  return relation;
}

int ChooseSpanSplits(std::span<const Sharers> sharers, int tail_units, int kv_heads, int warps,
                     int per_page) {
  const auto pieces = [&](int span) {
    int units = 0;
    for (const Sharers& rows : sharers) {
      const int splits = std::max(span, rows.merged);
      units += (rows.splits + splits - 1) / splits;
    }
    return units * kv_heads;
  };
  const int tail = tail_units * kv_heads;
  // Tails do not count: spans must leave enough pieces for the producer warp to fetch them.
  if (pieces(1) <= kFewRounds * warps) return 1;
  const auto time = [&](int span) { return SpansTime(pieces(span), span, tail, warps); };
  int best = std::max(2, per_page);
  for (int span = 2 * best; span <= kSpanPages * per_page; span *= 2) {
    if (time(span) <= time(best)) best = span;
  }
  return best;
}

void StepEncoder::AddRow(const StepPlan& plan, const RowPlan& row, int plane) {
  LOOPSPEC_CHECK(row.chain_length >= 0 && row.chain_length <= row.position);
  LOOPSPEC_CHECK(row.token >= 0 && row.token < spec_.vocab);
  LOOPSPEC_CHECK(row.sequence >= 0 && row.sequence < static_cast<int>(plan.sequences.size()));
  RowInfo info{};
  info.cell = row.cell;
  info.token = row.token;
  info.position = row.position;
  info.depth = row.depth;
  info.plane = plane;
  info.partials = row.position / split_ / Merged(row.position) + 1;
  infos_.push_back(info);
  plans_.push_back(&row);
}

FarReads StepEncoder::FarReadsOf(const StepPlan& plan, const RowPlan& row, int plane) const {
  const SequencePlan& sequence = plan.sequences[static_cast<size_t>(row.sequence)];
  const int core = spec_.core_calls();
  const auto at = [&](int first, int recurrence) -> const PlaneSlots& {
    return kept_.At(sequence.recurrences, first + recurrence * core);
  };
  bool reads_window = false;
  for (int r = 0; r < plan.recurrences; ++r) reads_window |= at(plane, r).window >= 0;
  if (!reads_window) return {plane, -1};
  LOOPSPEC_CHECK(sequence.window != nullptr);
  const auto reads_the_same = [&](int other) {
    for (int r = 0; r < plan.recurrences; ++r) {
      if (at(other, r).far != at(plane, r).far) return false;
    }
    return true;
  };
  int first = PlaneMap(spec_, readouts_).Core(0, 1);
  while (!reads_the_same(first)) first += core;  // up to its own plane
  const int merged = Merged(row.position);
  const auto splits = static_cast<int>(kept_.FarPages(row.position) * (kPageSize / split_));
  // Of positions that are not committed there is no last loop yet.
  LOOPSPEC_CHECK(splits * split_ <= row.position - row.chain_length);
  return {first, splits / merged * merged};
}

void StepEncoder::EncodePhase(const StepPlan& plan, Phase phase, PinnedArray<std::byte>& buffer) {
  const PlaneMap planes(spec_, readouts_);
  infos_.clear();
  plans_.clear();
  far_reads_.clear();
  if (phase == kPhaseCoda) {
    for (const ReadoutPlan& readout : plan.readouts) {
      const RowPlan& row = plan.rows[static_cast<size_t>(readout.row)];
      AddRow(plan, row, spec_.coda_layers > 0 ? planes.Coda(0, readout.readout) : 0);
    }
  } else {
    for (const RowPlan& row : plan.rows) {
      if (phase == kPhasePrelude) {
        if (row.depth == 0 && (spec_.prelude_layers > 0 || spec_.injects_update()))
          AddRow(plan, row, 0);
      } else {
        LOOPSPEC_CHECK(row.depth >= 0 && row.depth + plan.recurrences <= spec_.recurrence);
        AddRow(plan, row, planes.Core(0, row.depth + 1));
      }
    }
    if (phase == kPhaseCore && plan.recurrences == 0) infos_.clear();
  }
  int64_t partials = 0;
  for (RowInfo& info : infos_) {
    info.partial = static_cast<int32_t>(partials);
    partials += info.partials;
  }
  step_.partials = std::max(step_.partials, partials);
  if (static_cast<int>(infos_.size()) <= kSmallBatchRows)
    step_.small_batch_partials = std::max(step_.small_batch_partials, partials);
  for (size_t i = 0; i < infos_.size(); ++i) {
    const int plane = infos_[i].plane;
    far_reads_.push_back(phase == kPhaseCore && kept_.has_window()
                             ? FarReadsOf(plan, *plans_[i], plane)
                             : FarReads{plane, -1});
  }
  Group(plan);

  header_.rows[phase] = step_.rows[phase] = static_cast<int32_t>(infos_.size());
  header_.relation[phase] = RelationOf(plan, phase);
  header_.units[phase] = static_cast<int32_t>(units_.size());
  for (const AttentionUnit& unit : units_) {
    if (unit.merged > 1) header_.merged[phase] = 1;
    header_.longest_span[phase] = std::max(header_.longest_span[phase], unit.keys.splits);
    header_.spans[phase] += unit.keys.whole;
    if (phase == kPhaseCore) step_.positions_read += unit.keys.splits * split_;
  }
  std::copy(infos_.begin(), infos_.end(),
            Append<RowInfo>(buffer, infos_.size(), header_.row_at[phase]));
  std::copy(query_rows_.begin(), query_rows_.end(),
            Append<QueryRow>(buffer, query_rows_.size(), header_.query_rows_at[phase]));
  std::copy(units_.begin(), units_.end(),
            Append<AttentionUnit>(buffer, units_.size(), header_.unit_at[phase]));
  if (phase == kPhaseCore && kept_.has_window()) EncodeLaterSpans(plan, buffer);
}

// The same splits as in the step's first recurrence, in other planes.
void StepEncoder::EncodeLaterSpans(const StepPlan& plan, PinnedArray<std::byte>& buffer) {
  if (units_.empty() || plan.recurrences < 2) return;
  const auto later = static_cast<size_t>(plan.recurrences - 1);
  auto* spans = Append<KeySpan>(buffer, later * units_.size(), header_.later_spans_at[kPhaseCore]);
  for (int r = 1; r < plan.recurrences; ++r) {
    for (const AttentionUnit& unit : units_) {
      *spans = unit.keys;
      FindPages(plan, *plans_[static_cast<size_t>(unit.row)], unit.plane + r * spec_.core_calls(),
                *spans++);
    }
  }
}

int StepEncoder::Merged(int position) const {
  return PartialSplits(position, split_, spec_.kv_heads, kSpanPages * (kPageSize / split_));
}

StepEncoder::RowKey StepEncoder::KeyOf(int32_t row) const {
  const auto i = static_cast<size_t>(row);
  const RowPlan& at = *plans_[i];
  return {at.sequence,         far_reads_[i].first_plane, at.position - at.chain_length,
          Merged(at.position), far_reads_[i].splits,      infos_[i].plane};
}

// Rows of one sequence and plane share the reading of partials that are fully committed, and before
// their windows rows of all planes that are read from the same place. The other partials, a row's
// tail, are read for each row alone.
void StepEncoder::Group(const StepPlan& plan) {
  order_.resize(infos_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int32_t a, int32_t b) { return KeyOf(a) < KeyOf(b); });
  query_rows_.clear();
  for (const int32_t i : order_) {
    const RowInfo& info = infos_[static_cast<size_t>(i)];
    query_rows_.push_back({i, info.partial, info.position});
  }
  units_.clear();
  tail_units_.clear();
  const int count = static_cast<int>(order_.size());
  const int per_unit = std::max(
      1, (count >= wide_from_ ? kLargeUnitQueries : kUnitQueries) / (spec_.heads / spec_.kv_heads));
  for (int i = 0; i < count; ++i) {
    const RowPlan& row = *plans_[static_cast<size_t>(order_[i])];
    const int merged = Merged(row.position), end = row.position / split_ + 1;
    for (int split = (row.position - row.chain_length) / split_ / merged * merged; split < end;
         split += merged) {
      tail_units_.push_back(Unit(plan, i, 1, split, std::min(merged, end - split)));
    }
  }
  sharers_.clear();
  Share(per_unit, true);
  Share(per_unit, false);
  const int span = count <= span_rows_ && count < wide_from_
                       ? ChooseSpanSplits(sharers_, static_cast<int>(tail_units_.size()),
                                          spec_.kv_heads, warps_, kPageSize / split_)
                       : 1;
  for (const Sharers& rows : sharers_) {
    const int splits = std::max(span, rows.merged), end = rows.begin + rows.splits;
    for (int split = rows.begin; split < end; split += splits)
      units_.push_back(Unit(plan, rows.first, rows.count, split, std::min(splits, end - split)));
  }
  const bool spans = std::any_of(units_.begin(), units_.end(),
                                 [](const AttentionUnit& unit) { return unit.keys.splits > 1; });
  // As many as the producer warp takes care of (attention/attention_pieces.cuh).
  LOOPSPEC_CHECK(!spans || count > span_rows_ || count >= wide_from_ ||
                 static_cast<int>(units_.size()) * spec_.kv_heads >= warps_ / 4);
  const size_t at = spans
                        ? units_.size()
                        : TailUnitsIndex(units_.size(), tail_units_.size(), spec_.kv_heads, warps_);
  units_.insert(units_.begin() + static_cast<std::ptrdiff_t>(at), tail_units_.begin(),
                tail_units_.end());
}

// `far`: of the splits before their windows, otherwise of the rest.
void StepEncoder::Share(int per_unit, bool far) {
  const int count = static_cast<int>(order_.size());
  const auto same = [&](const RowKey& a, const RowKey& b) {
    return a.sequence == b.sequence && a.first_plane == b.first_plane &&
           a.committed == b.committed && a.merged == b.merged && a.far_splits == b.far_splits &&
           (far || a.plane == b.plane);
  };
  for (int first = 0; first < count;) {
    const RowKey key = KeyOf(order_[first]);
    int last = first + 1;
    while (last < count && last - first < per_unit && same(key, KeyOf(order_[last]))) ++last;
    const int before = std::max(0, key.far_splits);
    const int begin = far ? 0 : before;
    const int end = far ? before : key.committed / split_ / key.merged * key.merged;
    if (begin < end) sharers_.push_back({first, last - first, end - begin, key.merged, begin});
    first = last;
  }
}

AttentionUnit StepEncoder::Unit(const StepPlan& plan, int first, int count, int split,
                                int splits) const {
  const auto lead = static_cast<size_t>(order_[static_cast<size_t>(first)]);
  const RowPlan& row = *plans_[lead];
  AttentionUnit unit{};
  unit.first = first;
  unit.count = count;
  unit.plane = infos_[lead].plane;
  unit.keys.first = split % (kPageSize / split_);
  unit.keys.split = split;
  unit.keys.splits = splits;
  unit.position = row.position;
  unit.committed = row.position - row.chain_length;
  unit.cell = row.cell;
  unit.chain = row.chain_begin;
  unit.row = static_cast<int32_t>(lead);
  unit.partial = infos_[lead].partial;
  unit.merged = Merged(row.position);
  unit.keys.whole = (split + splits) * split_ <= unit.committed ? 1 : 0;
  FindPages(plan, row, unit.plane, unit.keys);
  return unit;
}

// Where a row finds the keys of a span, as far as they are committed.
void StepEncoder::FindPages(const StepPlan& plan, const RowPlan& row, int plane,
                            KeySpan& keys) const {
  const SequencePlan& sequence = plan.sequences[static_cast<size_t>(row.sequence)];
  const int64_t far_pages = kept_.has_window() ? kept_.FarPages(row.position) : 0;
  const int begin = keys.split * split_;
  const int end = std::min((keys.split + keys.splits) * split_, row.position - row.chain_length);
  for (int page = begin / kPageSize; page * kPageSize < end; ++page) {
    const int32_t place = PlaceOf(sequence, page, plane, far_pages);
    LOOPSPEC_CHECK(place >= 0);
    keys.pages[page - begin / kPageSize] = place * spec_.kv_heads;
  }
}

// page * slots + slot of a plane of the positions of page `i`, of which those before `far_pages`
// are read by the plan; -1: the text has no such plane.
int32_t StepEncoder::PlaceOf(const SequencePlan& sequence, int i, int plane,
                             int64_t far_pages) const {
  const PlaneSlots& slots = kept_.At(sequence.recurrences, plane);
  const auto place = [&](int32_t page, int slot) { return page * kept_.slots() + slot; };
  if (slots.window >= 0 && i < far_pages) return place(sequence.pages[i], slots.far);
  if (slots.own >= 0) return place(sequence.pages[i], slots.own);
  if (slots.window < 0) return -1;
  return place(sequence.window[kept_.WindowPage(i, slots.window)],
               kept_.SlotInWindowPage(slots.window));
}

void StepEncoder::EncodeReadouts(const StepPlan& plan, PinnedArray<std::byte>& buffer) {
  step_.readouts = static_cast<int>(plan.readouts.size());
  std::vector<ReadoutInfo> readouts(plan.readouts.size());
  for (size_t i = 0; i < readouts.size(); ++i) {
    const ReadoutPlan& from = plan.readouts[i];
    const SamplingParams& sampling = *from.sampling;
    ReadoutInfo& to = readouts[i];
    to = {};
    to.cell = plan.rows[static_cast<size_t>(from.row)].cell;
    to.verify = from.purpose == ReadoutPurpose::kVerify;
    to.proposal = from.proposal;
    to.recorded_count = from.recorded_count;
    LOOPSPEC_CHECK(from.recorded_count >= 0 && from.recorded_count <= kMaxProposals);
    for (int r = 0; r < from.recorded_count; ++r)
      to.recorded[r] = {from.recorded[r].proposal, from.recorded[r].token};
    to.draw = from.draw;
    to.numbers = sampling;
    to.sampler = sampling.sampler;
    to.later = sampling.later;
    to.logprobs = to.verify ? from.logprobs : -1;
    if (to.logprobs > kMaxTopLogprobs) {
      Fail("{} top log-probabilities were asked for, the CUDA backend gives at most {}",
           to.logprobs, kMaxTopLogprobs);
    }
    const size_t counts = sampling.needs_counts() ? static_cast<size_t>(from.counts_length) : 0;
    to.counts_length = static_cast<int32_t>(counts);
    std::copy_n(from.counts, counts, Append<TokenCount>(buffer, counts, to.counts_at));
    to.bias_length = static_cast<int32_t>(sampling.bias.size());
    std::copy(sampling.bias.begin(), sampling.bias.end(),
              Append<TokenBias>(buffer, sampling.bias.size(), to.bias_at));
    to.mask = from.mask == nullptr ? -1 : step_.masks++;
    step_.distributions |= sampling.needs_distributions();
  }
  std::copy(readouts.begin(), readouts.end(),
            Append<ReadoutInfo>(buffer, readouts.size(), header_.readouts_at));
}

}  // namespace loopspec::cuda

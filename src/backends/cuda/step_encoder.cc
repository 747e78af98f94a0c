#include "backends/cuda/step_encoder.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "kv/planes.h"

namespace loopspec::cuda {

StepEncoder::StepEncoder(const ModelSpec& spec, int split, int max_rows, int readouts)
    : spec_(spec), split_(split), max_rows_(max_rows), readouts_(readouts) {}

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
  LOOPSPEC_CHECK(static_cast<int>(plan.rows.size()) <= max_rows_);
  LOOPSPEC_CHECK(static_cast<int>(plan.readouts.size()) <= max_rows_);
  used_ = 0;
  header_ = {};
  step_ = {};
  int32_t at;
  Append<PlanHeader>(buffer, 1, at);
  header_.recurrences = plan.recurrences;
  EncodePages(plan, buffer);
  for (const RowSet set : {kSetPrelude, kSetCore, kSetCoda}) EncodeSet(plan, set, buffer);
  EncodeReadouts(plan, buffer);
  std::memcpy(buffer.data(), &header_, sizeof(header_));
  step_.bytes = used_;
  return step_;
}

// Page tables as far as this step reads them, chains, and the commits.
void StepEncoder::EncodePages(const StepPlan& plan, PinnedArray<std::byte>& buffer) {
  std::vector<int>& used = grouped_;
  used.assign(plan.sequences.size(), 0);
  for (const RowPlan& row : plan.rows) {
    int& pages = used[static_cast<size_t>(row.sequence)];
    pages = std::max(pages, PagesFor(row.position - row.chain_length));
  }
  page_at_.resize(plan.sequences.size());
  int32_t total = 0;
  for (size_t s = 0; s < used.size(); ++s) {
    page_at_[s] = total;
    total += used[s];
  }
  int32_t* pages = Append<int32_t>(buffer, static_cast<size_t>(total), header_.pages_at);
  for (size_t s = 0; s < used.size(); ++s) {
    std::copy_n(plan.sequences[s].pages, used[s], pages + page_at_[s]);
  }
  int32_t* chains = Append<int32_t>(buffer, plan.chains.size(), header_.chains_at);
  std::copy(plan.chains.begin(), plan.chains.end(), chains);

  auto* commits = Append<CommitInfo>(buffer, plan.commits.size(), header_.commits_at);
  for (size_t i = 0; i < plan.commits.size(); ++i) {
    const CommitPlan& commit = plan.commits[i];
    const int32_t* table = plan.sequences[static_cast<size_t>(commit.sequence)].pages;
    commits[i] = {commit.cell, table[commit.position / kPageSize], commit.position % kPageSize};
  }
  header_.commits = step_.commits = static_cast<int>(plan.commits.size());
}

RowInfo StepEncoder::Info(const StepPlan& plan, const RowPlan& row, int plane) const {
  LOOPSPEC_CHECK(row.chain_length >= 0 && row.chain_length <= row.position);
  LOOPSPEC_CHECK(row.token >= 0 && row.token < spec_.vocab);
  LOOPSPEC_CHECK(row.sequence >= 0 && row.sequence < static_cast<int>(plan.sequences.size()));
  RowInfo info{};
  info.cell = row.cell;
  info.token = row.token;
  info.position = row.position;
  info.depth = row.depth;
  info.plane = plane;
  info.pages = page_at_[static_cast<size_t>(row.sequence)];
  info.chain = row.chain_begin;
  info.committed = row.position - row.chain_length;
  info.splits = row.position / split_ + 1;
  return info;
}

void StepEncoder::EncodeSet(const StepPlan& plan, RowSet set, PinnedArray<std::byte>& buffer) {
  const PlaneMap planes(spec_, readouts_);
  infos_.clear();
  if (set == kSetCoda) {
    for (const ReadoutPlan& readout : plan.readouts) {
      const RowPlan& row = plan.rows[static_cast<size_t>(readout.row)];
      infos_.push_back(Info(plan, row, spec_.coda_layers > 0 ? planes.Coda(0, readout.readout) : 0));
    }
  } else {
    for (const RowPlan& row : plan.rows) {
      if (set == kSetPrelude) {
        if (row.depth == 0 && spec_.prelude_layers > 0) infos_.push_back(Info(plan, row, 0));
      } else {
        LOOPSPEC_CHECK(row.depth >= 0 && row.depth + plan.recurrences <= spec_.recurrence);
        infos_.push_back(Info(plan, row, planes.Core(0, row.depth + 1)));
      }
    }
    if (set == kSetCore && plan.recurrences == 0) infos_.clear();
  }
  int64_t partials = 0;
  for (RowInfo& info : infos_) {
    info.partial = static_cast<int32_t>(partials);
    partials += info.splits;
  }
  step_.partials = std::max(step_.partials, partials);
  Group(infos_);

  header_.rows[set] = static_cast<int32_t>(infos_.size());
  header_.units[set] = static_cast<int32_t>(units_.size());
  std::copy(infos_.begin(), infos_.end(), Append<RowInfo>(buffer, infos_.size(), header_.row_at[set]));
  std::copy(grouped_.begin(), grouped_.end(), Append<int32_t>(buffer, grouped_.size(), header_.grouped_at[set]));
  std::copy(units_.begin(), units_.end(), Append<AttentionUnit>(buffer, units_.size(), header_.unit_at[set]));
}

// Rows of one sequence and plane share the reading of the splits that are committed whole; the rest a row reads alone.
void StepEncoder::Group(std::span<const RowInfo> rows) {
  grouped_.resize(rows.size());
  std::iota(grouped_.begin(), grouped_.end(), 0);
  const auto key = [&](int32_t i) {
    const RowInfo& r = rows[static_cast<size_t>(i)];
    return std::tuple(r.pages, r.plane, r.committed);
  };
  std::stable_sort(grouped_.begin(), grouped_.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  units_.clear();
  const int per_unit = std::max(1, 16 / (spec_.heads / spec_.kv_heads));
  const int count = static_cast<int>(rows.size());
  for (int first = 0; first < count;) {
    int last = first + 1;
    while (last < count && last - first < per_unit && key(grouped_[last]) == key(grouped_[first])) ++last;
    const RowInfo& lead = rows[static_cast<size_t>(grouped_[first])];
    const int whole = lead.committed / split_;
    for (int i = first; i < last; ++i) {
      const RowInfo& row = rows[static_cast<size_t>(grouped_[i])];
      for (int split = whole; split < row.splits; ++split) units_.push_back({i, 1, split});
    }
    for (int split = 0; split < whole; ++split) units_.push_back({first, last - first, split});
    first = last;
  }
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
    for (int r = 0; r < from.recorded_count; ++r) to.recorded[r] = {from.recorded[r].proposal, from.recorded[r].token};
    to.draw = from.draw;
    to.temperature = sampling.temperature;
    to.top_k = sampling.top_k;
    to.top_p = sampling.top_p;
    to.min_p = sampling.min_p;
    to.repetition_penalty = sampling.repetition_penalty;
    to.presence_penalty = sampling.presence_penalty;
    to.frequency_penalty = sampling.frequency_penalty;
    to.sampler = sampling.sampler;
    to.later = sampling.later;
    to.logprobs = to.verify ? from.logprobs : -1;
    if (to.logprobs > kMaxTopLogprobs) {
      Fail("{} top log-probabilities were asked for, the CUDA backend gives at most {}", to.logprobs, kMaxTopLogprobs);
    }
    const size_t counts = sampling.needs_counts() ? static_cast<size_t>(from.counts_length) : 0;
    to.counts_length = static_cast<int32_t>(counts);
    std::copy_n(from.counts, counts, Append<TokenCount>(buffer, counts, to.counts_at));
    to.bias_length = static_cast<int32_t>(sampling.bias.size());
    std::copy(sampling.bias.begin(), sampling.bias.end(), Append<TokenBias>(buffer, sampling.bias.size(), to.bias_at));
    step_.distributions |= sampling.needs_distributions();
  }
  std::copy(readouts.begin(), readouts.end(), Append<ReadoutInfo>(buffer, readouts.size(), header_.readouts_at));
}

}  // namespace loopspec::cuda

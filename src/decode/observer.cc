#include "decode/observer.h"

#include <algorithm>

#include "decode/depths.h"

namespace loopspec {

void DecodeObserver::Begin(const BranchTree& tree, int proposals, int recurrence) {
  tree_ = &tree;
  statistics_.accepted.resize(static_cast<size_t>(proposals));
  statistics_.rows_histogram.resize(static_cast<size_t>(tree.capacity()) + 1);
  depth_seen_.resize(static_cast<size_t>(recurrence));
}

void DecodeObserver::ReadOut(const Branch& branch, int proposal, const Decision& decision) {
  if (branch.proposal_count > 0) {
    ++statistics_.gate_evaluated;
    statistics_.gate_opened += decision.gate_open ? 1 : 0;
  }
  const bool drafted = decision.token >= 0;
  statistics_.drafted += drafted ? 1 : 0;
  Trace(drafted ? TraceEvent::Kind::kDraft : TraceEvent::Kind::kGateClosed, branch,
        drafted ? decision.token : -1, branch.position + 1, proposal + 1);
}

void DecodeObserver::Verified(const Branch& branch, int32_t token, int source, bool early) {
  statistics_.early += early ? 1 : 0;
  if (source > 0)
    ++statistics_.accepted[static_cast<size_t>(source) - 1];
  else
    ++statistics_.fallback;
  Trace(source > 0 ? TraceEvent::Kind::kAccept : TraceEvent::Kind::kFallback, branch, token,
        branch.position + 1, source);
}

void DecodeObserver::Planned(std::span<const RowPlan> rows, int32_t first_row,
                             std::span<const ReadoutPlan> readouts, int recurrences) {
  const auto count = static_cast<int64_t>(rows.size());
  // Each row reads its own chain and itself; the committed positions once per depth.
  const auto read = [&](const RowPlan& row, bool first_of_depth) -> int64_t {
    return row.chain_length + 1 + (first_of_depth ? row.position - row.chain_length : 0);
  };
  const auto first_of = [&](int depth) {
    return std::exchange(depth_seen_[static_cast<size_t>(depth)], char{1}) == 0;
  };
  std::fill(depth_seen_.begin(), depth_seen_.end(), char{0});
  int64_t positions = 0, planes = 0, preludes = 0;
  for (const RowPlan& row : rows) {
    const bool first = first_of(row.depth);
    const int64_t of_row = read(row, first);
    positions += of_row;
    planes += first ? 1 : 0;
    if (row.depth != 0) continue;
    ++preludes;
    statistics_.prelude_positions += of_row;  // through P, whose planes are read the same way
  }
  std::fill(depth_seen_.begin(), depth_seen_.end(), char{0});
  for (const ReadoutPlan& readout : readouts) {
    const RowPlan& row = rows[static_cast<size_t>(readout.row - first_row)];
    statistics_.readout_positions += read(row, first_of(row.depth + recurrences - 1));
  }
  statistics_.kv_positions += positions * recurrences;
  statistics_.planes += planes * recurrences;
  statistics_.preludes += preludes;
  statistics_.prelude_steps += preludes > 0 ? 1 : 0;
  statistics_.readouts += static_cast<int64_t>(readouts.size());
  statistics_.readout_steps += readouts.empty() ? 0 : 1;
  statistics_.recurrences += recurrences;
  statistics_.row_recurrences += recurrences * count;
  statistics_.rows_peak = std::max(statistics_.rows_peak, static_cast<int>(count));
  statistics_.rows_histogram[static_cast<size_t>(count)] += recurrences;
}

void DecodeObserver::Summarise(std::span<const int> depths, int recurrence) {
  Statistics& s = statistics_;
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  const auto tokens = static_cast<double>(s.decoded_tokens);
  const auto recurrences = static_cast<double>(s.recurrences);
  s.gamma = Gamma(s.accepted, s.fallback, depths, recurrence);
  // Every token over the time since the prompt was read (docs/measuring.md, "The clock").
  s.tokens_per_second = ratio(tokens, s.decode_seconds);
  s.rows_mean = ratio(static_cast<double>(s.row_recurrences), recurrences);
  s.tokens_per_pass = ratio(tokens * recurrence, recurrences);
}

void DecodeObserver::Record(TraceEvent::Kind kind, const Branch& branch, int32_t token,
                            int32_t position, int proposal) {
  const int32_t parent = branch.parent == kNoBranch ? -1 : (*tree_)[branch.parent].number;
  trace_.push_back({kind, statistics_.recurrences, branch.number, parent, token, position,
                    branch.depth, proposal});
}

}  // namespace loopspec

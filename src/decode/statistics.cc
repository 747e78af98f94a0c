#include "decode/statistics.h"

#include <algorithm>
#include <utility>

namespace loopspec {

void CountStep(std::span<const RowPlan> rows, int32_t first_row,
               std::span<const ReadoutPlan> readouts, int recurrences,
               std::vector<char>& depth_seen, DecodeStatistics& statistics) {
  const auto count = static_cast<int64_t>(rows.size());
  // Each row reads its own chain and itself; the committed positions once per depth.
  const auto read = [&](const RowPlan& row, bool first_of_depth) -> int64_t {
    return row.chain_length + 1 + (first_of_depth ? row.position - row.chain_length : 0);
  };
  const auto first_of = [&](int depth) {
    return std::exchange(depth_seen[static_cast<size_t>(depth)], char{1}) == 0;
  };
  std::fill(depth_seen.begin(), depth_seen.end(), char{0});
  int64_t positions = 0, planes = 0, preludes = 0;
  for (const RowPlan& row : rows) {
    const bool first = first_of(row.depth);
    const int64_t of_row = read(row, first);
    positions += of_row;
    planes += first ? 1 : 0;
    if (row.depth != 0) continue;
    ++preludes;
    statistics.prelude_positions += of_row;  // through P, whose planes are read the same way
  }
  std::fill(depth_seen.begin(), depth_seen.end(), char{0});
  for (const ReadoutPlan& readout : readouts) {
    const RowPlan& row = rows[static_cast<size_t>(readout.row - first_row)];
    statistics.readout_positions += read(row, first_of(row.depth + recurrences - 1));
  }
  statistics.kv_positions += positions * recurrences;
  statistics.planes += planes * recurrences;
  statistics.preludes += preludes;
  statistics.prelude_steps += preludes > 0 ? 1 : 0;
  statistics.readouts += static_cast<int64_t>(readouts.size());
  statistics.readout_steps += readouts.empty() ? 0 : 1;
  statistics.steps += recurrences;
  statistics.row_steps += recurrences * count;
  statistics.rows_peak = std::max(statistics.rows_peak, static_cast<int>(count));
  statistics.rows_histogram[static_cast<size_t>(count)] += recurrences;
}

}  // namespace loopspec

#include "decode/statistics.h"

#include <algorithm>
#include <utility>

namespace loopspec {

void CountStep(std::span<const RowPlan> rows, int64_t readouts, int recurrences,
               std::vector<char>& depth_seen, DecodeStatistics& statistics) {
  const auto count = static_cast<int64_t>(rows.size());
  std::fill(depth_seen.begin(), depth_seen.end(), char{0});
  int64_t positions = 0, planes = 0, preludes = 0;
  for (const RowPlan& row : rows) {
    // Each row reads its own chain and itself; the committed positions once per depth.
    positions += row.chain_length + 1;
    preludes += row.depth == 0 ? 1 : 0;
    if (std::exchange(depth_seen[static_cast<size_t>(row.depth)], char{1}) != 0) continue;
    positions += row.position - row.chain_length;
    ++planes;
  }
  statistics.kv_positions += positions * recurrences;
  statistics.planes += planes * recurrences;
  statistics.preludes += preludes;
  statistics.prelude_steps += preludes > 0 ? 1 : 0;
  statistics.readouts += readouts;
  statistics.readout_steps += readouts > 0 ? 1 : 0;
  statistics.steps += recurrences;
  statistics.row_steps += recurrences * count;
  statistics.rows_peak = std::max(statistics.rows_peak, static_cast<int>(count));
  statistics.rows_histogram[static_cast<size_t>(count)] += recurrences;
}

}  // namespace loopspec

// Turns a StepPlan into the bytes that the kernels read, in pinned memory.
#pragma once

#include <span>

#include "backends/backend.h"
#include "backends/cuda/program/plan.h"
#include "backends/cuda/sampling/sampling_kernel.h"

namespace loopspec::cuda {

struct EncodedStep {
  size_t bytes = 0;
  int commits = 0;
  int readouts = 0;
  int64_t partials = 0;              // attention partials of the largest phase
  int64_t small_batch_partials = 0;  // and of the largest phase that is a small batch
  int rows[kPhases] = {};
  int64_t positions_read = 0;  // positions whose keys and values each layer of B reads
  bool distributions = false;  // some readout compares distributions
  int masks = 0;               // readouts that have one
};

// Whether rows of the phase attend to keys that others write in the same step.
PhaseRelation RelationOf(const StepPlan& plan, Phase phase);

// Rows that read the same keys.
struct Sharers {
  int first, count;
  int splits;  // of the partials that are fully committed
  int merged;  // splits of a partial
};

// Splits of a span of attention, such that the grid's warps end as early as they can. A page has
// `per_page` splits. Rows whose partials are longer than that have spans of one partial.
int ChooseSpanSplits(std::span<const Sharers> sharers, int tail_units, int kv_heads, int warps,
                     int per_page);

class StepEncoder {
 public:
  // `split`: positions per attention partial; `warps`: of the grid, which share attention's pieces.
  StepEncoder(const ModelSpec& spec, int split, int warps, int cells, int readouts);

  // Rows of a phase from which on attention has large units, of single partials.
  void SetWideFrom(int rows) { wide_from_ = rows; }
  // Rows of a phase up to which a unit may be a span of several splits.
  void SetSpanRows(int rows) { span_rows_ = rows; }

  // Writes `plan` to `buffer`, which grows as needed.
  EncodedStep Encode(const StepPlan& plan, PinnedArray<std::byte>& buffer);

 private:
  template <typename T>
  T* Append(PinnedArray<std::byte>& buffer, size_t count, int32_t& offset);
  void EncodeChains(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void EncodePhase(const StepPlan& plan, Phase phase, PinnedArray<std::byte>& buffer);
  void EncodeReadouts(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void AddRow(const StepPlan& plan, const RowPlan& row, int plane);
  void Group(const StepPlan& plan);
  int Merged(int position) const;
  AttentionUnit Unit(const StepPlan& plan, int first, int count, int split, int splits) const;

  const ModelSpec& spec_;
  int split_, warps_, cells_, readouts_, planes_;
  int wide_from_ = kWideFrom;
  int span_rows_ = 0;
  size_t used_ = 0;
  PlanHeader header_{};
  EncodedStep step_;
  std::vector<int32_t> order_;  // rows of a phase; those that can share reads are neighbours
  std::vector<QueryRow> query_rows_;
  std::vector<Sharers> sharers_;  // of query_rows_
  std::vector<AttentionUnit> tail_units_, units_;
  std::vector<RowInfo> infos_;
  std::vector<const RowPlan*> plans_;  // of infos_
};

}  // namespace loopspec::cuda

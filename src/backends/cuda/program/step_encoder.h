// Turns a StepPlan into the bytes that the kernels read, in pinned memory.
#pragma once

#include "backends/backend.h"
#include "backends/cuda/program/step_types.h"
#include "backends/cuda/sampling/sampling_kernel.h"

namespace loopspec::cuda {

struct EncodedStep {
  size_t bytes = 0;
  int commits = 0;
  int readouts = 0;
  int64_t partials = 0;         // slots of attention partials that the largest set takes
  int64_t narrow_partials = 0;  // and the largest narrow one
  int rows[kSets] = {};
  bool distributions = false;  // some readout compares distributions
};

// Whether some row reaches, within the step, a depth at which another row of its chain leaves keys
// and values in the same step. Asked of few rows only: those of many wait for each other anyway.
bool Related(const StepPlan& plan);

class StepEncoder {
 public:
  // `split`: positions per attention partial; `warps`: that attention is dealt to.
  StepEncoder(const ModelSpec& spec, int split, int warps, int cells, int readouts);

  // Writes `plan` to `buffer`, which grows where it must.
  EncodedStep Encode(const StepPlan& plan, PinnedArray<std::byte>& buffer);

 private:
  template <typename T>
  T* Append(PinnedArray<std::byte>& buffer, size_t count, int32_t& offset);
  void EncodeChains(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void EncodeSet(const StepPlan& plan, RowSet set, PinnedArray<std::byte>& buffer);
  void EncodeReadouts(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void AddRow(const StepPlan& plan, const RowPlan& row, int plane);
  void Group(const StepPlan& plan);
  AttentionUnit Unit(const StepPlan& plan, int first, int count, int split) const;

  const ModelSpec& spec_;
  int split_, warps_, cells_, readouts_;
  size_t used_ = 0;
  PlanHeader header_{};
  EncodedStep step_;
  std::vector<int32_t> order_;  // rows of a set, those that can share reads together
  std::vector<QueryRow> query_rows_;
  std::vector<AttentionUnit> own_units_, units_;
  std::vector<RowInfo> infos_;
  std::vector<const RowPlan*> plans_;  // behind infos_
};

}  // namespace loopspec::cuda

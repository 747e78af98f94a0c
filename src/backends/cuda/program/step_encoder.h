// Turns a StepPlan into the bytes that the kernels read, in pinned memory.
#pragma once

#include <span>

#include "backends/backend.h"
#include "backends/cuda/program/plan.h"
#include "backends/cuda/sampling/sampling_kernel.h"
#include "kv/kept_planes.h"

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
  int splits;     // that they read, of partials that are fully committed
  int merged;     // splits of a partial
  int begin = 0;  // the first of the splits
};

// Splits of a span of attention, such that the grid's warps end as early as they can. A page has
// `per_page` splits. Rows whose partials are longer than that have spans of one partial.
int ChooseSpanSplits(std::span<const Sharers> sharers, int tail_units, int kv_heads, int warps,
                     int per_page);

// What a row reads before its window, by a plan of keys: rows that read the same there can share
// it, at whatever depths they are.
struct FarReads {
  int first_plane;  // the first plane that is read from the same places in all of the recurrences
  int splits;       // that lie before the window; -1: the row reads no window
};

class StepEncoder {
 public:
  // `split`: positions per attention partial; `warps`: of the grid, which share attention's pieces.
  StepEncoder(const ModelSpec& spec, const KeptPlanes& kept, int split, int warps, int cells,
              int readouts);

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
  void EncodeCommitPlaces(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void EncodeLaterSpans(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void EncodePhase(const StepPlan& plan, Phase phase, PinnedArray<std::byte>& buffer);
  void EncodeReadouts(const StepPlan& plan, PinnedArray<std::byte>& buffer);
  void AddRow(const StepPlan& plan, const RowPlan& row, int plane);
  FarReads FarReadsOf(const StepPlan& plan, const RowPlan& row, int plane) const;
  // Rows whose keys differ in nothing but the plane read the same before their windows, rows with
  // the same key read the same everywhere.
  struct RowKey {
    int sequence, first_plane, committed, merged, far_splits, plane;
    auto operator<=>(const RowKey&) const = default;
  };
  RowKey KeyOf(int32_t row) const;  // by its place in infos_
  void Group(const StepPlan& plan);
  void Share(int per_unit, bool far);
  int Merged(int position) const;
  AttentionUnit Unit(const StepPlan& plan, int first, int count, int split, int splits) const;
  void FindPages(const StepPlan& plan, const RowPlan& row, int plane, KeySpan& keys) const;
  int32_t PlaceOf(const SequencePlan& sequence, int i, int plane, int64_t far_pages) const;

  const ModelSpec& spec_;
  const KeptPlanes& kept_;
  int split_, warps_, cells_, readouts_;
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
  std::vector<FarReads> far_reads_;    // of infos_
};

}  // namespace loopspec::cuda

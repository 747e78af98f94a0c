// Sequences come in and go out: admitted, preempted, resumed. Each needs a cell for its first
// branch and KV pages for its text; this part knows whether they are there.
#pragma once

#include <cstddef>

#include "backends/backend.h"
#include "decode/step_cost.h"
#include "engine/schedule/kv_pages.h"
#include "engine/schedule/sequence.h"
#include "kv/ledger.h"

namespace loopspec {

class Admission {
 public:
  // `sequences`: the scheduler's; `cost`: of steps, kept by reference.
  Admission(Backend& backend, KvLedger& ledger, KvPages& pages, const Sequences& sequences,
            int max_running, const StepCost& cost);

  // A waiting sequence begins when its prompt has pages and one is left for every other sequence;
  // after that it takes pages as it grows. What is known of its prompt is not prefilled again:
  // pages of another choice of its submission, or a prefix hit. False, and nothing taken, when it
  // does not fit now. Both throw what makes this sequence impossible.
  bool Admit(Sequence& sequence);
  // Pages for its next step, and one for every other sequence, so that it is not preempted again at
  // once; then it goes on with the same bits from its committed text.
  bool Resume(Sequence& sequence);
  // Keys and values go to host memory, branches are dropped. No chunk of it may be in flight.
  void Preempt(Sequence& sequence);

  // An equal share of the cells for every running sequence, worked out anew when their number has
  // changed.
  void ShareCells();

 private:
  bool HaveCell();
  void LimitBranches(int sequences);
  const Sequence* Sibling(const Sequence& sequence) const;

  Backend& backend_;
  KvLedger& ledger_;
  KvPages& pages_;
  const Sequences& sequences_;
  const int max_running_;
  const StepCost& cost_;
  int sharing_ = 0;  // sequences that the cells are divided between
  StepPlan commits_;
};

}  // namespace loopspec

// Sequences come in and go out: admitted, preempted, resumed. Each needs a cell for its first
// branch and KV pages for its text; this part knows whether they are there.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "decode/step_cost.h"
#include "engine/pages/kv_pages.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/sequence.h"
#include "kv/ledger.h"

namespace loopspec {

class Admission {
 public:
  // `sequences`, `tenants`: the scheduler's; `cost`: of steps. All are kept by reference.
  Admission(Backend& backend, KvLedger& ledger, KvPages& pages, const Sequences& sequences,
            const std::vector<TenantView>& tenants, int max_running, const StepCost& cost);

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

  // Divides the cells between the running sequences (turns.h), anew when others run than before.
  void DivideCells();

 private:
  bool HaveCell(const Sequence& newcomer);
  // `newcomer`: is about to run; null: nobody is.
  void LimitBranches(const Sequence* newcomer);
  void ListRunning(const Sequence* newcomer);
  const Sequence* Sibling(const Sequence& sequence) const;

  Backend& backend_;
  KvLedger& ledger_;
  KvPages& pages_;
  const Sequences& sequences_;
  const std::vector<TenantView>& tenants_;
  const int max_running_;
  const StepCost& cost_;
  std::vector<int> running_;   // the tenants of the running sequences, and of a newcomer
  std::vector<int> divided_;   // the same when the cells were last divided
  std::vector<int> cells_of_;  // by running sequence
  StepPlan commits_;
};

}  // namespace loopspec

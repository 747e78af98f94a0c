#include "engine/schedule/admission.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "decode/depths.h"
#include "engine/schedule/turns.h"

namespace loopspec {
namespace {

// Planes that a text depends on: those of B up to its last depth, and the coda's wherever it is
// read out. Greedy and coupled text depends on the last readout alone, but its drafts, and so its
// speed, depend on the others.
PagePlanes PlanesRead(const ResolvedRequest& request, const ModelSpec& spec) {
  PagePlanes planes{request.recurrence};
  if (spec.coda_layers > 0) planes.readouts = ReadoutDepths(request.depths, planes.recurrence);
  return planes;
}

// Planes that prefill writes: the coda's at every depth that the backend reads out on the way.
PagePlanes PlanesPrefilled(int recurrence, const ModelSpec& spec, const BackendOptions& backend) {
  PagePlanes planes{recurrence};
  for (const int depth : backend.readout_depths) {
    if (spec.coda_layers > 0 && depth <= recurrence) planes.readouts.push_back(depth);
  }
  return planes;
}

}  // namespace

Admission::Admission(Backend& backend, KvLedger& ledger, KvPages& pages, const Sequences& sequences,
                     const std::vector<TenantView>& tenants, int max_running, const StepCost& cost)
    : backend_(backend),
      ledger_(ledger),
      pages_(pages),
      sequences_(sequences),
      tenants_(tenants),
      max_running_(max_running),
      cost_(cost) {}

bool Admission::Admit(Sequence& sequence) {
  if (!HaveCell(sequence)) return false;
  SequencePages pages(ledger_);
  pages.Reserve(std::ssize(sequence.request->prompt) + sequence.request->max_tokens);
  const std::span<const int32_t> prompt = sequence.to_prefill();
  const auto length = static_cast<int64_t>(prompt.size());
  const Sequence* sibling = Sibling(sequence);
  sequence.reads = PlanesRead(*sequence.request, backend_.spec());
  sequence.prompt_planes =
      sibling != nullptr
          ? sibling->prompt_planes
          : PlanesPrefilled(sequence.reads.recurrence, backend_.spec(), backend_.options());
  int64_t known = 0;
  PrefixHit hit{0, 0, SequencePages(ledger_)};
  if (sibling != nullptr) {
    known = pages_.ForkWhole(sibling->decoder->pages(), length, pages);
  } else if (!sequence.scored()) {  // scores come from computing every position
    hit = pages_.TakePrefixHit(prompt, pages, sequence.reads, &sequence.prompt_planes);
    known = hit.positions;
    sequence.fork = hit.known > known ? hit.known : 0;
  }
  if (!pages_.Grow(pages, length + 1, CountRunning(sequences_))) return false;
  pages_.PutWindow(hit, pages);
  if (sibling != nullptr) {
    pages_.ForkRest(sibling->decoder->pages(), length, pages);
    known = length;
  }
  sequence.decoder = std::make_unique<LoopSpec>(sequence.request, sequence.choice, backend_.spec(),
                                                backend_.options(), ledger_, std::move(pages),
                                                sequence.observer, cost_);
  sequence.prefilled = sequence.committed = sequence.statistics().cached_tokens = known;
  sequence.stage = known < length ? Stage::kPrefill : Stage::kDecode;
  sequence.statistics().queue_seconds = sequence.waited.Seconds();
  sequence.admitted.Reset();
  sequence.decoded.Reset();  // again at the prompt's end, where some of it is left to read
  LimitBranches(nullptr);
  return true;
}

bool Admission::Resume(Sequence& sequence) {
  if (!HaveCell(sequence)) return false;
  const int64_t prompt = std::ssize(sequence.request->prompt);
  SequencePages& pages = sequence.decoder->pages();
  if (!pages_.Grow(pages, std::max(prompt, sequence.decoder->decided() + 1),
                   CountRunning(sequences_)))
    return false;
  pages_.SwapIn(sequence.swapped, pages);
  sequence.swapped = std::vector<std::byte>();
  LOOPSPEC_CHECK(sequence.decoder->Resume());
  const bool prefilled = sequence.prefilled == std::ssize(sequence.to_prefill());
  sequence.stage = prefilled ? Stage::kDecode : Stage::kPrefill;
  LimitBranches(nullptr);
  return true;
}

void Admission::Preempt(Sequence& sequence) {
  LoopSpec& decoder = *sequence.decoder;
  if (decoder.commits_due()) {
    commits_.Clear();
    decoder.PlanCommits(commits_);
    backend_.Wait(backend_.Submit(commits_));
  }
  if (sequence.stage == Stage::kDecode) sequence.committed = decoder.decided();
  sequence.swapped = pages_.SwapOut(decoder.pages(), sequence.committed);
  decoder.Suspend();
  sequence.stage = Stage::kPreempted;
  ++sequence.statistics().preemptions;
}

// Another choice of its submission that has its whole prompt, and its window still does. One that
// is still in prefill has pages that others wrote before it.
const Sequence* Admission::Sibling(const Sequence& sequence) const {
  for (const auto& other : sequences_) {
    if (other->submission == sequence.submission && other->stage == Stage::kDecode &&
        pages_.WindowReaches(std::ssize(sequence.to_prefill()), other->decoder->decided()))
      return other.get();
  }
  return nullptr;
}

// ---- Cells ----

void Admission::ListRunning(const Sequence* newcomer) {
  running_.clear();
  for (const auto& sequence : sequences_) {
    if (sequence->running() || sequence.get() == newcomer) running_.push_back(sequence->tenant);
  }
}

void Admission::LimitBranches(const Sequence* newcomer) {
  ListRunning(newcomer);
  divided_ = running_;
  ShareCells(running_, tenants_, backend_.options().cells, max_running_ == 1, cells_of_);
  size_t i = 0;
  for (const auto& sequence : sequences_) {
    if (sequence->running()) sequence->decoder->LimitBranches(cells_of_[i]);
    if (sequence->running() || sequence.get() == newcomer) ++i;
  }
}

void Admission::DivideCells() {
  ListRunning(nullptr);
  if (running_ != divided_) LimitBranches(nullptr);
}

// A cell for one sequence more: where there is none, the others give up branches.
bool Admission::HaveCell(const Sequence& newcomer) {
  if (ledger_.cells().available() > 0) return true;
  LimitBranches(&newcomer);
  return ledger_.cells().available() > 0;
}

}  // namespace loopspec

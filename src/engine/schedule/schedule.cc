#include "engine/schedule/schedule.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace loopspec {
namespace {

// How much longer than without drafts a recurrence may take while a first token is awaited.
constexpr double kFirstTokenDelay = 1.25;

// A request is short beside another that has this many times its work.
constexpr int64_t kShortFactor = 8;
// While an answer gets its first tokens, steps take this many times as long as chunks.
constexpr double kStepsPerChunk = 2.0;

const SequenceView& At(const ScheduleView& view, int i) {
  return view.sequences[static_cast<size_t>(i)];
}

// Who runs, by tenant.
struct Places {
  explicit Places(const ScheduleView& of)
      : view(of), running(view.tenants.size()), youngest(view.tenants.size(), -1) {
    for (int i = 0; i < std::ssize(view.sequences); ++i) {
      const SequenceView& sequence = At(view, i);
      preempted += sequence.stage == Stage::kPreempted ? 1 : 0;
      if (!sequence.running()) continue;
      if (oldest < 0) oldest = i;
      ++all;
      ++running[static_cast<size_t>(sequence.tenant)];
      youngest[static_cast<size_t>(sequence.tenant)] = i;
    }
  }
  // Places that a tenant has for its weight, and would have with `more` of them.
  double Load(int tenant, int more = 0) const {
    const auto i = static_cast<size_t>(tenant);
    return (running[i] + more) / view.tenants[i].weight;
  }
  // The tenant that has most; between equals the one with the youngest sequence. -1: nobody runs.
  int Fullest() const {
    const auto fullness = [&](int i) {
      return std::pair(Load(i), youngest[static_cast<size_t>(i)]);
    };
    int fullest = 0;
    for (int i = 1; i < std::ssize(running); ++i) {
      if (fullness(i) > fullness(fullest)) fullest = i;
    }
    return running[static_cast<size_t>(fullest)] > 0 ? fullest : -1;
  }

  const ScheduleView& view;
  std::vector<int> running, youngest;  // by tenant
  int all = 0, preempted = 0;
  int oldest = -1;  // of all that run
};

// Whether a sequence comes before another of its tenant to take a place: preempted ones do, so that
// no later one takes the pages that one waits for; then by priority, then by age.
bool ComesBefore(const SequenceView& a, const SequenceView& b) {
  const bool a_out = a.stage == Stage::kPreempted, b_out = b.stage == Stage::kPreempted;
  if (a_out != b_out) return a_out;
  return a.priority < b.priority;
}

// Those that may have a place, by age. A choice whose prompt is being prefilled for another choice
// waits: it shares those pages when they are written.
std::vector<int> Candidates(const ScheduleView& view) {
  std::vector<int> candidates;
  const SequenceView* sibling = nullptr;  // the oldest running choice of the latest submission
  for (int i = 0; i < std::ssize(view.sequences); ++i) {
    const SequenceView& sequence = At(view, i);
    const bool shares = sibling != nullptr && sibling->submission == sequence.submission;
    if (sequence.running() && !shares) sibling = &sequence;
    const bool waits_for_prompt = shares && sibling->stage == Stage::kPrefill;
    if (sequence.stage == Stage::kPreempted ||
        (sequence.stage == Stage::kWaiting && !waits_for_prompt))
      candidates.push_back(i);
  }
  return candidates;
}

// The next to take a place: of the tenant that has fewest for its weight, between equals the older.
int NextCandidate(const Places& places, const std::vector<int>& candidates) {
  const ScheduleView& view = places.view;
  std::vector<int> first(places.running.size(), -1);  // by tenant
  for (const int i : candidates) {
    int& best = first[static_cast<size_t>(At(view, i).tenant)];
    if (best < 0 || ComesBefore(At(view, i), At(view, best))) best = i;
  }
  std::erase(first, -1);
  const auto rank = [&](int i) { return std::pair(places.Load(At(view, i).tenant), i); };
  return *std::min_element(first.begin(), first.end(),
                           [&](int a, int b) { return rank(a) < rank(b); });
}

// A tenant that has fewer places than its weight is worth gets one of the tenant that has most:
// only where that one has no fewer afterwards, so that they never take turns.
Admit ReplaceForTenant(const Places& places, int candidate) {
  const int tenant = At(places.view, candidate).tenant;
  const int fullest = places.Fullest();
  if (fullest < 0 || fullest == tenant || places.Load(fullest, -1) < places.Load(tenant, 1))
    return {};
  return {candidate, places.youngest[static_cast<size_t>(fullest)]};
}

// The oldest request that is overdue and short beside the longest that runs. So few are preempted
// at a time that the long ones get on, and each goes on as soon as there is a place.
Admit ReplaceForShort(const Places& places, const std::vector<int>& candidates) {
  const ScheduleView& view = places.view;
  if (places.preempted >= std::max(1, view.max_running / 8)) return {};
  int longest = -1;
  for (int i = 0; i < std::ssize(view.sequences); ++i) {
    if (At(view, i).running() &&
        (longest < 0 || At(view, i).work_left >= At(view, longest).work_left))
      longest = i;
  }
  if (longest < 0) return {};
  for (const int i : candidates) {
    const SequenceView& sequence = At(view, i);
    if (sequence.stage == Stage::kWaiting && sequence.waited >= view.short_wait &&
        sequence.work_left * kShortFactor <= At(view, longest).work_left)
      return {i, longest};
  }
  return {};
}

Admit NextAdmission(const ScheduleView& view) {
  const std::vector<int> candidates = Candidates(view);
  if (candidates.empty()) return {};
  const Places places(view);
  const int candidate = NextCandidate(places, candidates);
  const bool full = places.all >= view.max_running;
  if (full || view.pacing.pages_short) {
    const Admit fair = ReplaceForTenant(places, candidate);
    if (fair.sequence >= 0) return fair;
    const Admit brief = ReplaceForShort(places, candidates);
    if (brief.sequence >= 0) return brief;
  }
  return full ? Admit{} : Admit{candidate};
}

// One after the other, each as if those before it had been admitted.
std::vector<Admit> Admissions(ScheduleView view) {
  // Most steps: nobody wants in, and nothing is allocated.
  if (!view.admission_open ||
      std::none_of(view.sequences.begin(), view.sequences.end(),
                   [](const SequenceView& sequence) { return sequence.wants_a_place(); }))
    return {};
  std::vector<SequenceView> sequences(view.sequences.begin(), view.sequences.end());
  view.sequences = sequences;
  std::vector<Admit> admit;
  for (Admit next = NextAdmission(view); next.sequence >= 0; next = NextAdmission(view)) {
    admit.push_back(next);
    if (next.replaces >= 0) sequences[static_cast<size_t>(next.replaces)].stage = Stage::kPreempted;
    SequenceView& admitted = sequences[static_cast<size_t>(next.sequence)];
    admitted.stage = admitted.prompt_left > 0 ? Stage::kPrefill : Stage::kDecode;
    view.pacing.pages_short = false;  // it had fitted
  }
  return admit;
}

// Of the tenant that got least for its weight, the first prompt by priority and age; but one that
// fits into a chunk overtakes those that do not, every other time.
//
// With drafts a step is a few recurrences. Between two chunks the streams get a token each, or as
// many recurrences as one takes without drafts: those recurrences have many rows, and prompts that
// wait for all R of them wait much longer than drafts gain.
void ChooseChunk(const ScheduleView& view, Plan& plan) {
  int64_t decoding = 0;
  bool begins = false;
  int tenant = -1, first = -1, brief = -1;
  const auto got = [&](int i) { return view.tenants[static_cast<size_t>(i)].prefilled; };
  for (const SequenceView& sequence : view.sequences) {
    decoding += sequence.stage == Stage::kDecode ? 1 : 0;
    begins = begins || sequence.begins;
    if (sequence.stage == Stage::kPrefill && (tenant < 0 || got(sequence.tenant) < got(tenant)))
      tenant = sequence.tenant;
  }
  const auto is_brief = [&](int i) { return At(view, i).prompt_left <= view.chunk_positions; };
  for (int i = 0; i < std::ssize(view.sequences); ++i) {
    const SequenceView& sequence = At(view, i);
    if (sequence.stage != Stage::kPrefill || sequence.tenant != tenant) continue;
    const auto before = [&](int other) {
      return other < 0 || sequence.priority < At(view, other).priority;
    };
    if (before(first)) first = i;
    if (is_brief(i) && before(brief)) brief = i;
  }
  const Pacing& pacing = view.pacing;
  if (first < 0 || (pacing.loops < view.recurrence && pacing.tokens < decoding)) return;
  const bool overtakes = brief >= 0 && !is_brief(first) && !pacing.overtook;
  const int next = overtakes ? brief : first;
  if (begins && !is_brief(next) && pacing.step_seconds < kStepsPerChunk * pacing.chunk_seconds)
    return;
  plan.chunk = next;
  plan.overtakes = overtakes;
}

// Pages go to the oldest first. When they run out, the youngest sequence of the tenant that has
// most places for its weight is preempted, then the next; the oldest of all is the last to go, so
// every sequence gets through in the end. It goes only where it is alone, and cached pages after
// its own keep others from being evicted.
void ChoosePreemptions(const ScheduleView& view, Plan& plan) {
  for (const SequenceView& sequence : view.sequences) {
    if (sequence.stage == Stage::kDecode) plan.pages += sequence.pages_missing;
  }
  if (plan.pages <= view.pages_free) return;
  ScheduleView left = view;
  std::vector<SequenceView> sequences(view.sequences.begin(), view.sequences.end());
  left.sequences = sequences;
  for (;;) {
    Places places(left);
    if (places.all == 0) return;
    --places.running[static_cast<size_t>(At(left, places.oldest).tenant)];  // it goes last
    const int fullest = places.Fullest();
    const int next = fullest < 0 ? places.oldest : places.youngest[static_cast<size_t>(fullest)];
    plan.preempt.push_back(next);
    sequences[static_cast<size_t>(next)].stage = Stage::kPreempted;
  }
}

}  // namespace

Plan Schedule(const ScheduleView& view) {
  Plan plan;
  plan.admit = Admissions(view);
  if (!plan.admit.empty()) return plan;
  if (!view.chunk_in_flight) ChooseChunk(view, plan);
  ChoosePreemptions(view, plan);
  return plan;
}

// All R recurrences of a first token lie before it, and drafts of others, which make them longer,
// gain nothing there: so while one is awaited only as many rows advance as cost little. The other
// drafts wait.
int RowLimit(int sequences, int max_rows, bool awaits_first_token, const StepCost& cost) {
  const int limit = std::max(max_rows, sequences);
  if (!awaits_first_token) return limit;
  const double longest = kFirstTokenDelay * cost.Recurrence(sequences);
  int rows = sequences;
  while (rows < limit && cost.Recurrence(rows + 1) <= longest) ++rows;
  return rows;
}

}  // namespace loopspec

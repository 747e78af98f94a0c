// Long words that are mostly runs of one symbol, such as megabytes of blanks: merged run by run.
//
// The result is what merging pair by pair gives, the lowest rank first and the leftmost of equals.
// A run of n equal symbols whose pair is next becomes n / 2 of the new one and at most one old one,
// in one go: pair by pair the same would happen, unless a pair that the first merges make has a
// lower rank and would go before the rest of the run. Then one pair is merged at a time.
#include <algorithm>

#include "text/bpe.h"

namespace loopspec {
namespace {

using Run = BpeScratch::Run;
using RunPair = BpeScratch::RunPair;

bool IsLater(const RunPair& a, const RunPair& b) {
  return a.order > b.order;
}

// The runs of a word as a list, and the pairs in it that merge as a heap.
class RunList {
 public:
  RunList(const BpeMerges& merges, BpeScratch& scratch)
      : merges_(merges), runs_(scratch.runs), heap_(scratch.run_pairs) {}

  void Merge(BpeScratch& scratch) {
    constexpr size_t kBetweenChecks = 1 << 12;
    for (size_t i = 0; i < runs_.size(); ++i) NoteBoth(static_cast<int32_t>(i));
    for (size_t round = 1; !heap_.empty(); ++round) {
      if (round % kBetweenChecks == 0) scratch.CheckWork(kBetweenChecks);
      std::pop_heap(heap_.begin(), heap_.end(), IsLater);
      const RunPair top = heap_.back();
      heap_.pop_back();
      RunPair now;
      // Where the run has changed since, the pair has another order or is gone.
      if (!Find(top.run, top.inside, now) || now.order != top.order) continue;
      if (top.inside) {
        MergeInside(top.run, now);
      } else {
        MergeAcross(top.run, now);
      }
    }
  }

 private:
  Run& At(int32_t i) { return runs_[static_cast<size_t>(i)]; }

  // The leftmost pair inside a run, or the pair of its last symbol and the next run's first.
  bool Find(int32_t i, bool inside, RunPair& pair) {
    const Run& run = At(i);
    if (run.count < (inside ? 2 : 1) || (!inside && run.next < 0)) return false;
    const BpeMerges::Merge merge = merges_.Find(run.id, inside ? run.id : At(run.next).id);
    if (merge.rank == BpeMerges::kNone) return false;
    const uint32_t position =
        inside ? run.start : run.start + static_cast<uint32_t>(run.count - 1) * run.width;
    pair = {uint64_t{merge.rank} << 32 | position, i, merge.id, inside};
    return true;
  }
  void Note(int32_t i, bool inside) {
    RunPair pair;
    if (i < 0 || !Find(i, inside, pair)) return;
    heap_.push_back(pair);
    std::push_heap(heap_.begin(), heap_.end(), IsLater);
  }
  void NoteBoth(int32_t i) {
    if (i < 0) return;
    Note(i, true);
    Note(i, false);
  }
  int32_t InsertAfter(int32_t i, Run run) {
    const auto made = static_cast<int32_t>(runs_.size());
    run.previous = i;
    run.next = At(i).next;
    runs_.push_back(run);
    if (run.next >= 0) At(run.next).previous = made;
    At(i).next = made;
    return made;
  }
  void Remove(int32_t i) {
    const Run run = At(i);
    At(i).count = 0;
    if (run.previous >= 0) At(run.previous).next = run.next;
    if (run.next >= 0) At(run.next).previous = run.previous;
  }

  // Whether no pair that the first merges in the run make goes before the others in it.
  bool WholeRunIsNext(const Run& run, uint32_t rank, int32_t merged) {
    const auto is_later = [&](int32_t left, int32_t right) {
      return merges_.Find(left, right).rank > rank;
    };
    return (run.previous < 0 || is_later(At(run.previous).id, merged)) &&
           is_later(merged, run.id) && is_later(merged, merged);
  }

  void MergeInside(int32_t i, const RunPair& pair) {
    const Run run = At(i);
    const auto rank = static_cast<uint32_t>(pair.order >> 32);
    const int32_t pairs = WholeRunIsNext(run, rank, pair.merged) ? run.count / 2 : 1;
    const int32_t rest = run.count - 2 * pairs;
    At(i).id = pair.merged;
    At(i).count = pairs;
    At(i).width = 2 * run.width;
    if (rest > 0) {
      const uint32_t start = run.start + static_cast<uint32_t>(pairs) * 2 * run.width;
      NoteBoth(InsertAfter(i, {run.id, rest, -1, -1, start, run.width}));
    }
    NoteBoth(i);
    Note(At(i).previous, false);
  }

  void MergeAcross(int32_t i, const RunPair& pair) {
    const Run left = At(i);
    const int32_t j = left.next;
    const Run right = At(j);
    const auto position = static_cast<uint32_t>(pair.order);
    At(j).start += right.width;
    --At(j).count;
    --At(i).count;
    const int32_t made =
        InsertAfter(i, {pair.merged, 1, -1, -1, position, left.width + right.width});
    if (At(i).count == 0) Remove(i);
    if (At(j).count == 0) {
      Remove(j);
    } else {
      NoteBoth(j);
    }
    Note(made, false);
    const int32_t previous = At(made).previous;
    NoteBoth(previous);
  }

  const BpeMerges& merges_;
  std::vector<Run>& runs_;
  std::vector<RunPair>& heap_;
};

}  // namespace

void BpeModel::MergeRuns(BpeScratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<Run>& runs = scratch.runs;
  scratch.run_pairs.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].previous = static_cast<int32_t>(i) - 1;
    runs[i].next = i + 1 < runs.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  RunList(merges_, scratch).Merge(scratch);
  // The first run keeps its place in the list, or the one that took it over comes before it: the
  // list begins with the run that has none before it.
  int32_t first = -1;
  for (size_t i = 0; i < runs.size() && first < 0; ++i) {
    if (runs[i].count > 0 && runs[i].previous < 0) first = static_cast<int32_t>(i);
  }
  for (int32_t i = first; i >= 0; i = runs[static_cast<size_t>(i)].next) {
    const Run& run = runs[static_cast<size_t>(i)];
    ids.insert(ids.end(), static_cast<size_t>(run.count), run.id);
  }
}

}  // namespace loopspec

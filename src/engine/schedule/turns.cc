#include "engine/schedule/turns.h"

#include <algorithm>
#include <tuple>

namespace loopspec {
namespace {

// Rows are lent while the step takes no longer than this many times one of the due rows alone ...
constexpr double kLentDelay = 1.1;
// ... and cost no more than this part of a row that is due. Where all rows cost the same nothing is
// lent: a weight of 3 would not be worth 3 any more.
constexpr double kLentRow = 0.5;

// A token counts as one as long as it costs no more than this many rows without a context: so
// tenants with equal weights get as many tokens. Beyond it counts by its cost, so that nobody who
// asks for long contexts takes the whole machine.
constexpr double kRowsOfAToken = 4;
// Row count at which a row's own cost is taken: there the weights are shared by many.
constexpr int kManyRows = 64;

using Queue = TurnSchedule::Queue;

// The sequences of each tenant in the order of their turns. One that has been begun and has no
// token of it yet has the oldest last token, so it goes on before the next one's turn.
void MakeQueues(std::span<const TenantView> tenants, TurnSchedule& schedule) {
  const std::vector<TurnView>& sequences = schedule.sequences;
  std::vector<int>& order = schedule.order;
  order.resize(sequences.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const auto of = [&](int i) -> const TurnView& { return sequences[static_cast<size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::tuple(of(a).tenant, of(a).priority, of(a).last, a) <
           std::tuple(of(b).tenant, of(b).priority, of(b).last, b);
  });
  schedule.queues.clear();
  for (size_t i = 0; i < order.size(); ++i) {
    const int tenant = of(order[i]).tenant;
    if (schedule.queues.empty() || schedule.queues.back().tenant != tenant)
      schedule.queues.push_back({tenant, i, i, tenants[static_cast<size_t>(tenant)].decoded});
    schedule.queues.back().end = i + 1;
  }
}

bool IsEmpty(const Queue& queue) {
  return queue.next == queue.end;
}

}  // namespace

void ScheduleTurns(std::span<const TenantView> tenants, const StepCost& cost,
                   TurnSchedule& schedule) {
  const std::vector<TurnView>& sequences = schedule.sequences;
  schedule.turns.assign(sequences.size(), Turn::kDue);
  const auto same = [&](const TurnView& view) { return view.tenant == sequences[0].tenant; };
  if (std::all_of(sequences.begin(), sequences.end(), same)) return;
  std::fill(schedule.turns.begin(), schedule.turns.end(), Turn::kWaits);
  MakeQueues(tenants, schedule);
  std::vector<Queue>& queues = schedule.queues;

  int rows = 0;  // of the step
  const auto first = [&](const Queue& queue) {
    return static_cast<size_t>(schedule.order[queue.next]);
  };
  const auto give = [&](Queue& queue, Turn turn) {
    const size_t sequence = first(queue);
    ++queue.next;
    schedule.turns[sequence] = turn;
    rows += sequences[sequence].rows;
    queue.got += TokenCharge(cost, sequences[sequence].context) /
                 tenants[static_cast<size_t>(queue.tenant)].weight;
  };
  // Due: to the tenant that got least, until it has nothing to give a turn to.
  // Between equals it is the one that has nothing left, so that nobody gets more than is due.
  const auto least = [](const Queue& a, const Queue& b) {
    return a.got != b.got ? a.got < b.got : IsEmpty(a) && !IsEmpty(b);
  };
  for (;;) {
    Queue& next = *std::min_element(queues.begin(), queues.end(), least);
    if (IsEmpty(next)) break;
    give(next, Turn::kDue);
  }
  // Lent: what hardly costs anything, again to those first that got least.
  const double longest = kLentDelay * cost.Recurrence(rows);
  const double dearest = kLentRow * cost.Recurrence(rows) / std::max(1, rows);
  const auto waits_first = [](const Queue& a, const Queue& b) {
    return IsEmpty(a) != IsEmpty(b) ? IsEmpty(b) : a.got < b.got;
  };
  for (;;) {
    Queue& next = *std::min_element(queues.begin(), queues.end(), waits_first);
    if (IsEmpty(next)) return;
    const int more = sequences[first(next)].rows;
    const double with = cost.Recurrence(rows + more);
    if (with > longest || with - cost.Recurrence(rows) > dearest * more) return;
    give(next, Turn::kLent);
  }
}

double TokenCharge(const StepCost& cost, int64_t context) {
  const double row = cost.Recurrence(kManyRows) / kManyRows;
  const double attention = (cost.row_position + cost.plane_position) * static_cast<double>(context);
  return std::max(1.0, (1 + attention / row) / kRowsOfAToken);
}

void ShareCells(std::span<const int> tenant_of, std::span<const TenantView> tenants, int cells,
                bool alone, std::vector<int>& shares) {
  const auto n = static_cast<int>(tenant_of.size());
  shares.assign(tenant_of.size(), 1);
  if (n == 0) return;
  std::vector<int> count(tenants.size()), each(tenants.size()), order;
  double left = std::max(0, cells - (alone ? n : 2 * n)), weights = 0;
  for (const int tenant : tenant_of) {
    if (count[static_cast<size_t>(tenant)]++ > 0) continue;
    order.push_back(tenant);
    weights += tenants[static_cast<size_t>(tenant)].weight;
  }
  // A tenant whose part is more than its sequences use leaves the rest to the others. It comes
  // before them: it has the fewest sequences for its weight.
  const auto crowd = [&](int i) {
    return count[static_cast<size_t>(i)] / tenants[static_cast<size_t>(i)].weight;
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return crowd(a) < crowd(b); });
  bool all_have = true;
  for (const int tenant : order) {
    const auto i = static_cast<size_t>(tenant);
    const double part = left * tenants[i].weight / weights;
    all_have = all_have && part >= (kCellsUsed - 1) * count[i];
    each[i] = all_have ? kCellsUsed - 1 : static_cast<int>(part / count[i]);
    if (!all_have) continue;
    left -= each[i] * count[i];
    weights -= tenants[i].weight;
  }
  const int rest = all_have ? static_cast<int>(left) / n : 0;
  for (size_t i = 0; i < tenant_of.size(); ++i)
    shares[i] += each[static_cast<size_t>(tenant_of[i])] + rest;
}

}  // namespace loopspec

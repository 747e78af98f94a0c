#include "decode/row_choice.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loopspec {

RowChooser::RowChooser(int recurrence, int readouts, int most)
    : recurrence_(recurrence), readouts_(readouts) {
  const auto rows = static_cast<size_t>(most);
  order_.reserve(rows);
  best_.reserve(rows);
  planes_read_.reserve(rows * static_cast<size_t>(recurrence));
}

bool RowChooser::ReadsNewPlane(const RowState& row) {
  char& read = planes_read_[static_cast<size_t>(row.sequence) * static_cast<size_t>(recurrence_) +
                            static_cast<size_t>(row.depth)];
  return std::exchange(read, char{1}) == 0;
}

void RowChooser::Choose(std::span<const RowState> rows, int limit, const StepCost& cost,
                        std::vector<char>& advance) {
  advance.assign(rows.size(), 0);
  order_.clear();
  best_.clear();  // by sequence: its likeliest row
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto sequence = static_cast<size_t>(rows[i].sequence);
    if (sequence >= best_.size()) best_.resize(sequence + 1, -1);
    if (rows[i].held) continue;
    order_.push_back(static_cast<int32_t>(i));
    int32_t& best = best_[sequence];
    if (best < 0 || rows[i].reach > rows[static_cast<size_t>(best)].reach)
      best = static_cast<int32_t>(i);
  }
  planes_read_.assign(best_.size() * static_cast<size_t>(recurrence_), 0);
  const auto row = [&](int32_t i) -> const RowState& { return rows[static_cast<size_t>(i)]; };
  const auto is_best = [&](int32_t i) { return best_[static_cast<size_t>(row(i).sequence)] == i; };
  const auto rank = [&](int32_t i) { return is_best(i) ? 0 : row(i).always ? 1 : 2; };

  // The likeliest row of every sequence comes first, then those that always advance, then all
  // others by reach; the order of the list, in which parents stand before children, decides between
  // equals.
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return row(a).reach != row(b).reach ? row(a).reach > row(b).reach : a < b;
  });
  const auto certain =
      std::count_if(order_.begin(), order_.end(), [&](int32_t i) { return rank(i) < 2; });
  const auto needed = std::min<std::ptrdiff_t>(certain, limit);
  const auto allowed = std::min<std::ptrdiff_t>(std::ssize(order_), limit);

  double useful = 0;
  StepWork work;
  // One row more. A token passes P once and is read out at every proposal depth and at R, so each
  // row adds that share of a prelude and of a readout to an average step.
  const auto add = [&](const RowState& r) {
    const auto context = static_cast<double>(r.context);
    useful += r.reach;
    ++work.rows;
    work.row_positions += context;
    work.plane_positions += ReadsNewPlane(r) ? context : 0.0;
    work.preludes = static_cast<double>(work.rows) / recurrence_;
    work.readouts = work.preludes * readouts_;
  };
  for (std::ptrdiff_t i = 0; i < needed; ++i) add(row(order_[static_cast<size_t>(i)]));
  // Costs may jump where a tile is full, so the best number of rows need not be where another one
  // first stops paying: all are tried.
  const double first = cost.Of(work).total();
  const double worth = needed > 0 ? first / static_cast<double>(needed) : 0.0;
  // The larger the better: useful rows per second, or, with shared planes, seconds saved.
  const auto value = [&](double useful_rows, double seconds) {
    return cost.plane_position > 0 ? useful_rows * worth - seconds : useful_rows / seconds;
  };
  std::ptrdiff_t best = needed;
  double most = value(useful, first);
  for (std::ptrdiff_t i = needed; i < allowed; ++i) {
    add(row(order_[static_cast<size_t>(i)]));
    const double now = value(useful, cost.Of(work).total());
    if (now <= most) continue;
    most = now;
    best = i + 1;
  }
  for (std::ptrdiff_t i = 0; i < best; ++i)
    advance[static_cast<size_t>(order_[static_cast<size_t>(i)])] = 1;
}

double SecondsPerToken(const GroupQuestion& q, int group, const StepCost& cost) {
  const double d1 = q.first_depth, r = q.recurrence;
  const double d2 = q.second_depth > 0 ? q.second_depth : r;
  const double restart = std::max(0.0, 1.0 - q.first - q.second);
  // A verdict comes when its group has passed, somewhat more than half a group's time later than it
  // could; that is lost whenever the first draft does not hold. (The factors are fitted to
  // simulations with the decoder itself, calibrate/simulate.h.)
  const double late = 0.62 * (group - 1) * d1 * (1.0 - q.first);
  const double least = q.first * d1 + q.second * d2 + restart * r;  // without waiting
  const double steps = least + late;
  // The drafting front reads a plane in every step; the depths behind it are passed in groups.
  const double planes = steps + 1.06 * (r - d1) / group;
  const double rows = r / least;  // of a step, whatever the group
  const auto context = static_cast<double>(q.context);
  StepWork work;  // of one step; groups change nothing about P and C
  work.rows = std::max(1, static_cast<int>(rows + 0.5));
  work.row_positions = r * context / steps;
  work.plane_positions = planes * context / steps;
  return steps * cost.Of(work).total();
}

int BestGroup(const GroupQuestion& question, const StepCost& cost) {
  int best = 1;
  double seconds = SecondsPerToken(question, 1, cost);
  for (int group = 2; group <= question.most; ++group) {
    const double with = SecondsPerToken(question, group, cost);
    // Not for a gain within the error of the estimate.
    if (with < 0.99 * seconds) {
      seconds = with;
      best = group;
    }
  }
  return best;
}

}  // namespace loopspec

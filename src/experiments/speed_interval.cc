#include "experiments/speed_interval.h"

#include <algorithm>
#include <random>

namespace loopspec::experiments {
namespace {

constexpr int kResamples = 2000;

// Times of texts as a plain table, text by text and repeat by repeat: thousands of sums over it.
struct Table {
  size_t repeats = 0;
  std::vector<TextTime> cells;

  void Add(const std::map<int, TextTime>& of_text) {
    cells.resize(cells.size() + repeats);
    for (const auto& [repeat, time] : of_text) {
      if (static_cast<size_t>(repeat) < repeats)
        cells[cells.size() - repeats + static_cast<size_t>(repeat)] = time;
    }
  }

  // Over the chosen texts, as RatesOf.
  double MedianRate(const std::vector<size_t>& chosen) const {
    std::vector<TextTime> sums(repeats);
    for (const size_t text : chosen) {
      for (size_t r = 0; r < repeats; ++r) {
        sums[r].tokens += cells[text * repeats + r].tokens;
        sums[r].seconds += cells[text * repeats + r].seconds;
      }
    }
    std::vector<double> rates;
    for (const TextTime& sum : sums) {
      if (sum.seconds > 0) rates.push_back(sum.tokens / sum.seconds);
    }
    return Median(std::move(rates));
  }
};

size_t Repeats(const TextTimes& times) {
  int most = 0;
  for (const auto& [text, repeats] : times) {
    if (!repeats.empty()) most = std::max(most, repeats.rbegin()->first + 1);
  }
  return static_cast<size_t>(most);
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

std::vector<double> RatesOf(const TextTimes& times) {
  std::map<int, TextTime> sums;
  for (const auto& [text, repeats] : times) {
    for (const auto& [repeat, time] : repeats) {
      sums[repeat].tokens += time.tokens;
      sums[repeat].seconds += time.seconds;
    }
  }
  std::vector<double> rates;
  for (const auto& [repeat, sum] : sums)
    rates.push_back(sum.seconds > 0 ? sum.tokens / sum.seconds : 0);
  return rates;
}

double SpeedupOf(const TextTimes& own, const TextTimes& baseline) {
  const double base = Median(RatesOf(baseline));
  return base > 0 ? Median(RatesOf(own)) / base : 0;
}

std::optional<Interval> SpeedupInterval(const TextTimes& own, const TextTimes& baseline) {
  Table mine{Repeats(own), {}}, theirs{Repeats(baseline), {}};
  size_t n = 0;
  for (const auto& [text, repeats] : own) {
    const auto found = baseline.find(text);
    if (found == baseline.end()) continue;
    mine.Add(repeats);
    theirs.Add(found->second);
    ++n;
  }
  if (n < 2) return std::nullopt;
  std::mt19937_64 random(1);
  std::vector<double> speedups;
  std::vector<size_t> chosen(n);
  for (int i = 0; i < kResamples; ++i) {
    for (size_t& text : chosen) text = static_cast<size_t>(random() % n);
    const double base = theirs.MedianRate(chosen);
    if (base > 0) speedups.push_back(mine.MedianRate(chosen) / base);
  }
  if (speedups.empty()) return std::nullopt;
  std::sort(speedups.begin(), speedups.end());
  const auto at = [&](double share) {
    return speedups[static_cast<size_t>(share * static_cast<double>(speedups.size() - 1) + 0.5)];
  };
  return Interval{at(0.025), at(0.975)};
}

}  // namespace loopspec::experiments

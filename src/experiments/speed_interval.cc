#include "experiments/speed_interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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

  // Over the chosen texts and repeats, as RatesOf.
  double MedianRate(const std::vector<size_t>& texts, const std::vector<size_t>& of) const {
    std::vector<TextTime> sums(of.size());
    for (const size_t text : texts) {
      for (size_t i = 0; i < of.size(); ++i) {
        if (of[i] >= repeats) continue;
        sums[i].tokens += cells[text * repeats + of[i]].tokens;
        sums[i].seconds += cells[text * repeats + of[i]].seconds;
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

std::string SpeedSpread::Words() const {
  const std::string range = fmt::format("{:.2f} to {:.2f}", low, high);
  return is_interval() ? range : fmt::format("{} (range of {} texts)", range, texts);
}

std::optional<SpeedSpread> SpreadOf(const TextTimes& own, const TextTimes& baseline) {
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
  std::vector<double> speedups;
  const auto add = [&](const std::vector<size_t>& texts, const std::vector<size_t>& repeats) {
    const double base = theirs.MedianRate(texts, repeats), rate = mine.MedianRate(texts, repeats);
    if (base > 0 && rate > 0) speedups.push_back(rate / base);
  };
  std::vector<size_t> repeats(std::max(mine.repeats, theirs.repeats));
  std::iota(repeats.begin(), repeats.end(), size_t{0});
  SpeedSpread spread;
  spread.texts = static_cast<int>(n);
  if (spread.is_interval()) {
    std::mt19937_64 random(1);
    std::vector<size_t> texts(n);
    const size_t all = repeats.size();
    for (int i = 0; i < kResamples; ++i) {
      for (size_t& text : texts) text = static_cast<size_t>(random() % n);
      for (size_t& repeat : repeats) repeat = static_cast<size_t>(random() % all);
      add(texts, repeats);
    }
  } else {
    for (size_t text = 0; text < n; ++text) add({text}, repeats);
  }
  if (speedups.empty()) return std::nullopt;
  std::sort(speedups.begin(), speedups.end());
  const double left_out = spread.is_interval() ? 0.025 : 0.0;
  const auto at = [&](double share) {
    return speedups[static_cast<size_t>(share * static_cast<double>(speedups.size() - 1) + 0.5)];
  };
  spread.low = at(left_out);
  spread.high = at(1 - left_out);
  return spread;
}

}  // namespace loopspec::experiments

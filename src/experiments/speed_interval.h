// How sure a speedup is: a paired bootstrap over the texts that both kinds of decoding wrote.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace loopspec::experiments {

// What one text took: tokens, and seconds since its prompt was read.
struct TextTime {
  double tokens = 0, seconds = 0;
};
// By text, then by repeat.
using TextTimes = std::map<std::string, std::map<int, TextTime>>;

double Median(std::vector<double> values);

// Tokens per second of each repeat: all tokens over all seconds.
std::vector<double> RatesOf(const TextTimes& times);

// The median rate of `own` over the median rate of `baseline`; 0 where either has none.
double SpeedupOf(const TextTimes& own, const TextTimes& baseline);

struct Interval {
  double low = 0, high = 0;
};
// 95 % of the speedups that texts drawn with replacement give, each text taken with both its times:
// how far the speedup depends on which texts were decoded. Nothing for fewer than two texts. The
// draws are fixed, so that the same records give the same interval.
std::optional<Interval> SpeedupInterval(const TextTimes& own, const TextTimes& baseline);

}  // namespace loopspec::experiments

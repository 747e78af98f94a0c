// How sure a speedup is, from the times of the texts that both kinds of decoding wrote.
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

// Fewer texts have no interval: a bootstrap over two or three of them says almost nothing.
inline constexpr int kTextsOfAnInterval = 8;

// How far a speedup depends on which texts were decoded, and on the moments in which they were.
struct SpeedSpread {
  double low = 0, high = 0;
  int texts = 0;

  // True: 95 % of a bootstrap. False: the smallest and the largest speedup of a single text.
  bool is_interval() const { return texts >= kTextsOfAnInterval; }
  // Whether the two kinds of decoding can be told apart at all.
  bool tells_apart() const { return is_interval() && (low > 1 || high < 1); }
  // "1.98 to 2.42", or "1.98 to 2.42 (range of 3 texts)".
  std::string Words() const;
};
// The interval is that of speedups over texts and repeats drawn with replacement; a text or a
// repeat is drawn for both kinds of decoding together, since they ran in turn. Nothing for fewer
// than two texts. The draws are fixed, so that the same records give the same interval.
std::optional<SpeedSpread> SpreadOf(const TextTimes& own, const TextTimes& baseline);

}  // namespace loopspec::experiments

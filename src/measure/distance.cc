#include "measure/distance.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "sampling/filters.h"

namespace loopspec::measure {
namespace {

constexpr size_t kBufferFloats = size_t{1} << 24;

// The distributions of a few positions at every depth: the last depth comes last.
class Comparison {
 public:
  Comparison(const Backend& backend, const SamplingParams& sampling, size_t positions)
      : sampling_(sampling),
        depths_(backend.options().readout_depths.size()),
        vocab_(static_cast<size_t>(backend.spec().vocab)),
        values_(positions * depths_ * vocab_),
        best_(positions * depths_) {}

  void Take(size_t place, size_t depth, std::span<const float> logits) {
    if (!AllFinite(logits)) Fail("logits of a text are no numbers: the checkpoint is damaged");
    const size_t index = place * depths_ + depth;
    best_[index] = ArgMax(logits);
    if (sampling_.greedy()) return;
    const std::span<float> values = At(index);
    std::copy(logits.begin(), logits.end(), values.begin());
    FilteredSoftmax(sampling_, values, scratch_);
  }

  void Compare(size_t place, DistanceSums& sums) {
    const size_t last = place * depths_ + depths_ - 1;
    for (size_t depth = 0; depth + 1 < depths_; ++depth) {
      const size_t index = place * depths_ + depth;
      const bool same = best_[index] == best_[last];
      sums.agreed[depth] += same ? 1 : 0;
      sums.distance[depth] += sampling_.greedy() ? (same ? 0 : 1) : Variation(index, last);
    }
    ++sums.positions;
  }

 private:
  std::span<float> At(size_t index) { return {values_.data() + index * vocab_, vocab_}; }
  double Variation(size_t a, size_t b) {
    double sum = 0;
    const std::span<float> p = At(a), q = At(b);
    for (size_t i = 0; i < vocab_; ++i)
      sum += std::abs(static_cast<double>(p[i]) - static_cast<double>(q[i]));
    return 0.5 * sum;
  }

  const SamplingParams& sampling_;
  size_t depths_, vocab_;
  std::vector<float> values_;  // [position, depth, token]
  std::vector<int> best_;      // [position, depth]
  FilterScratch scratch_;
};

}  // namespace

void DistanceSums::Add(const DistanceSums& other) {
  if (depths.empty()) {
    *this = other;
    return;
  }
  if (depths != other.depths) Fail("distances at different depths cannot be added up");
  for (size_t i = 0; i < depths.size(); ++i) {
    agreed[i] += other.agreed[i];
    distance[i] += other.distance[i];
  }
  positions += other.positions;
}

DistanceSums MeasureDistance(Backend& backend, std::span<const int32_t> tokens, size_t first,
                             const SamplingParams& sampling,
                             const std::function<bool()>& interrupted) {
  DistanceSums sums;
  const std::vector<int>& readouts = backend.options().readout_depths;
  sums.depths.assign(readouts.begin(), readouts.end() - 1);
  sums.agreed.resize(sums.depths.size());
  sums.distance.resize(sums.depths.size());
  std::vector<int32_t> pages(static_cast<size_t>(PagesFor(static_cast<int64_t>(tokens.size()))));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  const size_t size = readouts.size() * static_cast<size_t>(backend.spec().vocab);
  const size_t part = std::clamp<size_t>(kBufferFloats / size, 1, 256);
  Comparison comparison(backend, sampling, std::min(part, tokens.size()));
  if (first > 0) backend.Prefill({{pages.data()}, 0, tokens.first(first)});
  for (size_t at = first; at < tokens.size() && !interrupted(); at += part) {
    const size_t count = std::min(part, tokens.size() - at);
    backend.Score({{pages.data()}, static_cast<int32_t>(at), tokens.subspan(at, count)},
                  [&](int32_t position, int32_t readout, std::span<const float> logits) {
                    comparison.Take(static_cast<size_t>(position) - at,
                                    static_cast<size_t>(readout), logits);
                  });
    for (size_t place = 0; place < count; ++place) comparison.Compare(place, sums);
  }
  return sums;
}

}  // namespace loopspec::measure

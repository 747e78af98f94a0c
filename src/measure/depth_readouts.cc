#include "measure/depth_readouts.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "kv/ledger.h"
#include "sampling/filters.h"

namespace loopspec {
namespace {

constexpr size_t kBufferFloats = size_t{1} << 24;  // logits of all depths that are kept at once
constexpr size_t kMostPositions = 256;

// Each readout's choice has all the probability.
void SetGreedy(PositionReadouts& out) {
  std::vector<int32_t> tokens = out.choices;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  out.support = tokens.size();
  out.probabilities.clear();
  for (const int32_t choice : out.choices) {
    for (const int32_t token : tokens) out.probabilities.push_back(token == choice ? 1.0 : 0.0);
  }
}

// A few positions of a text: their choices, and where it matters their logits.
class Part {
 public:
  Part(const Backend& backend, const SamplingParams& sampling, size_t positions)
      : sampling_(sampling),
        depths_(backend.options().readout_depths),
        vocab_(static_cast<size_t>(backend.spec().vocab)),
        choices_(positions * depths_.size()),
        logits_(sampling.greedy() ? 0 : positions * depths_.size() * vocab_),
        kept_(vocab_) {}

  void Take(size_t place, size_t readout, int32_t position, std::span<const float> logits) {
    // Told by Check: nothing may be thrown while the backend reads.
    if (bad_position_ < 0 && !AllFinite(logits)) {
      bad_position_ = position;
      bad_depth_ = depths_[readout];
    }
    const size_t index = place * depths_.size() + readout;
    choices_[index] = ArgMax(logits);
    if (!sampling_.greedy()) std::copy(logits.begin(), logits.end(), At(index).begin());
  }

  void Check() const {
    if (bad_position_ >= 0) {
      Fail("the logits at position {}, depth {} hold NaN or infinity: are the weights damaged?",
           bad_position_, bad_depth_);
    }
  }

  // Once for each place: the logits are turned into probabilities where they lie.
  void Readouts(size_t place, PositionReadouts& out) {
    const size_t first = place * depths_.size();
    out.choices.assign(choices_.begin() + static_cast<std::ptrdiff_t>(first),
                       choices_.begin() + static_cast<std::ptrdiff_t>(first + depths_.size()));
    if (sampling_.greedy()) return SetGreedy(out);
    std::fill(kept_.begin(), kept_.end(), char{0});
    for (size_t r = 0; r < depths_.size(); ++r) {
      const std::span<float> p = At(first + r);
      FilteredSoftmax(sampling_, p, scratch_);
      for (size_t v = 0; v < vocab_; ++v) kept_[v] |= p[v] > 0.0f ? 1 : 0;
    }
    tokens_.clear();
    for (size_t v = 0; v < vocab_; ++v) {
      if (kept_[v]) tokens_.push_back(v);
    }
    out.support = tokens_.size();
    out.probabilities.clear();
    for (size_t r = 0; r < depths_.size(); ++r) {
      const std::span<const float> p = At(first + r);
      double sum = 0;
      for (const size_t v : tokens_) sum += static_cast<double>(p[v]);
      for (const size_t v : tokens_) out.probabilities.push_back(static_cast<double>(p[v]) / sum);
    }
  }

 private:
  std::span<float> At(size_t index) { return {logits_.data() + index * vocab_, vocab_}; }

  const SamplingParams& sampling_;
  const std::vector<int>& depths_;
  size_t vocab_;
  std::vector<int32_t> choices_;  // [position, readout]
  std::vector<float> logits_;     // [position, readout, token]
  std::vector<char> kept_;
  std::vector<size_t> tokens_;
  FilterScratch scratch_;
  int32_t bad_position_ = -1;
  int bad_depth_ = 0;
};

}  // namespace

double TotalVariation(std::span<const double> p, std::span<const double> q) {
  LOOPSPEC_CHECK(p.size() == q.size());
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::fabs(p[i] - q[i]);
  return sum / 2;
}

void ReadOutText(Backend& backend, std::span<const int32_t> tokens, size_t first,
                 const SamplingParams& sampling, const TakeReadouts& take) {
  KvLedger ledger(backend.pages(), 1);
  const SequencePages pages(ledger, static_cast<int64_t>(tokens.size()));
  const SequencePlan sequence{pages.pages().data()};
  const size_t readouts = backend.options().readout_depths.size();
  // Of greedy readouts only the choice is kept.
  const size_t size = sampling.greedy() ? 1 : readouts * static_cast<size_t>(backend.spec().vocab);
  const size_t most = std::clamp<size_t>(kBufferFloats / size, 1, kMostPositions);
  Part part(backend, sampling, std::min(most, tokens.size()));
  PositionReadouts out;
  if (first > 0) backend.Prefill({sequence, 0, tokens.first(first)});
  for (size_t at = first; at < tokens.size(); at += most) {
    const size_t count = std::min(most, tokens.size() - at);
    backend.Score({sequence, static_cast<int32_t>(at), tokens.subspan(at, count)},
                  [&](int32_t position, int32_t readout, std::span<const float> logits) {
                    part.Take(static_cast<size_t>(position) - at, static_cast<size_t>(readout),
                              position, logits);
                  });
    part.Check();
    for (size_t place = 0; place < count; ++place) {
      part.Readouts(place, out);
      if (!take(at + place, out)) return;
    }
  }
}

}  // namespace loopspec

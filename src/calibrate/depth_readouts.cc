#include "calibrate/depth_readouts.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "kv/ledger.h"
#include "sampling/filters.h"
#include "sampling/team.h"

namespace loopspec {
namespace {

constexpr size_t kBufferFloats = size_t{1} << 26;  // logits of all depths that are kept at once
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

// What a member of the team needs for one position.
struct Desk {
  PositionReadouts out;
  int bad_readout = -1;  // one whose logits are no numbers
  std::vector<char> kept;
  std::vector<uint32_t> tokens;
  FilterScratch filter;
};

// A few positions of a text: their choices, or where it matters their logits.
class Part {
 public:
  Part(const Backend& backend, const SamplingParams& sampling, size_t positions)
      : sampling_(sampling),
        readouts_(backend.options().readout_depths.size()),
        vocab_(static_cast<size_t>(backend.spec().vocab)),
        choices_(sampling.greedy() ? positions * readouts_ : 0),
        logits_(sampling.greedy() ? 0 : positions * readouts_ * vocab_) {}

  // The backend waits meanwhile: what can be done later is, by the whole team.
  void Take(size_t place, size_t readout, std::span<const float> logits) {
    const size_t index = place * readouts_ + readout;
    if (sampling_.greedy())
      choices_[index] = AllFinite(logits) ? ArgMax(logits) : kNoNumbers;
    else
      std::copy(logits.begin(), logits.end(), At(index).begin());
  }

  // Once for each place: the logits are turned into probabilities where they lie. Other members
  // may be at other places.
  void Readouts(size_t place, Desk& desk) {
    const size_t first = place * readouts_;
    PositionReadouts& out = desk.out;
    desk.bad_readout = -1;
    out.choices.resize(readouts_);
    for (size_t r = 0; r < readouts_; ++r) {
      if (sampling_.greedy())
        out.choices[r] = choices_[first + r];
      else
        out.choices[r] = AllFinite(At(first + r)) ? ArgMax(At(first + r)) : kNoNumbers;
      if (out.choices[r] == kNoNumbers) {
        desk.bad_readout = static_cast<int>(r);
        return;
      }
    }
    if (sampling_.greedy())
      SetGreedy(out);
    else
      SetSampled(first, desk);
    out.distances.resize(readouts_);
    const int last = static_cast<int>(readouts_);
    for (int r = 1; r <= last; ++r)
      out.distances[static_cast<size_t>(r) - 1] = TotalVariation(out.At(r), out.At(last));
  }

 private:
  static constexpr int32_t kNoNumbers = -1;

  std::span<float> At(size_t index) { return {logits_.data() + index * vocab_, vocab_}; }

  void SetSampled(size_t first, Desk& desk) {
    desk.kept.assign(vocab_, char{0});
    for (size_t r = 0; r < readouts_; ++r) {
      const std::span<float> p = At(first + r);
      FilteredSoftmax(sampling_, p, desk.filter);
      for (size_t v = 0; v < vocab_; ++v) desk.kept[v] |= static_cast<char>(p[v] > 0.0f);
    }
    desk.tokens.clear();
    for (size_t v = 0; v < vocab_; ++v) {
      if (desk.kept[v] != 0) desk.tokens.push_back(static_cast<uint32_t>(v));
    }
    PositionReadouts& out = desk.out;
    out.support = desk.tokens.size();
    out.probabilities.resize(readouts_ * out.support);
    double* to = out.probabilities.data();
    for (size_t r = 0; r < readouts_; ++r, to += out.support) {
      const std::span<const float> p = At(first + r);
      double sum = 0;
      for (const uint32_t v : desk.tokens) sum += static_cast<double>(p[v]);
      for (size_t i = 0; i < out.support; ++i) to[i] = static_cast<double>(p[desk.tokens[i]]) / sum;
    }
  }

  const SamplingParams& sampling_;
  size_t readouts_, vocab_;
  std::vector<int32_t> choices_;  // [position, readout]
  std::vector<float> logits_;     // [position, readout, token]
};

template <typename Number>
double HalfOfDifferences(std::span<const Number> p, std::span<const Number> q) {
  LOOPSPEC_CHECK(p.size() == q.size());
  const SerialTeam serial;
  return serial.Sum(static_cast<int>(p.size()), [&](int i) {
    const auto at = static_cast<size_t>(i);
    return std::fabs(static_cast<double>(p[at]) - static_cast<double>(q[at]));
  }) / 2;
}

}  // namespace

double TotalVariation(std::span<const double> p, std::span<const double> q) {
  return HalfOfDifferences(p, q);
}
double TotalVariation(std::span<const float> p, std::span<const float> q) {
  return HalfOfDifferences(p, q);
}

void ReadOutText(Backend& backend, ThreadPool& team, std::span<const int32_t> tokens, size_t first,
                 const SamplingParams& sampling, const TakeReadouts& take) {
  KvLedger ledger(backend.pages(), 1, backend.window_pages());
  const SequencePages pages(ledger, static_cast<int64_t>(tokens.size()));
  const SequencePlan sequence = PlanOf(pages);
  const std::vector<int>& depths = backend.options().readout_depths;
  // Of greedy readouts only the choice is kept.
  const size_t size =
      sampling.greedy() ? 1 : depths.size() * static_cast<size_t>(backend.spec().vocab);
  const size_t most = std::clamp<size_t>(kBufferFloats / size, 1, kMostPositions);
  Part part(backend, sampling, std::min(most, tokens.size() - first));
  std::vector<Desk> desks(static_cast<size_t>(team.size()));
  if (first > 0) backend.Prefill({sequence, 0, tokens.first(first)});
  for (size_t at = first; at < tokens.size(); at += most) {
    const size_t count = std::min(most, tokens.size() - at);
    backend.Score({sequence, static_cast<int32_t>(at), tokens.subspan(at, count)},
                  [&](int32_t position, int32_t readout, std::span<const float> logits) {
                    part.Take(static_cast<size_t>(position) - at, static_cast<size_t>(readout),
                              logits);
                  });
    for (size_t place = 0; place < count; place += desks.size()) {
      const size_t now = std::min(desks.size(), count - place);
      team.Run([&](Worker& worker) {
        for (auto i = static_cast<size_t>(worker.index()); i < now;
             i += static_cast<size_t>(worker.count()))
          part.Readouts(place + i, desks[i]);
      });
      for (size_t i = 0; i < now; ++i) {
        const size_t position = at + place + i;
        if (desks[i].bad_readout >= 0) {
          Fail("the logits at position {}, depth {} hold NaN or infinity: are the weights damaged?",
               position, depths[static_cast<size_t>(desks[i].bad_readout)]);
        }
        if (!take(position, desks[i].out)) return;
      }
    }
  }
}

}  // namespace loopspec

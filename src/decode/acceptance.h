// How likely each draft of a branch is to be accepted, going by what verification has said so far.
// These rates steer the choice of rows; no token depends on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loopspec {

// What is assumed until verification has spoken: the paper's rates, or those of a calibration.
struct AcceptancePrior {
  std::vector<double> rates = {0.90, 0.075};  // of each proposal; later ones: a seventh each
  double gate = 0.15;                         // how often the gate of a later proposal opens in all
};

class AcceptanceRates {
 public:
  explicit AcceptanceRates(int proposals, const AcceptancePrior& prior = {});

  // Probability that the successor of a branch is the draft of proposal `index`. The branch has
  // passed its first `passed` proposal depths; bit j of `drafted` says whether depth j left a
  // draft.
  double Of(int passed, uint32_t drafted, int index) const;
  // Share of tokens that came from proposal `index`, lately; index = proposals: from none.
  double Share(int index) const;

  // A verdict: which drafts there were, and which was accepted (-1: none).
  void Observe(uint32_t drafted, int accepted);

 private:
  size_t Stage(int passed, uint32_t drafted) const;

  int proposals_;
  size_t outcomes_;             // proposals + 1: the last is the fallback
  std::vector<double> counts_;  // [stage][outcome], fading
};

// How often a guess by an n-gram match of a given length turned out to be the successor, or one by
// what a grammar forces.
class GuessRates {
 public:
  static constexpr int kLongestMatch = 6;
  static constexpr int kForced = kLongestMatch + 1;  // in place of a match's length

  double Of(int match) const { return hits_[match] / trials_[match]; }
  void Observe(int match, bool right);

 private:
  // By match length from 1, then kForced; the first figures are worth a few trials.
  double hits_[kForced + 1] = {0, 0.6, 1.2, 1.8, 2.4, 2.7, 2.8, 2.8};
  double trials_[kForced + 1] = {1, 4, 4, 4, 4, 4, 4, 4};
};

}  // namespace loopspec

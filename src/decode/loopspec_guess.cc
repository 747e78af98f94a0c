// Early children: begun on a guess, before the parent's first draft. A guess that the draft repeats
// is adopted as the draft's child; another is dropped. No draw of the cascade moves.
#include "decode/loopspec.h"

namespace loopspec {
namespace {

// Guesses that are less likely to be needed are not begun.
constexpr double kLeastGuessReach = 0.02;
// Tokens that are guessed in a row.
constexpr int kLongestGuess = 8;

}  // namespace

// Guesses follow each other, so that several tokens can begin together.
void LoopSpec::StartGuesses() {
  if (!request_->guesses) return;
  const int first_depth = request_->depths.empty() ? 1 : request_->depths[0];
  for (int i = 0; i < tree_.size(); ++i) {
    const int32_t b = tree_.active()[static_cast<size_t>(i)];
    const Branch& branch = tree_[b];
    if (branch.depth >= first_depth || branch.guess != kNoBranch) continue;
    int run = 0;  // guesses that b itself rests on
    for (int32_t a = b; a != kNoBranch && IsGuess(a); a = tree_[a].parent) ++run;
    if (run >= kLongestGuess) continue;
    const Guess guess = GuessAfter(b);
    if (guess.token < 0 || !grammar_.Allows(b, guess.token)) continue;
    const double reach = branch.reach * choice_.GuessRate(guess.match);
    const int32_t position = branch.position + 1;
    if (reach < kLeastGuessReach || !MayHaveChild(guess.token, position)) continue;
    const int32_t child = Spawn(b, guess.token, position, 0);
    if (child == kNoBranch) return;
    tree_[child].early = true;
    tree_[child].match = guess.match;
    tree_[child].reach = reach;
    tree_[b].guess = child;
    observer_->Guessed();
  }
}

bool LoopSpec::IsGuess(int32_t b) const {
  const int32_t parent = tree_[b].parent;
  return parent != kNoBranch && tree_[parent].guess == b;
}

// What the grammar forces, or what followed the last tokens of b's prefix when they stood in the
// text before: whichever has come true more often. The grammar does not know how the text writes
// white space or cuts words into tokens; what the text repeats does.
Guess LoopSpec::GuessAfter(int32_t b) {
  if (request_->laboratory.guess_source != nullptr)
    return request_->laboratory.guess_source->At(DrawAfter(tree_[b]));
  int32_t chain[GuessRates::kLongestMatch];
  size_t length = 0;
  for (int32_t a = b; a != tree_.root() && length < std::size(chain); a = tree_[a].parent)
    chain[length++] = tree_[a].token;
  const Guess repeated = ngrams_.Find({chain, length});
  const Guess forced = {grammar_.Forced(b), GuessRates::kForced};
  if (forced.token < 0) return repeated;
  const bool both = repeated.token >= 0 && grammar_.Allows(b, repeated.token);
  return both && choice_.GuessRate(repeated.match) > choice_.GuessRate(forced.match) ? repeated
                                                                                     : forced;
}

// A draft that was another token ends the guess; so late, because decisions of the same step were
// for branches below it too.
void LoopSpec::DropWrongGuesses() {
  if (!request_->guesses) return;
  for (int i = 0; i < tree_.size(); ++i) {
    const Branch& branch = tree_[tree_.active()[static_cast<size_t>(i)]];
    if (branch.guess == kNoBranch || branch.proposal_count == 0) continue;
    choice_.ObserveGuess(tree_[branch.guess].match, false);
    Evict(branch.guess);
  }
}

}  // namespace loopspec

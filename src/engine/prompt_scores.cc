#include "engine/prompt_scores.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "sampling/filters.h"

namespace loopspec {

void ScorePrompt(Backend& backend, const PrefillPlan& chunk, std::span<const int32_t> prompt,
                 std::optional<int> top, const OnLogits& on_logits, std::vector<Token>& scores) {
  if (top) scores.resize(prompt.size() - 1);
  const std::vector<int>& depths = backend.options().readout_depths;
  const auto last = static_cast<int32_t>(
      chunk.recurrences > 0
          ? std::find(depths.begin(), depths.end(), chunk.recurrences) - depths.begin()
          : std::ssize(depths) - 1);
  std::vector<int32_t> ranking(static_cast<size_t>(backend.spec().vocab));
  const auto count = std::min(static_cast<size_t>(top.value_or(0)), ranking.size());
  int32_t bad = -1;  // told below: nothing may be thrown from within the backend
  backend.Score(chunk, [&](int32_t position, int32_t readout, std::span<const float> logits) {
    // By a plan of keys a depth before the last is what a draft sees, not a text of fewer loops.
    if (on_logits && (backend.options().key_plan ? readout == last : readout <= last))
      on_logits(position, depths[static_cast<size_t>(readout)], logits);
    if (readout != last || !top) return;
    if (!AllFinite(logits)) bad = position;
    const double total = LogSumExp(logits);
    // The same float wherever a token's log-probability is asked for: who is likeliest can be told
    // by comparing.
    const auto logprob = [&](int32_t v) {
      return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(v)]) - total);
    };
    Token& score = scores[static_cast<size_t>(position)];
    score.id = prompt[static_cast<size_t>(position) + 1];
    score.logprob = logprob(score.id);
    std::iota(ranking.begin(), ranking.end(), 0);
    std::partial_sort(ranking.begin(), ranking.begin() + static_cast<std::ptrdiff_t>(count),
                      ranking.end(), [&](int32_t a, int32_t b) {
                        const float x = logits[static_cast<size_t>(a)];
                        const float y = logits[static_cast<size_t>(b)];
                        return x != y ? x > y : a < b;
                      });
    for (size_t i = 0; i < count; ++i) score.top.push_back({ranking[i], logprob(ranking[i])});
  });
  if (bad >= 0)
    Fail("the logits at position {} hold NaN or infinity: are the weights damaged?", bad);
}

}  // namespace loopspec

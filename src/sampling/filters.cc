#include "sampling/filters.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "sampling/exp.h"
#include "sampling/team.h"

namespace loopspec {

void CheckSamplingParams(const SamplingParams& params, int vocab) {
  // The value in its own type: 1.1 as a float would otherwise show as 1.100000023841858.
  const auto check = [](bool good, const char* name, auto value, const char* expected) {
    if (!good) Fail("{} is {}, expected {}", name, value, expected);
  };
  check(params.temperature >= 0 && params.temperature <= 1000, "temperature", params.temperature,
        "0 to 1000");
  check(params.top_k >= 0, "top-k", params.top_k, "0 (off) or more");
  check(params.top_p > 0 && params.top_p <= 1, "top-p", params.top_p, "above 0, at most 1");
  check(params.min_p >= 0 && params.min_p <= 1, "min-p", params.min_p, "0 to 1");
  check(params.repetition_penalty > 0 && params.repetition_penalty <= 1000, "repetition penalty",
        params.repetition_penalty, "above 0, at most 1000");
  check(std::fabs(params.presence_penalty) <= 1000, "presence penalty", params.presence_penalty,
        "-1000 to 1000");
  check(std::fabs(params.frequency_penalty) <= 1000, "frequency penalty", params.frequency_penalty,
        "-1000 to 1000");
  for (const TokenBias& entry : params.bias) {
    if (entry.token < 0 || entry.token >= vocab) {
      Fail("logit bias names token {}, the vocabulary has {}", entry.token, vocab);
    }
    if (!(std::fabs(entry.bias) <= 1e6f))
      Fail("logit bias of token {} is {}, expected -1e6 to 1e6", entry.token, entry.bias);
  }
}

void AdjustLogits(const SamplingParams& params, std::span<const TokenCount> counts,
                  std::span<float> logits) {
  for (const TokenCount& seen : counts) {
    float& logit = logits[static_cast<size_t>(seen.token)];
    logit = Penalised(logit, seen.generated, params.repetition_penalty, params.presence_penalty,
                      params.frequency_penalty);
  }
  for (const TokenBias& entry : params.bias) logits[static_cast<size_t>(entry.token)] += entry.bias;
}

int ArgMax(std::span<const float> values) {
  // Largest value first, in lanes that a compiler can keep in vectors; then the first place that
  // has it.
  constexpr int kLanes = 16;
  float best[kLanes];
  std::fill(best, best + kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) best[lane] = std::max(best[lane], values[i + lane]);
  }
  float top = *std::max_element(best, best + kLanes);
  for (; i < values.size(); ++i) top = std::max(top, values[i]);
  for (size_t j = 0; j < values.size(); ++j) {
    if (values[j] == top) return static_cast<int>(j);
  }
  return 0;
}

bool AllFinite(std::span<const float> values) {
  // Zero times a number is zero, and times NaN or infinity NaN, which no sum loses again. In lanes,
  // as above.
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += 0.0f * values[i + lane];
  }
  for (; i < values.size(); ++i) sums[0] += 0.0f * values[i];
  return std::accumulate(sums, sums + kLanes, 0.0f) == 0.0f;
}

namespace {

// Cuts `candidates` (ranked) after top-k, top-p and min-p. Weights are unnormalised.
void Cut(const SamplingParams& params, std::span<const float> weights, double total,
         std::vector<int32_t>& ranked) {
  const auto weight = [&](int32_t v) {
    return static_cast<double>(weights[static_cast<size_t>(v)]);
  };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < ranked.size()) {
    ranked.resize(static_cast<size_t>(params.top_k));
    total = 0.0;
    for (const int32_t v : ranked) total += weight(v);
  }
  if (params.top_p < 1.0f) {
    const double wanted = static_cast<double>(params.top_p) * total;
    double sum = 0.0;
    size_t kept = 0;
    while (kept < ranked.size() && (kept == 0 || sum < wanted)) sum += weight(ranked[kept++]);
    ranked.resize(kept);
  }
  if (params.min_p > 0.0f) {
    const double least = static_cast<double>(params.min_p) * weight(ranked[0]);
    size_t kept = 1;
    while (kept < ranked.size() && weight(ranked[kept]) >= least) ++kept;
    ranked.resize(kept);
  }
}

// Ranks in `ranked` the tokens that top-k, top-p and min-p may keep; with top-k one more, so that
// Cut sees that there was more.
void RankCandidates(const SamplingParams& params, std::span<const float> logits, float top,
                    std::vector<int32_t>& ranked) {
  const int vocab = static_cast<int>(logits.size());
  const auto collect = [&](float floor) {
    ranked.clear();
    for (int v = 0; v < vocab; ++v) {
      if (logits[static_cast<size_t>(v)] >= floor) ranked.push_back(v);
    }
  };
  // Tokens of weight below (1 - top_p) / vocab cannot be in the nucleus: all of them together weigh
  // less than 1 - top_p. Likewise for min_p. Only top-k alone has to look at every token.
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  double least = params.min_p;
  if (params.top_p < 1.0f) least = std::max(least, (1.0 - params.top_p) / vocab * 0.5);
  collect(least > 0.0 ? top + params.temperature * static_cast<float>(std::log(least) - 1e-3)
                      : kNone);
  const auto top_k = static_cast<size_t>(params.top_k > 0 ? std::min(params.top_k, vocab) : vocab);
  // The nucleus is a share of what top-k leaves, so all of that must be there to be summed.
  if (params.top_p < 1.0f && top_k < logits.size() && ranked.size() <= top_k) collect(kNone);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (top_k < ranked.size()) {
    std::nth_element(ranked.begin(), ranked.begin() + static_cast<int64_t>(top_k), ranked.end(),
                     before);
    ranked.resize(top_k + 1);
  }
  std::sort(ranked.begin(), ranked.end(), before);
}

}  // namespace

void FilteredSoftmax(const SamplingParams& params, std::span<float> logits,
                     FilterScratch& scratch) {
  const int vocab = static_cast<int>(logits.size());
  const auto best = static_cast<size_t>(ArgMax(logits));
  const float top = logits[best];
  const float inverse = 1.0f / params.temperature;
  const SerialTeam team;
  const bool filtered = params.top_k > 0 || params.top_p < 1.0f || params.min_p > 0.0f;
  if (filtered) RankCandidates(params, logits, top, scratch.candidates);
  for (float& value : logits) value = ExpNonPositive((value - top) * inverse);
  const double total = team.Sum(vocab, [&](int v) { return logits[static_cast<size_t>(v)]; });
  // A penalty or a very low temperature took a value out of range (the raw logits were finite):
  // the likeliest token has all the mass.
  if (!std::isfinite(total)) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[best] = 1.0f;
    return;
  }
  if (!filtered) {
    const float scale = static_cast<float>(1.0 / total);
    for (float& value : logits) value *= scale;
    return;
  }
  Cut(params, logits, total, scratch.candidates);
  double kept_total = 0.0;
  for (const int32_t v : scratch.candidates)
    kept_total += static_cast<double>(logits[static_cast<size_t>(v)]);
  // Keep the weights of the kept, clear the rest.
  std::sort(scratch.candidates.begin(), scratch.candidates.end());
  const float scale = static_cast<float>(1.0 / kept_total);
  int next = 0;
  for (const int32_t v : scratch.candidates) {
    std::fill(logits.begin() + next, logits.begin() + v, 0.0f);
    logits[static_cast<size_t>(v)] *= scale;
    next = v + 1;
  }
  std::fill(logits.begin() + next, logits.end(), 0.0f);
}

float Gumbel(const DrawKey& key, uint32_t token) {
  // One block serves four tokens.
  const PhiloxBlock block = Philox4x32(
      {{key.position, key.choice, static_cast<uint32_t>(DrawPurpose::kGumbel), token / 4}},
      key.seed);
  const double u = (static_cast<double>(block.v[token % 4]) + 0.5) * 0x1.0p-32;
  return static_cast<float>(-std::log(-std::log(u)));
}

int CoupledChoice(const DrawKey& key, std::span<const float> probabilities) {
  // No noise exceeds kLargest, so a token whose log p is that far behind the best score so far
  // cannot win; starting from the likeliest token, few remain to be looked at.
  constexpr float kLargest = 22.9f;
  const int likeliest = ArgMax(probabilities);
  int best = likeliest;
  float best_score = std::log(probabilities[static_cast<size_t>(likeliest)]) +
                     Gumbel(key, static_cast<uint32_t>(likeliest));
  float least = std::exp(best_score - kLargest);
  for (size_t v = 0; v < probabilities.size(); ++v) {
    if (!(probabilities[v] > 0.0f) || probabilities[v] < least) continue;
    const float score = std::log(probabilities[v]) + Gumbel(key, static_cast<uint32_t>(v));
    if (score > best_score || (score == best_score && static_cast<int>(v) < best)) {
      best_score = score;
      best = static_cast<int>(v);
      least = std::exp(best_score - kLargest);
    }
  }
  return best;
}

double LogSumExp(std::span<const float> logits) {
  const float top = logits[static_cast<size_t>(ArgMax(logits))];
  double sum = 0.0;
  for (const float value : logits)
    sum += std::exp(static_cast<double>(value) - static_cast<double>(top));
  return static_cast<double>(top) + std::log(sum);
}

}  // namespace loopspec

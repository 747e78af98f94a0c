#include "sampling/filters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "sampling/exp.h"
#include "sampling/team.h"

namespace loopspec {

void MaskLogits(std::span<const float> logits, std::span<const uint32_t> mask,
                std::span<float> out) {
  constexpr size_t kBits = 32;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += kBits) {
    const uint32_t word = mask[begin / kBits];
    const size_t end = std::min(begin + kBits, logits.size());
    if (word == 0) {
      std::fill(out.begin() + begin, out.begin() + end, kNever);
      continue;
    }
    for (size_t v = begin; v < end; ++v)
      out[v] = (word >> (v - begin) & 1u) != 0 ? logits[v] : kNever;
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

// Orders as tokens rank: the larger logit first, equal ones by the lower id. No NaN.
uint64_t RankKey(float logit, uint32_t token) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 ranks as 0
  const uint32_t falling = (bits >> 31) != 0 ? bits : ~bits & 0x7fffffffu;
  return uint64_t{falling} << 32 | token;
}

// Sorts keys whose tokens are in order already. Flat distributions over large vocabularies have a
// hundred thousand candidates: counting digits takes a tenth of the time that comparing does.
void SortByRank(std::vector<uint64_t>& keys, std::vector<uint64_t>& room) {
  constexpr size_t kFew = 2048;
  if (keys.size() < kFew) return std::sort(keys.begin(), keys.end());
  constexpr int kDigit = 11;
  constexpr uint64_t kMask = (1u << kDigit) - 1;
  room.resize(keys.size());
  for (int shift = 32; shift < 64; shift += kDigit) {
    std::array<uint32_t, kMask + 1> place{};
    for (const uint64_t key : keys) ++place[key >> shift & kMask];
    uint32_t before = 0;
    for (uint32_t& first : place) before += std::exchange(first, before);
    for (const uint64_t key : keys) room[place[key >> shift & kMask]++] = key;
    keys.swap(room);
  }
}

// Ranks in `scratch.candidates` the tokens that top-k, top-p and min-p may keep; with top-k one
// more, so that Cut sees that there was more.
void RankCandidates(const SamplingParams& params, std::span<const float> logits, float top,
                    FilterScratch& scratch) {
  const int vocab = static_cast<int>(logits.size());
  std::vector<uint64_t>& keys = scratch.keys;
  // All at once, so that no later step allocates.
  scratch.sorted.reserve(logits.size());
  scratch.candidates.reserve(logits.size());
  scratch.weights.reserve(logits.size());
  const auto collect = [&](float floor) {
    keys.resize(logits.size());
    size_t count = 0;
    for (size_t v = 0; v < logits.size(); ++v) {
      keys[count] = RankKey(logits[v], static_cast<uint32_t>(v));
      count += logits[v] >= floor ? 1 : 0;
    }
    keys.resize(count);
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
  if (params.top_p < 1.0f && top_k < logits.size() && keys.size() <= top_k) collect(kNone);
  if (top_k < keys.size()) {
    std::nth_element(keys.begin(), keys.begin() + static_cast<int64_t>(top_k), keys.end());
    keys.resize(top_k + 1);
    std::sort(keys.begin(), keys.end());
  } else {
    SortByRank(keys, scratch.sorted);
  }
  scratch.candidates.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) scratch.candidates[i] = static_cast<int32_t>(keys[i]);
}

}  // namespace

void FilteredSoftmax(const SamplingParams& params, std::span<float> logits,
                     FilterScratch& scratch) {
  const int vocab = static_cast<int>(logits.size());
  const auto best = static_cast<size_t>(ArgMax(logits));
  const float top = logits[best];
  const float inverse = 1.0f / params.temperature;
  const SerialTeam team;
  if (params.top_n_sigma > 0.0f) {
    const float floor = SigmaFloor(team, vocab, logits.data(), top, params.top_n_sigma);
    for (float& value : logits) {
      if (value < floor) value = -std::numeric_limits<float>::infinity();
    }
  }
  const bool filtered = params.top_k > 0 || params.top_p < 1.0f || params.min_p > 0.0f;
  if (filtered) RankCandidates(params, logits, top, scratch);
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
  scratch.weights.clear();
  for (const int32_t v : scratch.candidates) {
    scratch.weights.push_back(logits[static_cast<size_t>(v)]);
    kept_total += static_cast<double>(scratch.weights.back());
  }
  const float scale = static_cast<float>(1.0 / kept_total);
  std::fill(logits.begin(), logits.end(), 0.0f);
  for (size_t i = 0; i < scratch.candidates.size(); ++i)
    logits[static_cast<size_t>(scratch.candidates[i])] = scratch.weights[i] * scale;
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

#include "calibrate/key_judge.h"

#include <algorithm>
#include <cmath>

#include "calibrate/depth_readouts.h"
#include "sampling/filters.h"

namespace loopspec {
namespace {

constexpr double kMostError = 1.3;  // of a plan and int8 together, in errors of int8 alone

// The model's own distribution.
SamplingParams Unfiltered() {
  SamplingParams params;
  params.temperature = 1;
  return params;
}

// What was said after each position of a text.
struct Said {
  std::vector<float> p;                  // [position][vocab]: at the last depth
  std::vector<std::vector<int>> choice;  // [readout][position]: the likeliest token
  SamplingParams unfiltered = Unfiltered();
  FilterScratch scratch;

  Said(size_t readouts, size_t positions, size_t vocab)
      : p(positions * vocab), choice(readouts, std::vector<int>(positions)) {}

  LogitsSink Sink() {
    return [this](int32_t position, int32_t readout, std::span<const float> logits) {
      const auto at = static_cast<size_t>(position), r = static_cast<size_t>(readout);
      choice[r][at] = ArgMax(logits);
      if (r + 1 < choice.size()) return;
      const std::span<float> after(p.data() + at * logits.size(), logits.size());
      std::copy(logits.begin(), logits.end(), after.begin());
      FilteredSoftmax(unfiltered, after, scratch);
    };
  }
  std::span<const float> After(size_t position) const {
    const size_t vocab = p.size() / choice.back().size();
    return {p.data() + position * vocab, vocab};
  }
};

// Sums over positions, of which perplexity and gamma are made.
struct Sums {
  double loss = 0, depth = 0;

  void Add(const Said& said, std::span<const int32_t> text, std::span<const int> depths) {
    for (size_t i = 0; i < text.size(); ++i) {
      size_t d = 0;
      while (said.choice[d][i] != said.choice.back()[i]) ++d;
      depth += depths[d];
      if (i + 1 == text.size()) continue;
      const auto next = static_cast<size_t>(text[i + 1]);
      loss -= std::log(std::max(static_cast<double>(said.After(i)[next]), 1e-300));
    }
  }
};

}  // namespace

KeyJudgement JudgePlans(KeyReader& reader, const TokenTexts& texts,
                        const std::vector<KeyPlan>& plans, int span,
                        const std::function<void(int64_t done, int64_t total)>& progress) {
  const std::vector<int>& depths = reader.backend().options().readout_depths;
  const auto vocab = static_cast<size_t>(reader.spec().vocab);
  const KeyPlan int8(std::vector<KeyForm>(static_cast<size_t>(reader.spec().recurrence - 1)));
  KeyJudgement result{.int8 = {.plan = int8}};
  for (const KeyPlan& plan : plans) result.plans.push_back({.plan = plan});
  int64_t next_tokens = 0, read = 0;
  for (const auto& text : texts) {
    result.positions += std::ssize(text);
    next_tokens += std::ssize(text) - 1;
  }
  Sums exact_sums, int8_sums;
  std::vector<Sums> plan_sums(plans.size());
  for (const auto& text : texts) {
    const auto note = [&] {
      read += std::ssize(text);
      if (progress) progress(read, result.positions * (std::ssize(plans) + 2));
    };
    Said exact(depths.size(), text.size(), vocab), plain = exact, said = exact;
    const auto judge = [&](JudgedKeys& judged, Sums& sums, const Said& by) {
      for (size_t i = 0; i < text.size(); ++i) {
        judged.agreed += by.choice.back()[i] == exact.choice.back()[i];
        judged.distance += TotalVariation(by.After(i), exact.After(i));
        judged.added += TotalVariation(by.After(i), plain.After(i));
      }
      sums.Add(by, text, depths);
      note();
    };
    reader.ReadExactly(text, exact.Sink());
    exact_sums.Add(exact, text, depths);
    note();
    reader.ReadByPlan(text, int8, span, span, plain.Sink());
    judge(result.int8, int8_sums, plain);
    for (size_t i = 0; i < plans.size(); ++i) {
      reader.ReadByPlan(text, plans[i], span, span, said.Sink());
      judge(result.plans[i], plan_sums[i], said);
    }
  }
  const auto n = static_cast<double>(std::max<int64_t>(1, result.positions));
  const auto predicted = static_cast<double>(std::max<int64_t>(1, next_tokens));
  const auto finish = [&](JudgedKeys& judged, const Sums& sums) {
    judged.agreed /= n;
    judged.distance /= n;
    judged.added /= n;
    judged.perplexity = std::exp(sums.loss / predicted);
    judged.gamma = depths.back() * n / std::max(1.0, sums.depth);
  };
  finish(result.int8, int8_sums);
  for (size_t i = 0; i < plans.size(); ++i) finish(result.plans[i], plan_sums[i]);
  result.perplexity = std::exp(exact_sums.loss / predicted);
  result.gamma = depths.back() * n / std::max(1.0, exact_sums.depth);
  return result;
}

bool AsGoodAsInt8(const KeyJudgement& judgement, const JudgedKeys& judged) {
  return judged.added <= judgement.int8.distance &&
         judged.distance <= kMostError * judgement.int8.distance;
}

const JudgedKeys* ProposePlan(const KeyJudgement& judgement, const ModelSpec& spec, int readouts) {
  const JudgedKeys* best = nullptr;
  for (const JudgedKeys& judged : judgement.plans) {
    if (!AsGoodAsInt8(judgement, judged)) continue;
    const int64_t bytes = judged.plan.BytesPerPosition(spec, readouts);
    if (best != nullptr) {
      const int64_t least = best->plan.BytesPerPosition(spec, readouts);
      if (bytes > least || (bytes == least && judged.distance >= best->distance)) continue;
    }
    best = &judged;
  }
  return best;
}

}  // namespace loopspec

// LoopSpec on the model of five tokens with real random numbers: greedy and coupled decoding equal
// autoregressive decoding, sampled text does not depend on the row budget, and its distribution is
// the target's.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "base/error.h"
#include "decode/loopspec.h"
#include "grammar/grammar.h"
#include "tests/support/fake_backend.h"
#include "tests/support/sanitized.h"

namespace loopspec {
namespace {

constexpr int kRecurrence = 8;
constexpr int kBudgets[] = {1, 2, 3, 5, 17, 0};
const std::vector<std::vector<int>> kDepths = {{1},    {2},       {3},       {7},
                                               {1, 2}, {2, 4},    {2, 5},    {3, 7},
                                               {6, 7}, {1, 2, 4}, {2, 3, 7}, {1, 2, 3, 4, 5, 6, 7}};

struct Text {
  std::vector<int32_t> tokens;
  std::vector<int32_t> sources;
  Statistics statistics;
  FinishReason reason;
  bool operator==(const Text& other) const {
    return tokens == other.tokens && reason == other.reason;
  }
};

Text Decode(FakeModel& model, ResolvedRequest request, const FakeBackend::Decider& decider) {
  FakeBackend backend(model, request.depths, 256, 512);
  backend.set_decider(decider);
  KvLedger ledger(backend.pages(), 256);
  Text text;
  {
    LoopSpec decoder(request, model.spec(), backend.options(), ledger);
    StepPlan plan;
    Drive(backend, decoder, plan);
    for (const Token& token : decoder.output()) {
      text.tokens.push_back(token.id);
      text.sources.push_back(token.source);
    }
    text.statistics = decoder.statistics();
    text.reason = decoder.finish_reason();
  }
  EXPECT_EQ(ledger.cells().available(), 256);
  EXPECT_EQ(ledger.pages().available(), backend.pages());
  return text;
}

void CheckStatistics(const ResolvedRequest& request, const Text& text) {
  const Statistics& s = text.statistics;
  int64_t accepted = 0;
  for (size_t j = 0; j < s.accepted.size(); ++j) {
    accepted += s.accepted[j];
    EXPECT_EQ(s.accepted[j],
              std::count(text.sources.begin(), text.sources.end(), static_cast<int>(j) + 1));
  }
  EXPECT_EQ(accepted + s.fallback, static_cast<int64_t>(text.tokens.size()));
  EXPECT_EQ(s.fallback, std::count(text.sources.begin(), text.sources.end(), 0));
  int64_t steps = 0, rows = 0;
  for (size_t n = 0; n < s.rows_histogram.size(); ++n) {
    steps += s.rows_histogram[n];
    rows += s.rows_histogram[n] * static_cast<int64_t>(n);
  }
  EXPECT_EQ(steps, s.recurrences);
  EXPECT_EQ(rows, s.row_recurrences);
  EXPECT_LE(s.gate_opened, s.gate_evaluated);
  if (request.max_rows > 0) {
    EXPECT_LE(s.rows_peak, request.max_rows);
  }
  if (request.depths.empty()) {
    EXPECT_EQ(s.recurrences, kRecurrence * static_cast<int64_t>(text.tokens.size()));
  }
}

// Every depth configuration, every budget: the same text as without proposals.
void ExpectLikeAutoregressive(ResolvedRequest request, FakeShape shape, uint64_t seed,
                              int64_t* saved) {
  FakeModel model(seed, shape, kRecurrence);
  request.prompt = {1, 4, 2};
  request.depths = {};
  const Text expected = Decode(model, request, DecideLikeTheCpu());
  CheckStatistics(request, expected);
  for (const auto& depths : kDepths) {
    for (const int rows : kBudgets) {
      request.depths = depths;
      request.max_rows = rows;
      const Text text = Decode(model, request, DecideLikeTheCpu());
      EXPECT_EQ(text, expected) << fmt::format("depths {} rows {}", depths, rows);
      CheckStatistics(request, text);
      EXPECT_LE(text.statistics.recurrences, expected.statistics.recurrences);
      if (saved != nullptr) *saved += expected.statistics.recurrences - text.statistics.recurrences;
    }
  }
}

TEST(FakeDecode, GreedyEqualsAutoregressive) {
  int64_t saved = 0;
  for (const FakeShape shape : {FakeShape::kNear, FakeShape::kRandom, FakeShape::kEqual}) {
    ResolvedRequest request;
    request.max_tokens = 60;
    ExpectLikeAutoregressive(request, shape, 5, &saved);
    request.stop_tokens = {3};
    ExpectLikeAutoregressive(request, shape, 6, &saved);
    request.stop_tokens.clear();
    request.sampling.repetition_penalty = 1.3f;
    request.sampling.presence_penalty = 0.4f;
    request.sampling.frequency_penalty = 0.1f;
    request.sampling.bias = {{0, 0.7f}, {2, -0.5f}};
    ExpectLikeAutoregressive(request, shape, 7, &saved);
  }
  EXPECT_GT(saved, 0);
}

TEST(FakeDecode, CoupledEqualsAutoregressive) {
  for (const float temperature : {0.3f, 1.0f, 3.0f}) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      ResolvedRequest request;
      request.max_tokens = 50;
      request.seed = seed;
      request.sampling.temperature = temperature;
      request.sampling.sampler = Sampler::kCoupled;
      ExpectLikeAutoregressive(request, FakeShape::kNear, seed + 20, nullptr);
      request.sampling.top_p = 0.8f;
      request.sampling.top_k = 4;
      request.sampling.min_p = 0.02f;
      request.sampling.presence_penalty = 0.5f;
      ExpectLikeAutoregressive(request, FakeShape::kRandom, seed + 20, nullptr);
    }
  }
}

// Groups and guesses in every combination with depths and budgets: the same text.
TEST(FakeDecode, GroupsAndGuessesChangeNothing) {
  int64_t adopted = 0, several = 0;
  for (const FakeShape shape : {FakeShape::kNear, FakeShape::kRandom, FakeShape::kEqual}) {
    FakeModel model(31, shape, kRecurrence);
    ResolvedRequest request;
    request.prompt = {1, 4, 2};
    request.max_tokens = 60;
    const Text expected = Decode(model, request, DecideLikeTheCpu());
    for (const auto& depths : kDepths) {
      for (const int group : {1, 2, 3, 5, 16}) {
        for (const int rows : kBudgets) {
          for (const bool guesses : {false, true}) {
            request.depths = depths;
            request.group = group;
            request.max_rows = rows;
            request.guesses = guesses;
            const Text text = Decode(model, request, DecideLikeTheCpu());
            EXPECT_EQ(text, expected) << fmt::format("depths {} group {} rows {} guesses {}",
                                                     depths, group, rows, guesses);
            CheckStatistics(request, text);
            adopted += text.statistics.guesses_adopted;
            several +=
                group > 1 && text.statistics.planes < text.statistics.row_recurrences ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(adopted, 0);
  EXPECT_GT(several, 0) << "no two rows ever shared a depth";
}

// Guesses alone, without drafts: prompt-lookup decoding.
TEST(FakeDecode, LookupEqualsAutoregressive) {
  FakeModel model(8, FakeShape::kOneToken, kRecurrence);  // certain of itself: it repeats soon
  ResolvedRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 200;
  const Text expected = Decode(model, request, DecideLikeTheCpu());
  request.guesses = true;
  const Text text = Decode(model, request, DecideLikeTheCpu());
  EXPECT_EQ(text, expected);
  EXPECT_EQ(text.sources, expected.sources);
}

// Decoders that take turns: the step that one plans must not overwrite a cell that another has yet
// to commit.
TEST(FakeDecode, TurnsKeepCellsUntilTheyAreCommitted) {
  FakeModel model(12, FakeShape::kNear, 4);
  ResolvedRequest request;
  request.prompt = {1, 3};
  request.max_tokens = 40;
  request.depths = {1, 2};
  const Text expected = Decode(model, request, DecideLikeTheCpu());
  for (const int cells : {4, 8, 64}) {
    FakeBackend backend(model, request.depths, cells, 512);
    backend.set_decider(DecideLikeTheCpu());
    KvLedger ledger(backend.pages(), cells);
    LoopSpec a(request, model.spec(), backend.options(), ledger);
    LoopSpec b(request, model.spec(), backend.options(), ledger);
    backend.Prefill(a.Prefill());
    backend.Prefill(b.Prefill());
    StepPlan plan;
    for (int turn = 0; !a.finished() || !b.finished(); ++turn) {
      LoopSpec& decoder = (turn % 2 == 0 && !a.finished()) || b.finished() ? a : b;
      plan.Clear();
      plan.recurrences = decoder.RecurrencesToReadout();
      decoder.Plan(plan.recurrences, plan);
      decoder.Absorb(backend.Wait(backend.Submit(plan)).decisions);
    }
    for (const LoopSpec* decoder : {&a, &b}) {
      std::vector<int32_t> tokens;
      for (const Token& token : decoder->output()) tokens.push_back(token.id);
      EXPECT_EQ(tokens, expected.tokens) << cells << " cells";
    }
  }
}

// By a plan of keys no branch begins more than a span ahead of the root: the same text, and drafts
// beyond it stay on record until the root has come nearer.
TEST(FakeDecode, NoBranchBeginsBeyondASpan) {
  constexpr int kSpan = 3;
  FakeModel model(5, FakeShape::kNear, kRecurrence);
  for (const bool coupled : {false, true}) {
    ResolvedRequest request;
    request.prompt = {1, 3};
    request.max_tokens = 120;
    request.depths = {1, 2};
    request.guesses = true;
    if (coupled) request.sampling.sampler = Sampler::kCoupled;
    const Text expected = Decode(model, request, DecideLikeTheCpu());
    int farthest[2] = {0, 0};
    for (const bool bounded : {false, true}) {
      FakeBackend backend(model, request.depths, 256, 512);
      backend.set_decider(DecideLikeTheCpu());
      KvLedger ledger(backend.pages(), 256);
      BackendOptions options = backend.options();
      const KeyPlan plan(std::vector<KeyForm>(kRecurrence - 1, kLastKeys));
      if (bounded) options.key_plan = SpannedKeyPlan{plan, kSpan};
      LoopSpec decoder(request, model.spec(), options, ledger);
      backend.Prefill(decoder.Prefill());
      StepPlan step;
      while (!decoder.finished()) {
        for (const int32_t b : decoder.tree().active()) {
          const auto ahead = static_cast<int>(decoder.tree()[b].position - decoder.decided());
          farthest[bounded ? 1 : 0] = std::max(farthest[bounded ? 1 : 0], ahead);
        }
        step.Clear();
        step.recurrences = decoder.RecurrencesToReadout();
        decoder.Plan(step.recurrences, step);
        decoder.Absorb(backend.Wait(backend.Submit(step)).decisions);
      }
      std::vector<int32_t> tokens;
      for (const Token& token : decoder.output()) tokens.push_back(token.id);
      EXPECT_EQ(tokens, expected.tokens);
    }
    EXPECT_GT(farthest[0], kSpan);
    EXPECT_EQ(farthest[1], kSpan);
  }
}

// Every draft right: one token each d1 recurrences once the pipeline runs.
TEST(FakeDecode, PerfectDraftsRunAtFullSpeed) {
  FakeModel model(1, FakeShape::kEqual, kRecurrence);
  ResolvedRequest request;
  request.prompt = {0};
  request.max_tokens = 101;
  for (const int d : {1, 2, 4}) {
    request.depths = {d};
    const Text text = Decode(model, request, DecideLikeTheCpu());
    EXPECT_EQ(text.statistics.recurrences, kRecurrence + 100 * d);
    EXPECT_EQ(text.statistics.accepted[0], 101);
    EXPECT_EQ(text.statistics.rows_peak, kRecurrence / d);
  }
}

FakeBackend::Decider Philox() {
  return [](const ReadoutPlan& plan, std::span<const int32_t>, double* p,
            const Recorded<double>* recorded) {
    PhiloxDraw<SerialTeam> draw{plan.draw, {}};
    return DecideByCascade(plan, p, recorded, draw);
  };
}

TEST(FakeDecode, CascadeTextDoesNotDependOnTheBudget) {
  for (const LaterProposal later :
       {LaterProposal::kGatedResidual, LaterProposal::kResidual, LaterProposal::kNonResidual}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      for (const FakeShape shape : {FakeShape::kNear, FakeShape::kRandom, FakeShape::kSparse}) {
        FakeModel model(seed, shape, kRecurrence);
        for (const auto& depths : kDepths) {
          ResolvedRequest request;
          request.prompt = {2};
          request.max_tokens = 40;
          request.sampling.temperature = 1.0f;
          request.sampling.later = later;
          request.seed = seed;
          request.depths = depths;
          const Text unlimited = Decode(model, request, Philox());
          CheckStatistics(request, unlimited);
          for (const int rows : kBudgets) {
            request.max_rows = rows;
            const Text text = Decode(model, request, Philox());
            EXPECT_EQ(text, unlimited)
                << fmt::format("depths {} rows {} seed {}", depths, rows, seed);
            EXPECT_EQ(text.sources, unlimited.sources);
          }
        }
      }
    }
  }
}

// ---- Whatever steps cost and whatever happens between them ----

// Half of the time C costs more than a recurrence, so that last readouts wait for drafts'.
StepCost RandomCost(std::mt19937& random) {
  StepCost cost;
  const double row = 0.05 * (random() % 8);
  for (size_t i = 0; i < cost.recurrence.size(); ++i)
    cost.recurrence[i] = 1 + row * (StepCost::kRows[i] - 1);
  cost.readout = std::array{0.0, 0.3, 1.5, 4.0}[random() % 4];
  cost.prelude = 0.5 * (random() % 3);
  return cost;
}

// Texts over "a", "b", "ab" and "c" that a grammar partly forces. What is forced is cut into tokens
// at random: a guess may be any token, allowed or not.
void UseGrammar(ResolvedRequest& request, const char* regex, uint32_t seed) {
  std::vector<grammar::Vocabulary::Token> tokens;
  for (const char* text : {"a", "b", "ab", "c"}) tokens.push_back({text});
  tokens.push_back({"", true});
  request.grammar = grammar::Grammar::FromRegex(regex, std::make_shared<const grammar::Vocabulary>(
                                                           std::move(tokens), std::vector{4}))
                        ->Start();
  request.stop_tokens = {4};
  request.encode = [random = std::make_shared<std::mt19937>(seed)](std::string_view text) {
    std::vector<int32_t> cut(text.size());
    for (int32_t& token : cut) token = static_cast<int32_t>((*random)() % kFakeVocab);
    return cut;
  };
}

struct Happened {
  int64_t waited = 0, evicted = 0, resumed = 0, begun_on_guesses = 0;
};

// Between two steps branches go, drafts are left out and come back, the request is suspended and
// resumed, or other rows are chosen; and a step may be shorter than it could be.
Text DecodeDisturbed(FakeModel& model, const ResolvedRequest& request, const StepCost& cost,
                     std::mt19937& random, const FakeBackend::Decider& decider, Happened& all) {
  FakeBackend backend(model, request.depths, 64, 512);
  backend.set_decider(decider);
  KvLedger ledger(backend.pages(), 64);
  LoopSpec decoder(request, model.spec(), backend.options(), ledger, cost);
  backend.Prefill(decoder.Prefill());
  StepPlan plan;
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (int step = 0; !decoder.finished(); ++step) {
    if (step > 100 * request.max_tokens) {
      ADD_FAILURE() << "the text does not end";
      break;
    }
    const int act = pick(12);
    if (act == 0 && decoder.tree().size() > 1) {
      decoder.Evict(
          decoder.tree().active()[static_cast<size_t>(1 + pick(decoder.tree().size() - 1))]);
      ++all.evicted;
    } else if (act == 1) {
      decoder.LimitBranches(1 + pick(8));
    } else if (act == 2) {
      decoder.LimitBranches(decoder.tree().capacity());
    } else if (act == 3 && decoder.drafts_are_optional()) {
      decoder.set_drafting(pick(2) == 0);
    } else if (act == 4 && !decoder.commits_due()) {
      decoder.Suspend();
      EXPECT_TRUE(decoder.Resume());
      ++all.resumed;
    } else if (act == 5) {
      std::vector<char> advance(decoder.tree().active().size());
      for (char& flag : advance) flag = static_cast<char>(pick(2));
      advance[0] = 1;
      decoder.Choose(advance);
    }
    all.waited += decoder.tree()[decoder.tree().root()].advancing ? 0 : 1;
    plan.Clear();
    plan.recurrences = decoder.RecurrencesToReadout();
    if (pick(3) == 0) plan.recurrences = 1 + pick(plan.recurrences);
    decoder.Plan(plan.recurrences, plan);
    EXPECT_FALSE(plan.rows.empty());
    decoder.Absorb(backend.Wait(backend.Submit(plan)).decisions);
  }
  Text text;
  for (const Token& token : decoder.output()) {
    text.tokens.push_back(token.id);
    text.sources.push_back(token.source);
    all.begun_on_guesses += token.early ? 1 : 0;
  }
  text.reason = decoder.finish_reason();
  return text;
}

TEST(FakeDecode, TextsDoNotDependOnCostsNorOnWhatHappensBetweenSteps) {
  std::mt19937 random(41);
  const FakeShape shapes[] = {FakeShape::kNear, FakeShape::kRandom, FakeShape::kEqual,
                              FakeShape::kSparse, FakeShape::kOneToken};
  const char* grammars[] = {"(abc|bac)*", "(ab|ba|c)+", "(cab){3,9}c", "[abc]*"};
  Happened all;
  for (int round = 0; round < (kSanitized ? 150 : 1500); ++round) {
    FakeModel model(random() % 1000, shapes[random() % std::size(shapes)], kRecurrence);
    ResolvedRequest request;
    request.prompt = {1, 3, 2};
    request.max_tokens = 40;
    request.seed = random();
    request.guesses = random() % 2 == 0;
    const auto sampler = random() % 3;  // greedy, coupled, cascade
    if (sampler > 0) request.sampling.temperature = 1.0f;
    if (sampler == 1) request.sampling.sampler = Sampler::kCoupled;
    if (random() % 3 == 0) request.sampling.presence_penalty = 0.5f;
    const auto grammar = random() % 8;
    if (grammar < std::size(grammars)) UseGrammar(request, grammars[grammar], random());
    const std::vector<int>& depths = kDepths[random() % kDepths.size()];
    if (sampler == 2) request.depths = depths;  // whose drafts the text is drawn from
    const Text expected = Decode(model, request, DecideLikeTheCpu());
    request.depths = depths;
    request.max_rows = kBudgets[random() % std::size(kBudgets)];
    request.group = static_cast<int>(random() % 3);
    const StepCost cost = RandomCost(random);
    const Text text = DecodeDisturbed(model, request, cost, random, DecideLikeTheCpu(), all);
    ASSERT_EQ(text, expected) << fmt::format("round {} depths {} C {}", round, depths,
                                             cost.readout);
    if (sampler == 2) {
      EXPECT_EQ(text.sources, expected.sources) << round;
    }
  }
  EXPECT_GT(all.waited, 0);
  EXPECT_GT(all.evicted, 0);
  EXPECT_GT(all.resumed, 0);
  EXPECT_GT(all.begun_on_guesses, 0);
}

// Upper quantile of chi-square at about 1e-6 (Wilson and Hilferty).
double ChiSquareLimit(int degrees) {
  const double n = degrees, z = 4.75;
  const double t = 1 - 2 / (9 * n) + z * std::sqrt(2 / (9 * n));
  return n * t * t * t;
}

// What top-p leaves of a table: the likeliest tokens up to the one that reaches the share, and
// nothing of the rest. Written without the code under test.
FakeTable Nucleus(const FakeTable& table, double top_p) {
  if (top_p >= 1.0) return table;
  std::array<size_t, kFakeVocab> order;
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return table[a] > table[b]; });
  FakeTable kept{};
  double sum = 0;
  for (const size_t v : order) {
    if (sum >= top_p) break;
    kept[v] = table[v];
    sum += table[v];
  }
  for (double& value : kept) value /= sum;
  return kept;
}

// 200,000 draws of a three-token continuation with the real generator, keyed as in production;
// under a sanitizer a tenth.
void ChiSquare(const FakeBackend::Decider& decider, const SamplingParams& sampling,
               const std::vector<int>& depths) {
  FakeModel model(77, FakeShape::kNear, 4);
  constexpr int kDraws = kSanitized ? 20000 : 200000;
  FakeBackend backend(model, depths, 64);
  backend.set_decider(decider);
  KvLedger ledger(backend.pages(), 64);
  ResolvedRequest request;
  request.prompt = {2, 2};
  request.max_tokens = 3;
  request.sampling = sampling;
  request.depths = depths;
  std::array<int, 125> counts{};
  StepPlan plan;
  for (int i = 0; i < kDraws; ++i) {
    request.seed = static_cast<uint64_t>(i);
    LoopSpec decoder(request, model.spec(), backend.options(), ledger);
    Drive(backend, decoder, plan);
    int code = 0;
    for (const Token& token : decoder.output()) code = code * 5 + token.id;
    ++counts[static_cast<size_t>(code)];
  }
  const auto target = [&](const std::vector<int32_t>& prefix) {
    return Nucleus(model.At(4, prefix), sampling.top_p);
  };
  double statistic = 0, rest_expected = 0;
  int rest = 0, cells = 0;
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) {
      for (int c = 0; c < 5; ++c) {
        const double p = target({2, 2})[static_cast<size_t>(a)] *
                         target({2, 2, a})[static_cast<size_t>(b)] *
                         target({2, 2, a, b})[static_cast<size_t>(c)];
        const int count = counts[static_cast<size_t>(a * 25 + b * 5 + c)];
        if (p * kDraws < 10) {
          rest_expected += p * kDraws;
          rest += count;
        } else {
          statistic += (count - p * kDraws) * (count - p * kDraws) / (p * kDraws);
          ++cells;
        }
      }
    }
  }
  if (rest_expected == 0) {
    EXPECT_EQ(rest, 0) << "texts of probability zero";
  } else {
    statistic += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
  }
  EXPECT_GT(cells, 10);
  EXPECT_LT(statistic, ChiSquareLimit(cells)) << fmt::format("depths {} cells {}", depths, cells);
}

TEST(FakeDecode, CascadeChiSquare) {
  SamplingParams sampling;
  sampling.temperature = 1.0f;
  ChiSquare(Philox(), sampling, {1, 2});
}

// The CPU backend's own path from logits on, in float, with a nucleus: filters, proposals that are
// kept under the cell, the gate, the cascade.
TEST(FakeDecode, CpuCascadeChiSquareWithTopP) {
  SamplingParams sampling;
  sampling.temperature = 1.0f;
  sampling.top_p = 0.9f;
  ChiSquare(DecideLikeTheCpu(), sampling, {1, 2});
}

TEST(FakeDecode, CoupledChiSquare) {
  SamplingParams sampling;
  sampling.temperature = 1.0f;
  sampling.sampler = Sampler::kCoupled;
  ChiSquare(DecideLikeTheCpu(), sampling, {1});
}

TEST(FakeDecodeLong, CascadeChiSquareOfEveryVariant) {
  for (const LaterProposal later :
       {LaterProposal::kGatedResidual, LaterProposal::kResidual, LaterProposal::kNonResidual}) {
    SamplingParams sampling;
    sampling.temperature = 1.0f;
    sampling.later = later;
    for (const auto& depths : {std::vector<int>{}, {2}, {1, 2}, {1, 3}, {1, 2, 3}}) {
      ChiSquare(Philox(), sampling, depths);
      ChiSquare(DecideLikeTheCpu(), sampling, depths);
    }
  }
}

// ---- What a request may not ask ----

template <typename F>
std::string ErrorOf(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FakeDecode, RefusesWhatTheBackendCannotDo) {
  const auto with = [](int logprobs) {
    return ErrorOf([&] {
      ResolvedRequest request;
      request.logprobs = logprobs;
      CheckLimits(request, {.max_logprobs = 32});
    });
  };
  for (const int good : {0, 1, 32}) EXPECT_EQ(with(good), "no error");
  EXPECT_EQ(with(33), "logprobs is 33, expected 0 to 32 here");
  EXPECT_EQ(with(-1), "logprobs is -1, expected 0 to 32 here");
}

// A decision without numbers behind it ends the request, at whatever depth it falls; nothing of it
// is committed, and cells and pages are given back.
TEST(FakeDecode, LogitsThatAreNoNumbersEndTheRequest) {
  for (const int bad_depth : {1, 2, 4}) {
    FakeModel model(3, FakeShape::kNear, 4);
    FakeBackend backend(model, {1, 2}, 64);
    KvLedger ledger(backend.pages(), 64);
    const FakeBackend::Decider good = DecideLikeTheCpu();
    backend.set_decider([&](const ReadoutPlan& plan, std::span<const int32_t> prefix, double* p,
                            const Recorded<double>* recorded) {
      Decision decision = good(plan, prefix, p, recorded);
      const int depth = backend.options().readout_depths[static_cast<size_t>(plan.readout)];
      decision.finite = depth != bad_depth || prefix.size() < 6;
      return decision;
    });
    ResolvedRequest request;
    request.prompt = {1, 2};
    request.max_tokens = 10;
    request.depths = {1, 2};
    LoopSpec decoder(request, model.spec(), backend.options(), ledger);
    StepPlan plan;
    Drive(backend, decoder, plan);
    EXPECT_EQ(decoder.finish_reason(), FinishReason::kError);
    EXPECT_NE(decoder.error().find(fmt::format("position 5, depth {}", bad_depth)),
              std::string::npos)
        << decoder.error();
    EXPECT_LE(decoder.output().size(), 4u);
    EXPECT_EQ(ledger.cells().available(), 64);
  }
}

TEST(FakeDecode, RefusesBadRequests) {
  FakeModel model(1, FakeShape::kNear, 4);
  FakeBackend backend(model, {1, 2}, 4);
  KvLedger ledger(backend.pages(), 4);
  const auto with = [&](auto change) {
    ResolvedRequest request;
    request.prompt = {1, 2};
    request.max_tokens = 10;
    request.depths = {1, 2};
    change(request);
    return ErrorOf([&] { LoopSpec decoder(request, model.spec(), backend.options(), ledger); });
  };
  EXPECT_EQ(with([](ResolvedRequest&) {}), "no error");
  EXPECT_NE(with([](ResolvedRequest& r) { r.prompt.clear(); }).find("prompt is empty"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.prompt = {5}; }).find("token 5"), std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.prompt = {-1}; }).find("token -1"), std::string::npos);
  EXPECT_EQ(with([](ResolvedRequest& r) { r.max_tokens = 0; }), "no error");  // only read
  EXPECT_NE(with([](ResolvedRequest& r) { r.max_tokens = -3; }).find("max_tokens"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.max_tokens = 1 << 30; }).find("context"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.max_tokens = 200; }).find("pages"), std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.max_rows = -1; }).find("max_rows"), std::string::npos);
  EXPECT_EQ(with([](ResolvedRequest& r) { r.depths = {3}; }),
            "depths is 3, of which 3 is not read out here, expected depths among 1,2");
  for (const auto& depths : {std::vector{0}, {4}, {2, 2}, {2, 1}, {-1}, {1, 2, 3, 4}}) {
    EXPECT_NE(with([&](ResolvedRequest& r) { r.depths = depths; }).find("depths"),
              std::string::npos);
  }
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.temperature = -1; }).find("temperature"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.temperature = NAN; }).find("temperature"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.top_p = 0; }).find("top_p"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.top_p = 1.5f; }).find("top_p"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.top_k = -2; }).find("top_k"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.min_p = 2; }).find("min_p"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) { r.sampling.repetition_penalty = 0; }).find("repetition"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) {
              r.sampling.bias = {{7, 1.0f}};
            }).find("token 7"),
            std::string::npos);
  EXPECT_NE(with([](ResolvedRequest& r) {
              r.sampling.bias = {{1, INFINITY}};
            }).find("bias"),
            std::string::npos);
  // Whatever was refused holds nothing.
  EXPECT_EQ(ledger.cells().available(), 4);
  EXPECT_EQ(ledger.pages().available(), backend.pages());
}

TEST(FakeDecode, SecondRequestWithoutACellIsRefused) {
  FakeModel model(1, FakeShape::kNear, 4);
  FakeBackend backend(model, {1}, 1, 256);
  KvLedger ledger(backend.pages(), 1);
  ResolvedRequest request;
  request.prompt = {1};
  request.max_tokens = 4;
  request.depths = {1};
  LoopSpec first(request, model.spec(), backend.options(), ledger);
  EXPECT_NE(ErrorOf([&] {
              LoopSpec second(request, model.spec(), backend.options(), ledger);
            }).find("cell"),
            std::string::npos);
}

// ---- Stop from outside, trace, many decoders in one step ----

TEST(FakeDecode, StopFreesEverything) {
  FakeModel model(3, FakeShape::kNear, 4);
  FakeBackend backend(model, {1, 2}, 64);
  backend.set_decider(DecideLikeTheCpu());
  KvLedger ledger(backend.pages(), 64);
  ResolvedRequest request;
  request.prompt = {1};
  request.depths = {1, 2};
  request.max_tokens = 30;
  LoopSpec decoder(request, model.spec(), backend.options(), ledger);
  StepPlan plan;
  for (int i = 0; i < 7; ++i) {
    plan.Clear();
    decoder.Plan(1, plan);
    decoder.Absorb(backend.Wait(backend.Submit(plan)).decisions);
  }
  decoder.Stop(FinishReason::kCancelled);
  decoder.Stop(FinishReason::kStop);
  EXPECT_EQ(decoder.finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(ledger.cells().available(), 64);
}

TEST(FakeDecode, TraceTellsTheWholeStory) {
  FakeModel model(4, FakeShape::kNear, 4);
  FakeBackend backend(model, {1, 2}, 64);
  backend.set_decider(DecideLikeTheCpu());
  KvLedger ledger(backend.pages(), 64);
  ResolvedRequest request;
  request.prompt = {1};
  request.depths = {1, 2};
  request.max_tokens = 40;
  request.trace = true;
  LoopSpec decoder(request, model.spec(), backend.options(), ledger);
  StepPlan plan;
  Drive(backend, decoder, plan);
  std::map<int32_t, int> born;
  std::vector<int32_t> decided;
  int64_t last_step = 0;
  for (const TraceEvent& event : decoder.trace()) {
    EXPECT_GE(event.step, last_step);
    last_step = event.step;
    if (event.kind == TraceEvent::Kind::kSpawn) {
      EXPECT_EQ(born.count(event.branch), 0u);
      EXPECT_TRUE(event.parent == -1 || born.contains(event.parent));
      born[event.branch] = 1;
    } else {
      EXPECT_TRUE(born.contains(event.branch));
    }
    if (event.kind == TraceEvent::Kind::kPrune) {
      EXPECT_EQ(born[event.branch], 1) << "pruned twice";
      born[event.branch] = 2;
    }
    if (event.kind == TraceEvent::Kind::kAccept || event.kind == TraceEvent::Kind::kFallback) {
      decided.push_back(event.token);
      EXPECT_EQ(event.depth, 4);
    }
  }
  std::vector<int32_t> output;
  for (const Token& token : decoder.output()) output.push_back(token.id);
  EXPECT_EQ(decided, output);
}

// Several requests share steps, cells and pages; each writes what it writes alone.
TEST(FakeDecode, ManyDecodersInOneStep) {
  FakeModel model(9, FakeShape::kNear, 6);
  const std::vector<int> depths = {1, 2, 4};
  FakeBackend backend(model, depths, 40, 2048);
  backend.set_decider(Philox());
  std::vector<std::vector<int32_t>> alone;
  std::vector<ResolvedRequest> requests;
  for (int i = 0; i < 6; ++i) {
    ResolvedRequest request;
    request.prompt = {i % 5, 2, (i * 3) % 5};
    request.max_tokens = 20 + 7 * i;
    request.depths = depths;
    request.seed = static_cast<uint64_t>(i);
    request.max_rows = 1 + i;
    request.sampling.temperature = 1.0f;
    requests.push_back(request);
    alone.push_back(Decode(model, request, Philox()).tokens);
  }
  KvLedger ledger(backend.pages(), 40);
  {
    std::vector<std::unique_ptr<LoopSpec>> decoders;
    for (const ResolvedRequest& request : requests) {
      decoders.push_back(
          std::make_unique<LoopSpec>(request, model.spec(), backend.options(), ledger));
      backend.Prefill(decoders.back()->Prefill());
    }
    StepPlan plan;
    while (true) {
      plan.Clear();
      std::vector<size_t> ends;
      for (const auto& decoder : decoders) {
        if (!decoder->finished()) decoder->Plan(1, plan);
        ends.push_back(plan.readouts.size());
      }
      if (plan.rows.empty()) break;
      const std::vector<Decision> decisions = backend.Wait(backend.Submit(plan)).decisions;
      size_t begin = 0;
      for (size_t i = 0; i < decoders.size(); ++i) {
        if (!decoders[i]->finished())
          decoders[i]->Absorb(std::span(decisions).subspan(begin, ends[i] - begin));
        begin = ends[i];
      }
    }
    for (size_t i = 0; i < decoders.size(); ++i) {
      std::vector<int32_t> tokens;
      for (const Token& token : decoders[i]->output()) tokens.push_back(token.id);
      EXPECT_EQ(tokens, alone[i]) << i;
    }
  }
  EXPECT_EQ(ledger.cells().available(), 40);
  EXPECT_EQ(ledger.pages().available(), backend.pages());
}

}  // namespace
}  // namespace loopspec

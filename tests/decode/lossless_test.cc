// Exact losslessness: over all random choices, the probability that LoopSpec writes a text is the
// target's own.
//
// The real decoder and the real Propose and Verify run on a model of five tokens; the choices are
// enumerated. Choices of branches that cannot belong to the text in question do not matter to its
// probability, if the algorithm is right: they are taken at random (LazyEnumeration), which keeps
// the sum small, or enumerated as well (FullEnumeration), where supports are small.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "decode/loopspec.h"
#include "tests/support/enumerate.h"
#include "tests/support/fake_backend.h"

namespace loopspec {
namespace {

constexpr int kLength = 3;
const std::vector<int32_t> kPrompt = {3, 1};

// The choices of one decision: enumerated, or taken by a hash where they are not to matter.
struct ScriptedDraw {
  Enumerator* enumerator;  // null: by the generator below
  DrawKey key;

  bool Accept(int proposal, double probability) {
    if (enumerator == nullptr) return Uniform(key, AcceptPurpose(proposal)) < probability;
    const double outcomes[2] = {1.0 - probability, probability};
    return enumerator->Choose(outcomes) == 1;
  }
  template <typename F>
  int Choose(uint32_t purpose, int n, F weight, double total) {
    if (enumerator == nullptr) return SerialTeam().Choose(n, weight, total, Uniform(key, purpose));
    FakeTable outcomes;
    for (int v = 0; v < n; ++v) outcomes[static_cast<size_t>(v)] = weight(v) / total;
    return enumerator->Choose(outcomes);
  }
};

struct Setting {
  FakeShape shape;
  std::vector<int> depths;
  int recurrence;
  LaterProposal later = LaterProposal::kGatedResidual;
  int max_rows = 0;
  std::vector<int32_t> stop_tokens = {};
};

std::string Text(const Setting& s) {
  return fmt::format("shape {} depths {} R {} later {} rows {} stops {}", static_cast<int>(s.shape),
                     s.depths, s.recurrence, static_cast<int>(s.later), s.max_rows, s.stop_tokens);
}

DecodeRequest Request(const Setting& s) {
  DecodeRequest request;
  request.prompt = kPrompt;
  request.sampling.temperature = 1.0f;
  request.sampling.later = s.later;
  request.depths = s.depths;
  request.max_tokens = kLength;
  request.stop_tokens = s.stop_tokens;
  request.max_rows = s.max_rows;
  return request;
}

bool IsStop(const Setting& s, int32_t token) {
  return std::find(s.stop_tokens.begin(), s.stop_tokens.end(), token) != s.stop_tokens.end();
}

// Every text of the target with its probability: kLength tokens, or fewer with a stop token at the
// end.
void Targets(const Setting& s, FakeModel& model, std::vector<int32_t>& text, double weight,
             std::map<std::vector<int32_t>, double>& out) {
  if (static_cast<int>(text.size()) == kLength || (!text.empty() && IsStop(s, text.back()))) {
    out[text] = weight;
    return;
  }
  std::vector<int32_t> prefix = kPrompt;
  prefix.insert(prefix.end(), text.begin(), text.end());
  const FakeTable p = model.At(s.recurrence, prefix);
  for (int v = 0; v < kFakeVocab; ++v) {
    text.push_back(v);
    Targets(s, model, text, weight * p[static_cast<size_t>(v)], out);
    text.pop_back();
  }
}

struct Tally {
  int64_t paths = 0;
  int64_t gate_opened = 0, gate_closed = 0;
  std::array<int64_t, 4> sources{};
};

// The probability that LoopSpec writes `text`.
double ProbabilityOf(const Setting& s, FakeModel& model, const std::vector<int32_t>& text,
                     uint64_t off_path_seed, Tally& run) {
  FakeBackend backend(model, s.depths, 64);
  KvLedger ledger(backend.pages(), 64);
  const DecodeRequest request = Request(s);
  Enumerator enumerator;
  bool alive = true;
  backend.set_decider([&](const ReadoutPlan& plan, std::span<const int32_t> prefix, double* p,
                          const Recorded<double>* recorded) {
    const std::span<const int32_t> decoded = prefix.subspan(kPrompt.size());
    const bool on_path =
        decoded.size() < text.size() && std::equal(decoded.begin(), decoded.end(), text.begin());
    DrawKey key{off_path_seed, 0, 0};
    for (const int32_t token : decoded)
      key.position = key.position * 8 + static_cast<uint32_t>(token) + 1;
    ScriptedDraw draw{on_path ? &enumerator : nullptr, key};
    const Decision decision = DecideByCascade(plan, p, recorded, draw);
    if (on_path && plan.purpose == ReadoutPurpose::kVerify &&
        decision.token != text[decoded.size()])
      alive = false;
    return decision;
  });
  double probability = 0;
  StepPlan plan;
  do {
    alive = true;
    LoopSpec decoder(request, model.spec(), backend.options(), ledger);
    Drive(backend, decoder, plan, off_path_seed % 2 == 1, &alive);
    ++run.paths;
    if (!alive) continue;
    EXPECT_EQ(decoder.output().size(), text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      EXPECT_EQ(decoder.output()[i].token, text[i]);
      ++run.sources[static_cast<size_t>(decoder.output()[i].source)];
    }
    run.gate_opened += decoder.statistics().gate_opened;
    run.gate_closed += decoder.statistics().gate_evaluated - decoder.statistics().gate_opened;
    probability += enumerator.weight();
  } while (enumerator.Next());
  EXPECT_EQ(ledger.cells().available(), 64);
  EXPECT_EQ(ledger.pages().available(), backend.pages());
  return probability;
}

Tally ExpectLossless(const Setting& s, uint64_t seed) {
  FakeModel model(seed, s.shape, s.recurrence);
  std::map<std::vector<int32_t>, double> targets;
  std::vector<int32_t> text;
  Targets(s, model, text, 1.0, targets);
  Tally run;
  double total = 0;
  for (const auto& [sequence, target] : targets) {
    const double probability = target > 0 ? ProbabilityOf(s, model, sequence, seed, run) : 0.0;
    EXPECT_NEAR(probability, target, 1e-12) << Text(s) << fmt::format(" text {}", sequence);
    total += probability;
  }
  EXPECT_NEAR(total, 1.0, 1e-11) << Text(s);
  return run;
}

constexpr LaterProposal kVariants[] = {LaterProposal::kGatedResidual, LaterProposal::kResidual,
                                       LaterProposal::kNonResidual};
constexpr FakeShape kShapes[] = {
    FakeShape::kRandom,   FakeShape::kSparse,        FakeShape::kEqual,    FakeShape::kEqualDrafts,
    FakeShape::kDisjoint, FakeShape::kOneTokenDraft, FakeShape::kOneToken, FakeShape::kNear};

TEST(LazyEnumeration, NoProposals) {
  for (const FakeShape shape : kShapes) ExpectLossless({shape, {}, 4}, 11);
}

TEST(LazyEnumeration, OneProposal) {
  for (const FakeShape shape : kShapes) {
    for (const auto& depths : {std::vector{1}, {2}, {3}}) {
      for (const int rows : {0, 1, 2, 5})
        ExpectLossless({shape, depths, 4, LaterProposal::kGatedResidual, rows}, 12);
    }
  }
}

using DepthSets = std::vector<std::pair<std::vector<int>, int>>;

void TwoProposals(const DepthSets& depth_sets) {
  Tally all;
  for (const FakeShape shape : kShapes) {
    for (const LaterProposal later : kVariants) {
      uint64_t seed = 100;
      // Every budget in turn.
      for (const auto& [depths, r] : depth_sets) {
        const int rows = std::array{0, 1, 2, 5}[seed % 4];
        const Tally run = ExpectLossless({shape, depths, r, later, rows}, ++seed);
        all.paths += run.paths;
        for (size_t i = 0; i < 4; ++i) all.sources[i] += run.sources[i];
        if (shape == FakeShape::kEqualDrafts && later == LaterProposal::kGatedResidual) {
          EXPECT_EQ(run.gate_opened, 0);
        }
        if (shape == FakeShape::kDisjoint && (depths[1] - depths[0]) % 2 == 1) {
          EXPECT_EQ(run.gate_closed, 0);
        }
      }
    }
  }
  // The cases were not all decided in one way.
  EXPECT_GT(all.sources[0], 0);
  EXPECT_GT(all.sources[1], 0);
  EXPECT_GT(all.sources[2], 0);
  testing::Test::RecordProperty("paths", static_cast<int>(all.paths));
}

// Multiples and not, adjacent and apart.
TEST(LazyEnumeration, TwoProposals) {
  TwoProposals({{{1, 2}, 4}, {{2, 3}, 5}});
}
TEST(LongEnumeration, TwoProposals) {
  TwoProposals({{{1, 4}, 7}, {{2, 6}, 8}, {{3, 4}, 5}, {{1, 3}, 4}});
}

TEST(LongEnumeration, EveryBudgetWithTwoProposals) {
  for (const int rows : {0, 1, 2, 3, 5}) {
    for (const LaterProposal later : kVariants)
      ExpectLossless({FakeShape::kNear, {1, 2}, 4, later, rows}, 31);
  }
}

// Three proposals over full supports take a hundred thousand paths and more for each text.
void ThreeProposals(std::initializer_list<FakeShape> shapes) {
  Tally all;
  for (const FakeShape shape : shapes) {
    for (const LaterProposal later : kVariants) {
      uint64_t seed = 200;
      for (const auto& [depths, r] :
           {std::pair{std::vector{1, 2, 3}, 4}, {{1, 2, 4}, 6}, {{2, 3, 5}, 7}}) {
        const int rows = std::array{0, 2, 5}[seed % 3];
        const Tally run = ExpectLossless({shape, depths, r, later, rows}, ++seed);
        for (size_t i = 0; i < 4; ++i) all.sources[i] += run.sources[i];
      }
    }
  }
  EXPECT_GT(all.sources[3], 0);
}

TEST(LazyEnumeration, ThreeProposals) {
  ThreeProposals({FakeShape::kSparse, FakeShape::kOneTokenDraft, FakeShape::kOneToken});
}

TEST(LongEnumeration, ThreeProposals) {
  ThreeProposals(
      {FakeShape::kEqual, FakeShape::kEqualDrafts, FakeShape::kDisjoint, FakeShape::kNear});
}

TEST(LazyEnumeration, StopTokens) {
  for (const FakeShape shape :
       {FakeShape::kRandom, FakeShape::kSparse, FakeShape::kOneTokenDraft, FakeShape::kNear}) {
    for (const LaterProposal later : kVariants) {
      ExpectLossless({shape, {1, 2}, 4, later, 0, {2}}, 41);
      ExpectLossless({shape, {1, 3}, 5, later, 2, {0, 4}}, 42);
    }
  }
  // Every token ends the text: one token each.
  ExpectLossless({FakeShape::kRandom, {1, 2}, 4, LaterProposal::kGatedResidual, 0, {0, 1, 2, 3, 4}},
                 43);
}

// Without any assumption about what matters: all choices of all branches.
void ExpectLosslessInFull(const Setting& s, uint64_t seed) {
  FakeModel model(seed, s.shape, s.recurrence);
  std::map<std::vector<int32_t>, double> targets, found;
  std::vector<int32_t> text;
  Targets(s, model, text, 1.0, targets);
  FakeBackend backend(model, s.depths, 64);
  KvLedger ledger(backend.pages(), 64);
  const DecodeRequest request = Request(s);
  Enumerator enumerator;
  backend.set_decider([&](const ReadoutPlan& plan, std::span<const int32_t>, double* p,
                          const Recorded<double>* recorded) {
    ScriptedDraw draw{&enumerator, {}};
    return DecideByCascade(plan, p, recorded, draw);
  });
  StepPlan plan;
  do {
    LoopSpec decoder(request, model.spec(), backend.options(), ledger);
    Drive(backend, decoder, plan);
    text.clear();
    for (const CommittedToken& token : decoder.output()) text.push_back(token.token);
    found[text] += enumerator.weight();
  } while (enumerator.Next());
  for (const auto& [sequence, target] : targets)
    EXPECT_NEAR(found[sequence], target, 1e-12) << Text(s);
  for (const auto& [sequence, probability] : found)
    EXPECT_TRUE(targets.contains(sequence)) << fmt::format("{}", sequence);
}

TEST(FullEnumeration, OneProposal) {
  for (const FakeShape shape :
       {FakeShape::kRandom, FakeShape::kSparse, FakeShape::kNear, FakeShape::kOneToken}) {
    for (const int rows : {0, 2}) {
      ExpectLosslessInFull({shape, {2}, 4, LaterProposal::kGatedResidual, rows}, 51);
      ExpectLosslessInFull({shape, {3}, 5, LaterProposal::kGatedResidual, rows, {1}}, 52);
    }
  }
}

TEST(FullEnumeration, TwoProposals) {
  for (const FakeShape shape :
       {FakeShape::kSparse, FakeShape::kOneTokenDraft, FakeShape::kOneToken}) {
    for (const LaterProposal later : kVariants) {
      ExpectLosslessInFull({shape, {2, 3}, 4, later}, 61);
      ExpectLosslessInFull({shape, {1, 2}, 3, later, 2, {3}}, 62);
    }
  }
}

}  // namespace
}  // namespace loopspec

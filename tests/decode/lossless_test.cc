// Exact losslessness: over all random choices, the probability that LoopSpec writes a text is the
// target's own.
//
// The real decoder and the real Propose and Verify run on a model of five tokens; the choices are
// enumerated. FullEnumeration takes all choices of all branches. Where those are too many, in large
// trees of three proposals, LazyEnumeration asks for one text at a time: choices of branches that
// cannot belong to it do not matter to its probability, if the algorithm is right, and are taken at
// random.
//
// The paper's four kinds of second proposal are none, which is one proposal, and kVariants.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "decode/loopspec.h"
#include "grammar/grammar.h"
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

// A grammar over the five tokens, the last of which ends the text.
struct FakeGrammar {
  std::vector<std::string> tokens;  // the bytes of the first four
  std::string regex;
  std::string mark;      // the text is free up to here; empty: it is not
  bool may_end = false;  // without the mark

  grammar::State Start() const {
    std::vector<grammar::Vocabulary::Token> vocabulary;
    for (const std::string& token : tokens) vocabulary.push_back({token});
    vocabulary.push_back({"", true});
    std::vector<grammar::Mark> marks;
    if (!mark.empty()) marks.push_back({mark, may_end});
    return grammar::Grammar::FromRegex(regex, std::make_shared<const grammar::Vocabulary>(
                                                  std::move(vocabulary), std::vector<int32_t>{4}))
        ->StartAfter(marks);
  }
};

struct Setting {
  FakeShape shape;
  std::vector<int> depths;
  int recurrence;
  LaterProposal later = LaterProposal::kGatedResidual;
  int max_rows = 0;
  std::vector<int32_t> stop_tokens = {};
  int group = 1;
  uint64_t pauses = 0;  // seed of pauses and evictions; 0: rows are chosen as in decoding
  const FakeGrammar* grammar = nullptr;
  // What C costs beside a recurrence: where that is more, last readouts wait for drafts'.
  double readout_cost = 0;

  StepCost Cost() const {
    StepCost cost;
    cost.readout = readout_cost;
    return cost;
  }
};

std::string Text(const Setting& s) {
  return fmt::format("shape {} depths {} R {} later {} rows {} stops {} group {} pauses {} C {} {}",
                     static_cast<int>(s.shape), s.depths, s.recurrence, static_cast<int>(s.later),
                     s.max_rows, s.stop_tokens, s.group, s.pauses, s.readout_cost,
                     s.grammar == nullptr ? "" : s.grammar->regex);
}

ResolvedRequest Request(const Setting& s) {
  ResolvedRequest request;
  request.prompt = kPrompt;
  request.sampling.temperature = 1.0f;
  request.sampling.later = s.later;
  request.depths = s.depths;
  request.max_tokens = kLength;
  request.stop_tokens = s.stop_tokens;
  request.max_rows = s.max_rows;
  request.group = s.group;
  if (s.grammar != nullptr) request.grammar = s.grammar->Start();
  // Choices must follow from the state alone, since paths that meet in one go on as one.
  request.laboratory.adapt_rates = false;
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
  FakeTable p = model.At(s.recurrence, prefix);
  if (s.grammar != nullptr) {
    grammar::State state = s.grammar->Start();
    for (const int32_t token : text) ASSERT_TRUE(state.AdvanceToken(token));
    std::vector<uint32_t> mask(1);
    for (int v = 0; v < kFakeVocab; ++v)
      mask[0] |= grammar::State(state).AdvanceToken(v) ? 1u << v : 0u;
    MaskTable(mask, p);
  }
  for (int v = 0; v < kFakeVocab; ++v) {
    if (s.grammar != nullptr && p[static_cast<size_t>(v)] == 0) continue;
    text.push_back(v);
    Targets(s, model, text, weight * p[static_cast<size_t>(v)], out);
    text.pop_back();
  }
}

struct Tally {
  int64_t paths = 0;
  int64_t gate_opened = 0, gate_closed = 0;
  std::array<int64_t, 4> sources{};  // tokens by fallback and by proposal
  // Steps that committed several tokens, in which a live branch stayed, before which one went, in
  // which the root waited.
  int64_t several = 0, paused = 0, evicted = 0, waited = 0;

  void Add(const Tally& other) {
    paths += other.paths;
    gate_opened += other.gate_opened;
    gate_closed += other.gate_closed;
    for (size_t i = 0; i < sources.size(); ++i) sources[i] += other.sources[i];
    several += other.several;
    paused += other.paused;
    evicted += other.evicted;
    waited += other.waited;
  }
  void Add(const LoopSpec& decoder) {
    gate_opened += decoder.statistics().gate_opened;
    gate_closed += decoder.statistics().gate_evaluated - decoder.statistics().gate_opened;
    for (const Token& token : decoder.output()) ++sources[static_cast<size_t>(token.source)];
  }
};

std::vector<int32_t> TextOf(const LoopSpec& decoder) {
  std::vector<int32_t> text;
  for (const Token& token : decoder.output()) text.push_back(token.id);
  return text;
}

// The shapes that keep the gate shut, or open, by what they are.
void CheckGate(const Setting& s, const Tally& run) {
  if (s.grammar != nullptr) return;  // masked tables have other supports
  if (s.shape == FakeShape::kEqualDrafts && s.later == LaterProposal::kGatedResidual) {
    EXPECT_EQ(run.gate_opened, 0) << Text(s);
  }
  if (s.shape == FakeShape::kDisjoint && s.depths.size() == 2 &&
      (s.depths[1] - s.depths[0]) % 2 == 1) {
    EXPECT_EQ(run.gate_closed, 0) << Text(s);
  }
}

// The probability that LoopSpec writes `text`.
double ProbabilityOf(const Setting& s, FakeModel& model, const std::vector<int32_t>& text,
                     uint64_t off_path_seed, Tally& run) {
  FakeBackend backend(model, s.depths, 64);
  KvLedger ledger(backend.pages(), 64);
  const ResolvedRequest request = Request(s);
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
    EXPECT_EQ(TextOf(decoder), text);
    run.Add(decoder);
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
  CheckGate(s, run);
  return run;
}

constexpr LaterProposal kVariants[] = {LaterProposal::kGatedResidual, LaterProposal::kResidual,
                                       LaterProposal::kNonResidual};
constexpr FakeShape kShapes[] = {
    FakeShape::kRandom,   FakeShape::kSparse,        FakeShape::kEqual,    FakeShape::kEqualDrafts,
    FakeShape::kDisjoint, FakeShape::kOneTokenDraft, FakeShape::kOneToken, FakeShape::kNear};
constexpr FakeShape kNarrow[] = {FakeShape::kSparse, FakeShape::kOneTokenDraft,
                                 FakeShape::kOneToken};

using DepthSets = std::vector<std::pair<std::vector<int>, int>>;

// Three proposals over full supports, in trees of any size: a hundred thousand paths and more for
// each text.
TEST(LongLazyEnumeration, ThreeProposals) {
  Tally all;
  for (const FakeShape shape :
       {FakeShape::kEqual, FakeShape::kEqualDrafts, FakeShape::kDisjoint, FakeShape::kNear}) {
    for (const LaterProposal later : kVariants) {
      uint64_t seed = 200;
      for (const auto& [depths, r] : DepthSets{{{1, 2, 3}, 4}, {{1, 2, 4}, 6}, {{2, 3, 5}, 7}}) {
        const int rows = std::array{0, 2, 5}[seed % 3];
        all.Add(ExpectLossless({shape, depths, r, later, rows}, ++seed));
      }
    }
  }
  EXPECT_GT(all.sources[3], 0);
}

// ---- All choices of all branches ----

// Everything that the rest of a run depends on, beside the choices to come: the text, and the live
// branches in their order with parent, depth and drafts. (What a draft was drawn from follows from
// the prefix and the drafts before it; which cells and slots the branches lie in is all the same.)
std::vector<int32_t> StateOf(const LoopSpec& decoder) {
  std::vector<int32_t> state = TextOf(decoder);
  const std::span<const int32_t> active = decoder.tree().active();
  const auto place = [&](int32_t id) {
    return static_cast<int32_t>(std::find(active.begin(), active.end(), id) - active.begin());
  };
  for (const int32_t id : active) {
    const Branch& branch = decoder.tree()[id];
    state.insert(state.end(),
                 {branch.token, branch.depth, place(branch.parent), branch.proposal_count});
    for (int i = 0; i < branch.proposal_count; ++i) {
      const Proposal& draft = branch.proposals[i];
      state.insert(state.end(), {draft.index, draft.token, place(draft.child)});
    }
  }
  return state;
}

// A number that follows from the state and the seed alone: paths that meet go on as one.
uint64_t Scramble(const LoopSpec& decoder, uint64_t seed) {
  for (const int32_t part : StateOf(decoder)) {
    seed = (seed ^ static_cast<uint32_t>(part)) * 0x9E3779B97F4A7C15u;
    seed ^= seed >> 29;
  }
  return seed;
}

// Any subset of the branches may pause, and any but the root may go that has drafted nothing yet.
// One that has would draw again when it comes back. Decoding then draws the same, since its draws
// are keyed by position; an enumeration would take all choices anew, and an eviction that depends
// on the first ones would be a selection among them.
void ChooseByState(LoopSpec& decoder, uint64_t seed, Tally& run) {
  uint64_t bits = Scramble(decoder, seed);
  const auto size = static_cast<uint64_t>(decoder.tree().size());
  const int32_t drawn = decoder.tree().active()[(bits >> 8) % size];
  if (drawn != decoder.tree().root() && decoder.tree()[drawn].proposal_count == 0 &&
      bits % 3 == 0) {
    decoder.Evict(drawn);
    ++run.evicted;
    bits = Scramble(decoder, seed + 1);
  }
  std::vector<char> advance(decoder.tree().active().size());
  for (size_t i = 0; i < advance.size(); ++i) advance[i] = bits >> (i % 60) & 1 ? 1 : 0;
  decoder.Choose(advance);
  const std::span<const int32_t> active = decoder.tree().active();
  if (std::none_of(active.begin(), active.end(),
                   [&](int32_t b) { return decoder.tree()[b].advancing; })) {
    advance.assign(advance.size(), 1);
    decoder.Choose(advance);
  }
}

// Drive, with pauses where the setting has them, and a count of what happened.
void DriveCounting(const Setting& s, FakeBackend& backend, LoopSpec& decoder, StepPlan& plan,
                   const bool& alive, Tally& run) {
  backend.Prefill(decoder.Prefill());
  while (!decoder.finished() && alive) {
    if (s.pauses != 0) ChooseByState(decoder, s.pauses, run);
    plan.Clear();
    plan.recurrences = decoder.RecurrencesToReadout();
    decoder.Plan(plan.recurrences, plan);
    run.paused += static_cast<int>(plan.rows.size()) < decoder.tree().size() ? 1 : 0;
    run.waited += decoder.tree()[decoder.tree().root()].advancing ? 0 : 1;
    const size_t before = decoder.output().size();
    decoder.Absorb(backend.Wait(backend.Submit(plan)).decisions);
    run.several += decoder.output().size() > before + 1 ? 1 : 0;
  }
}

// The texts of all paths with their probabilities, from token to token: most choices of a path lie
// in branches that the next verdict prunes, and paths that it leaves in the same state have the
// same future. They go on as one, with the sum of their weights.
std::map<std::vector<int32_t>, double> AllTexts(const Setting& s, FakeModel& model, Tally& run) {
  struct Waypoint {
    double weight = 0;
    Enumerator::Path path;  // one of those that lead here
  };
  FakeBackend backend(model, s.depths, 64);
  KvLedger ledger(backend.pages(), 64);
  const ResolvedRequest request = Request(s);
  const StepCost cost = s.Cost();
  std::map<std::vector<int32_t>, double> texts;
  std::map<std::vector<int32_t>, Waypoint> here = {{{}, {1.0, {}}}};
  StepPlan plan;
  for (int length = 1; !here.empty(); ++length) {
    std::map<std::vector<int32_t>, Waypoint> there;
    for (const auto& [state, from] : here) {
      Enumerator enumerator(from.path);
      do {
        int verdicts = 0;
        bool alive = true;
        backend.set_decider([&](const ReadoutPlan& readout, std::span<const int32_t>, double* p,
                                const Recorded<double>* recorded) {
          if (readout.purpose == ReadoutPurpose::kVerify) alive = ++verdicts < length;
          ScriptedDraw draw{&enumerator, {}};
          return DecideByCascade(readout, p, recorded, draw);
        });
        LoopSpec decoder(request, model.spec(), backend.options(), ledger, cost);
        DriveCounting(s, backend, decoder, plan, alive, run);
        ++run.paths;
        run.Add(decoder);
        const double weight = from.weight * enumerator.weight();
        if (decoder.finished()) {
          texts[TextOf(decoder)] += weight;
        } else {
          Waypoint& to = there[StateOf(decoder)];
          to.weight += weight;
          to.path = enumerator.path();
        }
      } while (enumerator.Next());
    }
    here = std::move(there);
  }
  EXPECT_EQ(ledger.cells().available(), 64);
  EXPECT_EQ(ledger.pages().available(), backend.pages());
  return texts;
}

Tally ExpectLosslessInFull(const Setting& s, uint64_t seed) {
  FakeModel model(seed, s.shape, s.recurrence);
  std::map<std::vector<int32_t>, double> targets;
  std::vector<int32_t> text;
  Targets(s, model, text, 1.0, targets);
  Tally run;
  std::map<std::vector<int32_t>, double> found = AllTexts(s, model, run);
  for (const auto& [sequence, target] : targets)
    EXPECT_NEAR(found[sequence], target, 1e-12) << Text(s) << fmt::format(" text {}", sequence);
  for (const auto& [sequence, probability] : found)
    EXPECT_TRUE(targets.contains(sequence)) << Text(s) << fmt::format(" text {}", sequence);
  CheckGate(s, run);
  return run;
}

// Every shape, variant and depth set at every budget.
void InFull(std::span<const FakeShape> shapes, const DepthSets& depth_sets,
            std::initializer_list<int> budgets) {
  Tally all;
  for (const FakeShape shape : shapes) {
    for (const LaterProposal later : kVariants) {
      uint64_t seed = 50;
      for (const auto& [depths, r] : depth_sets) {
        ++seed;
        for (const int rows : budgets) {
          all.Add(ExpectLosslessInFull({shape, depths, r, later, rows}, seed));
        }
      }
    }
  }
  std::printf("%lld paths, %lld gates open, %lld closed, tokens by fallback and proposal %s\n",
              static_cast<long long>(all.paths), static_cast<long long>(all.gate_opened),
              static_cast<long long>(all.gate_closed), fmt::format("{}", all.sources).c_str());
  // The cases were not all decided in one way.
  for (size_t i = 0; i <= depth_sets[0].first.size(); ++i) EXPECT_GT(all.sources[i], 0) << i;
}

TEST(FullEnumeration, NoProposals) {
  InFull(kShapes, {{{}, 4}}, {0});
}

TEST(FullEnumeration, OneProposal) {
  InFull(kShapes, {{{1}, 4}, {{2}, 4}, {{3}, 4}, {{3}, 5}}, {0, 1, 2, 5});
}

// Multiples and not, adjacent and apart.
TEST(FullEnumeration, TwoProposals) {
  InFull(kShapes, {{{2, 3}, 4}, {{1, 2}, 3}, {{2, 3}, 5}}, {0, 1, 2});
}
TEST(LongFullEnumeration, TwoProposals) {
  InFull(kShapes, {{{1, 3}, 4}, {{2, 4}, 6}, {{2, 6}, 8}, {{3, 4}, 5}}, {0, 1, 2, 3});
}
TEST(LongFullEnumeration, TwoProposalsInLargeTrees) {
  InFull(kShapes, {{{1, 2}, 4}, {{1, 4}, 7}}, {0, 1, 2, 3});
}

TEST(FullEnumeration, ThreeProposals) {
  InFull(kShapes, {{{2, 3, 4}, 5}, {{1, 2, 3}, 4}}, {1, 2});
}
TEST(FullEnumeration, ThreeProposalsOfFewTokens) {
  InFull(kNarrow, {{{2, 3, 4}, 5}, {{1, 2, 3}, 4}, {{1, 2, 4}, 6}, {{2, 3, 5}, 7}}, {0, 5});
}
TEST(LongFullEnumeration, ThreeProposals) {
  InFull(kShapes, {{{2, 3, 4}, 5}}, {0, 3});
}

// Generations that wait and pass together, so that several verdicts come in one step, and budgets
// that make some of them pause.
TEST(FullEnumeration, Groups) {
  Tally all;
  for (const FakeShape shape : {FakeShape::kSparse, FakeShape::kOneTokenDraft, FakeShape::kNear}) {
    for (const LaterProposal later : kVariants) {
      for (const int group : {2, 3}) {
        for (const int rows : {0, 2}) {
          all.Add(ExpectLosslessInFull({shape, {1}, 4, later, rows, {}, group}, 60));
          all.Add(ExpectLosslessInFull({shape, {1, 2}, 3, later, rows, {}, group}, 61));
          all.Add(ExpectLosslessInFull({shape, {2, 3}, 5, later, rows, {1}, group}, 62));
        }
      }
    }
  }
  EXPECT_GT(all.sources[2], 0);
  EXPECT_GT(all.several, 0);
  EXPECT_GT(all.paused, 0);
}

// Whatever else is chosen: branches that pause and go on, or go and come back, with and without
// groups.
TEST(FullEnumeration, PausesAndEvictions) {
  Tally all;
  for (const FakeShape shape : {FakeShape::kSparse, FakeShape::kOneTokenDraft}) {
    for (const LaterProposal later : kVariants) {
      for (const uint64_t pauses : {1, 2, 3}) {
        const int group = 1 + static_cast<int>(pauses % 2);
        all.Add(ExpectLosslessInFull({shape, {1}, 4, later, 0, {}, group, pauses}, 70));
        all.Add(ExpectLosslessInFull({shape, {1, 2}, 3, later, 0, {}, group, pauses}, 71));
        all.Add(ExpectLosslessInFull({shape, {2, 3}, 5, later, 0, {1}, group, pauses}, 72));
      }
    }
  }
  EXPECT_GT(all.sources[2], 0);
  EXPECT_GT(all.several, 0);
  EXPECT_GT(all.paused, 0);
  EXPECT_GT(all.evicted, 0);
  std::printf("%lld paths, steps with several verdicts %lld, with pauses %lld, evictions %lld\n",
              static_cast<long long>(all.paths), static_cast<long long>(all.several),
              static_cast<long long>(all.paused), static_cast<long long>(all.evicted));
}

// Where C is dear and d does not divide R, the root waits until a draft's readout is due.
TEST(FullEnumeration, LastReadoutsThatWait) {
  Tally all;
  for (const FakeShape shape : {FakeShape::kSparse, FakeShape::kOneTokenDraft, FakeShape::kNear}) {
    for (const LaterProposal later : kVariants) {
      const auto add = [&](const std::vector<int>& depths, int r, int rows,
                           const std::vector<int32_t>& stops, uint64_t seed) {
        Setting setting = {shape, depths, r, later, rows, stops};
        setting.readout_cost = 2.4;
        all.Add(ExpectLosslessInFull(setting, seed));
      };
      add({2}, 3, 0, {}, 90);
      add({2}, 5, 0, {1}, 91);
      add({3}, 4, 2, {}, 92);
      add({3}, 5, 0, {}, 93);
      if (shape != FakeShape::kNear) add({2, 3}, 5, 0, {1}, 94);
    }
  }
  EXPECT_GT(all.sources[2], 0);
  EXPECT_GT(all.waited, 0);
  std::printf("%lld paths, steps in which the root waited %lld\n",
              static_cast<long long>(all.paths), static_cast<long long>(all.waited));
}

TEST(FullEnumeration, StopTokens) {
  for (const FakeShape shape :
       {FakeShape::kRandom, FakeShape::kSparse, FakeShape::kOneTokenDraft, FakeShape::kNear}) {
    for (const LaterProposal later : kVariants) {
      ExpectLosslessInFull({shape, {3}, 5, later, 0, {1}}, 40);
      ExpectLosslessInFull({shape, {1, 2}, 3, later, 0, {2}}, 41);
      ExpectLosslessInFull({shape, {1, 3}, 5, later, 2, {0, 4}}, 42);
    }
  }
  // Every token ends the text: one token each.
  ExpectLosslessInFull(
      {FakeShape::kRandom, {1, 2}, 4, LaterProposal::kGatedResidual, 0, {0, 1, 2, 3, 4}}, 43);
}

// ---- Under a grammar ----

// Every draft, residual and target is masked by the state of its own prefix: the law of the texts
// is the model's, renormalised over what is allowed at each place. Grammars in which the mask
// changes from token to token, tokens overlap, texts end early, and nothing but the end may follow.
const FakeGrammar kGrammars[] = {
    {{"a", "b", "ab", "c"}, "(ab|ba|c)+", ""},
    {{"a", "b", "ab", "c"}, "a?b?a?", ""},
    {{"a", "b", "ab", "c"}, "ab", ""},
    {{"a", "b", "ab", "c"}, "[abc]{1,5}", ""},
};

void UnderGrammars(std::span<const FakeGrammar> grammars, std::span<const FakeShape> shapes,
                   const DepthSets& depth_sets, std::initializer_list<int> groups) {
  Tally all;
  for (const FakeGrammar& grammar : grammars) {
    for (const FakeShape shape : shapes) {
      for (const LaterProposal later : kVariants) {
        uint64_t seed = 80;
        for (const auto& [depths, r] : depth_sets) {
          ++seed;
          for (const int group : groups)
            all.Add(
                ExpectLosslessInFull({shape, depths, r, later, 0, {4}, group, 0, &grammar}, seed));
        }
      }
    }
  }
  EXPECT_GT(all.sources[0], 0);
  EXPECT_GT(all.sources[1], 0);
  std::printf("%lld paths under grammars\n", static_cast<long long>(all.paths));
}

TEST(FullEnumeration, Grammars) {
  UnderGrammars(kGrammars, kShapes, {{{}, 3}, {{1}, 4}, {{1, 2}, 3}}, {1});
}
TEST(FullEnumeration, GrammarsInGroups) {
  UnderGrammars(kGrammars, kNarrow, {{{2}, 4}, {{2, 3}, 5}}, {2});
}
TEST(LongFullEnumeration, Grammars) {
  UnderGrammars(kGrammars, kShapes, {{{2}, 4}, {{1, 2}, 3}, {{2, 3}, 5}}, {1, 2});
}
TEST(FullEnumeration, GrammarsInSmallTreesOfThreeProposals) {
  UnderGrammars(kGrammars, kNarrow, {{{1, 2, 3}, 4}, {{1, 2, 4}, 6}}, {1});
}

// Free text up to a mark that is one token or several, or whose end and what follows it share a
// token: the grammar begins at every position that a draft can have.
const FakeGrammar kMarks[] = {
    {{"x", "</t>", "a", "b"}, "a|ba", "</t>"},
    {{"x", "</", "t>", "a"}, "a", "</t>"},
    {{"<", "/t>a", "/t>", "a"}, "aa?", "</t>"},
    {{"<", "/t>a", "/t>", "a"}, "aa?", "</t>", true},
};

TEST(FullEnumeration, GrammarsAfterAMark) {
  UnderGrammars(kMarks, kShapes, {{{}, 3}, {{1}, 4}}, {1, 2});
  UnderGrammars(kMarks, kNarrow, {{{1, 2}, 3}}, {1});
}
TEST(LongFullEnumeration, GrammarsAfterAMark) {
  UnderGrammars(kMarks, kShapes, {{{1}, 4}, {{1, 2}, 3}, {{2, 3}, 5}}, {1, 2});
}

}  // namespace
}  // namespace loopspec

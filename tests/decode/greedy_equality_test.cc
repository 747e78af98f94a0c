// The promise, on real models: LoopSpec writes what autoregressive decoding writes, and the logits
// that verify each token are the same bits. Coupled sampling likewise; cascade sampling is the same
// text at every row budget and as likely as plain samples.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "tests/support/run_request.h"
#include "tests/support/verdicts.h"
#include "text/tokenizer.h"

namespace loopspec {
namespace {

constexpr int kBudgets[] = {1, 2, 5, 0};

// What was compared over the whole run, said at its end.
struct Totals : testing::Environment {
  int64_t texts = 0, tokens = 0, logits = 0;
  void TearDown() override {
    std::printf("in all: %lld texts, %lld tokens, %lld logits equal\n",
                static_cast<long long>(texts), static_cast<long long>(tokens),
                static_cast<long long>(logits));
  }
};
Totals* const totals =
    static_cast<Totals*>(testing::AddGlobalTestEnvironment(new Totals));  // GoogleTest deletes it

// What one request gave: the tokens, and the bits of all logits that decided each.
struct Written {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logits;
  Statistics statistics;
};

void ExpectSame(const Written& ours, const Written& plain, int vocab, const std::string& where) {
  ASSERT_EQ(ours.tokens, plain.tokens) << where;
  ASSERT_EQ(ours.logits.size(), ours.tokens.size() * static_cast<size_t>(vocab)) << where;
  if (ours.logits != plain.logits) {
    const auto at = std::mismatch(ours.logits.begin(), ours.logits.end(), plain.logits.begin());
    const auto first = at.first - ours.logits.begin();
    FAIL() << fmt::format("{}: other bits behind the same tokens: token {} logit {} is {}, not {}",
                          where, first / vocab, first % vocab, std::bit_cast<float>(*at.first),
                          std::bit_cast<float>(*at.second));
  }
  ++totals->texts;
  totals->tokens += static_cast<int64_t>(ours.tokens.size());
  totals->logits += static_cast<int64_t>(ours.logits.size());
}

// The golden prompts, then word problems that the models have not seen. Models without a tokenizer
// get tokens that mean nothing.
std::vector<std::vector<int32_t>> Prompts(const Model& loaded, const std::string& model,
                                          size_t count) {
  std::vector<std::vector<int32_t>> prompts;
  if (!model.ends_with("-demo")) {
    for (size_t i = 0; i < std::max(count, size_t{4}); ++i)
      prompts.push_back(RandomTokens(loaded.spec, 5 + 29 * i % 70, static_cast<uint32_t>(i + 1)));
    return prompts;
  }
  prompts = DemoPrompts(model);
  const auto models = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models";
  std::ifstream problems(models / "heldout_problems.jsonl");
  const Tokenizer tokenizer = Tokenizer::FromFolder(models / model);
  for (std::string line; prompts.size() < count && std::getline(problems, line);) {
    const Json problem = Json::parse(line);
    prompts.push_back(tokenizer.Encode(
        fmt::format("Question: {}\nAnswer:", problem["question"].get<std::string>())));
  }
  LOOPSPEC_CHECK(prompts.size() >= count);
  return prompts;
}

class Subject {
 public:
  Subject(const std::string& name, int recurrence, const std::vector<std::vector<int>>& depth_sets,
          size_t prompts, ComputeMode compute = ComputeMode::kAuto, int threads = 1,
          const StepCost& cost = {})
      : model_(LoadTestModel(name, recurrence)), prompts_(Prompts(model_, name, prompts)) {
    std::set<int> readouts = {model_.spec.recurrence};
    for (const auto& depths : depth_sets) readouts.insert(depths.begin(), depths.end());
    BackendOptions options;
    options.readout_depths.assign(readouts.begin(), readouts.end());
    options.kv_positions = 1024;
    options.compute = compute;
    options.threads = threads;  // one, so that tests side by side do not wait for each other
    backend_ = MakeTestBackend(model_, options);
    scheduler_ = std::make_unique<Scheduler>(*backend_, OneAtATime(cost));
  }

  // `before_step` may choose other rows.
  Written Run(ResolvedRequest request,
              const std::function<void(LoopSpec& decoder)>& before_step = {}) {
    std::vector<float> logits(static_cast<size_t>(vocab()));
    std::vector<std::vector<uint32_t>> recorded;
    VerdictLog log;
    request.laboratory.before_step = before_step;
    request.laboratory.after_step = [&](const StepPlan& plan, const StepResult&) {
      log.Step(plan, [&](int readout) {
        backend_->ReadLogits(readout, logits);
        recorded.emplace_back(logits.size());
        std::memcpy(recorded.back().data(), logits.data(), logits.size() * sizeof(float));
      });
    };
    const Choice result = RunRequest(*scheduler_, request);
    Written written;
    std::vector<int32_t> text = request.prompt;
    for (const Token& token : result.tokens) written.tokens.push_back(token.id);
    text.insert(text.end(), written.tokens.begin(), written.tokens.end());
    for (const int number : log.Committed(text, request.prompt.size())) {
      LOOPSPEC_CHECK(number >= 0);
      const std::vector<uint32_t>& bits = recorded[static_cast<size_t>(number)];
      written.logits.insert(written.logits.end(), bits.begin(), bits.end());
    }
    written.statistics = result.statistics;
    return written;
  }

  ResolvedRequest Request(size_t prompt, int max_tokens) const {
    ResolvedRequest request;
    request.prompt = prompts_[prompt % prompts_.size()];
    request.max_tokens = max_tokens;
    return request;
  }

  int vocab() const { return model_.spec.vocab; }
  Scheduler& scheduler() { return *scheduler_; }

 private:
  Model model_;
  std::vector<std::vector<int32_t>> prompts_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
};

struct ModelCase {
  const char* name;
  int recurrence;
  std::vector<std::vector<int>> depth_sets;  // k = 1, 2, 3; multiples and not
};

const ModelCase kOuro = {"ouro-demo", 0, {{1}, {2}, {3}, {1, 2}, {1, 3}, {2, 3}, {1, 2, 3}}};
const ModelCase kOuroDeeper = {
    "ouro-demo", 7, {{2}, {5}, {2, 4}, {2, 5}, {3, 6}, {1, 2, 4}, {2, 3, 5}}};
const ModelCase kRaven = {"raven-demo",
                          32,
                          {{2},
                           {4},
                           {5},
                           {31},
                           {1, 2},
                           {2, 8},
                           {2, 10},
                           {3, 7},
                           {4, 8},
                           {2, 8, 16},
                           {1, 2, 4},
                           {3, 10, 20}}};

// Random weights, whose drafts are right now and then.
const ModelCase kNanbeige = {"nanbeige-tiny-f32", 0, {{1}}};
const ModelCase kNanbeigeSkip = {"nanbeige-tiny-skipnorm-bf16", 6, {{2}, {5}, {1, 3}, {2, 4}}};
const ModelCase kHuginn = {"huginn-tiny-f32", 0, {{2}, {4}, {7}, {2, 4}, {3, 5}, {1, 2, 4}}};
const ModelCase kHuginnDeeper = {"huginn-tiny-f32", 32, {{4}, {4, 16}, {8, 16}, {2, 8, 16}}};

// Every set of depths there is below R = 5.
const std::vector<std::vector<int>> kBelowFive = {
    {1},    {2},    {3},       {4},       {1, 2},    {1, 3},    {1, 4},      {2, 3},
    {2, 4}, {3, 4}, {1, 2, 3}, {1, 2, 4}, {1, 3, 4}, {2, 3, 4}, {1, 2, 3, 4}};
const std::vector<std::vector<int>> kBelowFour = {{1}, {2}, {3}, {1, 2}, {1, 3}, {2, 3}, {1, 2, 3}};
const std::vector<std::vector<int>> kBelowEight = {{1},    {4},    {7},       {1, 2},   {2, 4},
                                                   {3, 5}, {2, 6}, {1, 2, 4}, {2, 4, 6}};

// Every depth set writes `tokens` tokens after each of `prompts` prompts, the budget changing from
// text to text: with four prompts and more, every depth set has had every budget. The same tokens
// and bits as without proposals.
void ExpectEqual(const ModelCase& which, const std::function<void(ResolvedRequest&, size_t)>& shape,
                 size_t prompts, int tokens, ComputeMode compute = ComputeMode::kAuto,
                 int threads = 1) {
  Subject subject(which.name, which.recurrence, which.depth_sets, prompts, compute, threads);
  int64_t steps = 0, expected_steps = 0;
  for (size_t p = 0; p < prompts; ++p) {
    ResolvedRequest request = subject.Request(p, tokens);
    shape(request, p);
    const Written plain = subject.Run(request);
    ASSERT_EQ(plain.tokens.size(), static_cast<size_t>(tokens));
    for (size_t d = 0; d < which.depth_sets.size(); ++d) {
      request.depths = which.depth_sets[d];
      request.max_rows = kBudgets[(p + d) % std::size(kBudgets)];
      const Written ours = subject.Run(request);
      ExpectSame(ours, plain, subject.vocab(),
                 fmt::format("{} prompt {} depths {} rows {}", which.name, p, request.depths,
                             request.max_rows));
      if (testing::Test::HasFatalFailure()) return;
      steps += ours.statistics.recurrences;
      expected_steps += plain.statistics.recurrences;
    }
  }
  EXPECT_LT(steps, expected_steps) << "nothing was ever accepted";
  std::printf("%s: %zu depth sets, %zu tokens each, %.2f times fewer recurrences\n", which.name,
              which.depth_sets.size(), prompts * static_cast<size_t>(tokens),
              static_cast<double>(expected_steps) / static_cast<double>(steps));
}

void Greedy(ResolvedRequest&, size_t) {}

void Penalised(ResolvedRequest& request, size_t) {
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.presence_penalty = 0.3f;
  request.sampling.frequency_penalty = 0.2f;
  request.sampling.bias = {{10, 2.0f}, {300, -4.0f}, {17, 1.0f}};
}

void Coupled(ResolvedRequest& request, size_t prompt) {
  constexpr float kTemperatures[] = {0.7f, 1.0f, 1.5f, 0.3f};
  request.sampling.sampler = Sampler::kCoupled;
  // Not in step with the budgets.
  request.sampling.temperature = kTemperatures[(prompt + prompt / 4) % std::size(kTemperatures)];
  request.seed = 1000 + prompt;
}

void CoupledFiltered(ResolvedRequest& request, size_t prompt) {
  Coupled(request, prompt);
  Penalised(request, prompt);
  request.sampling.top_k = 40;
  request.sampling.top_p = 0.9f;
  request.sampling.min_p = 0.01f;
}

TEST(GreedyEquality, Ouro) {
  ExpectEqual(kOuro, Greedy, 1, 24);
}
TEST(GreedyEquality, OuroDeeper) {
  ExpectEqual(kOuroDeeper, Greedy, 1, 16);
}
TEST(GreedyEquality, OuroFloat32) {
  ExpectEqual(kOuro, Greedy, 1, 16, ComputeMode::kF32);
}
TEST(GreedyEquality, Raven) {
  ExpectEqual(kRaven, Greedy, 1, 16);
}
TEST(GreedyEquality, RavenFloat32) {
  ExpectEqual({"raven-demo", 8, {{2}, {2, 4}, {1, 2, 4}, {3, 5}}}, Greedy, 1, 20,
              ComputeMode::kF32);
}
TEST(GreedyEquality, Nanbeige) {
  ExpectEqual(kNanbeige, Greedy, 4, 24, ComputeMode::kF32);
}
TEST(GreedyEquality, NanbeigeSkipsTheLoopNorm) {
  ExpectEqual(kNanbeigeSkip, Greedy, 2, 24, ComputeMode::kBF16, 2);
}
TEST(GreedyEquality, Huginn) {
  ExpectEqual(kHuginn, Greedy, 2, 24, ComputeMode::kF32);
}
TEST(GreedyEquality, HuginnDeeper) {
  ExpectEqual(kHuginnDeeper, Greedy, 2, 24, ComputeMode::kBF16, 2);
}
TEST(GreedyEquality, IfmPart2) {
  ExpectEqual({"ifm fixed", 0, kBelowFive}, Greedy, 2, 24, ComputeMode::kF32);
  ExpectEqual({"ifm linear", 0, kBelowFive}, Greedy, 2, 24, ComputeMode::kBF16, 2);
  for (const char* name : {"ifm parcae", "ifm orthoinj"})
    ExpectEqual({name, 0, kBelowFive}, Greedy, 2, 24);
}
TEST(GreedyEquality, IfmPart1) {
  ExpectEqual({"ifm ouro", 0, kBelowFour}, Greedy, 2, 24, ComputeMode::kF32);
  ExpectEqual({"ifm raw-injection", 0, kBelowFour}, Greedy, 2, 24, ComputeMode::kBF16, 2);
  ExpectEqual({"ifm huginn", 0, kBelowEight}, Greedy, 2, 24, ComputeMode::kF32);
  for (const char* name : {"ifm middle", "ifm middle-injection", "ifm zero-state"})
    ExpectEqual({name, 0, kBelowEight}, Greedy, 2, 24);
}
// Where C costs more than recurrences, the last readout waits for a draft's wherever d does not
// divide R: C runs in fewer steps, and the text is the same.
TEST(GreedyEquality, IfmWhereLastReadoutsWait) {
  StepCost dear;
  dear.readout = 2.4;
  for (const auto& [name, sets] :
       {std::pair("ifm fixed", std::vector<std::vector<int>>{{2}, {3}, {4}, {2, 4}, {3, 4}}),
        std::pair("ifm huginn", std::vector<std::vector<int>>{{3}, {5}, {3, 5}, {3, 6}})}) {
    Subject free(name, 0, sets, 4), waits(name, 0, sets, 4, ComputeMode::kAuto, 1, dear);
    for (const std::vector<int>& depths : sets) {
      int64_t at_once = 0, together = 0;
      for (size_t p = 0; p < 4; ++p) {
        ResolvedRequest request = free.Request(p, 24);
        if (p % 2 == 1) Coupled(request, p);
        const Written plain = free.Run(request);
        request.depths = depths;
        const std::string where = fmt::format("{} prompt {} depths {}", name, p, depths);
        const Written first = free.Run(request), second = waits.Run(request);
        ExpectSame(first, plain, free.vocab(), where);
        ExpectSame(second, plain, free.vocab(), where + " waiting");
        if (testing::Test::HasFatalFailure()) return;
        at_once += first.statistics.readout_steps;
        together += second.statistics.readout_steps;
      }
      EXPECT_LT(together, at_once) << name << " " << fmt::format("{}", depths);
    }
  }
}
TEST(GreedyEquality, IfmMixturesAndTwoStates) {
  ExpectEqual({"ifm moe-ouro", 0, kBelowFour}, Greedy, 2, 24, ComputeMode::kF32, 2);
  ExpectEqual({"ifm moe-huginn", 0, kBelowEight}, Greedy, 2, 24);
  for (const char* name : {"ifm shared-hl", "ifm split-hl", "ifm split-hl-x2"})
    ExpectEqual({name, 4, {{1}, {2}, {1, 2}}}, Greedy, 2, 24);
}
TEST(GreedyEquality, OuroOnTwoThreads) {
  ExpectEqual(kOuro, Greedy, 1, 16, ComputeMode::kAuto, 2);
}
TEST(GreedyEquality, RavenOnTwoThreads) {
  ExpectEqual({"raven-demo", 16, {{2, 4}, {3, 5}, {1, 2, 4}}}, Greedy, 1, 16, ComputeMode::kAuto,
              2);
}
TEST(GreedyEquality, OuroPenaltiesAndBias) {
  ExpectEqual(kOuro, Penalised, 1, 20);
}
TEST(CoupledEquality, Ouro) {
  ExpectEqual({"ouro-demo", 0, {{1}, {1, 2}, {2, 3}, {1, 2, 3}}}, Coupled, 2, 20);
}
TEST(CoupledEquality, OuroFiltered) {
  ExpectEqual({"ouro-demo", 0, {{1, 2}, {1, 2, 3}}}, CoupledFiltered, 2, 20);
}
TEST(CoupledEquality, Raven) {
  ExpectEqual({"raven-demo", 16, {{2, 4}, {3, 5}}}, Coupled, 2, 16);
}

TEST(CoupledEquality, Nanbeige) {
  ExpectEqual(kNanbeige, Coupled, 4, 20);
}
TEST(CoupledEquality, IfmPart2) {
  ExpectEqual({"ifm fixed", 0, kBelowFive}, Coupled, 2, 16);
}
TEST(CoupledEquality, Huginn) {
  ExpectEqual(kHuginnDeeper, Coupled, 2, 16);
}

// A request may ask for fewer recurrences: it is the model of that depth, beside others of full
// depth, and shares no cached keys with them.
void ExpectTheModelOfThatDepth(const char* name, int recurrence, int fewer,
                               const std::vector<int>& depths) {
  Subject whole(name, recurrence, {depths, {fewer}}, 1);
  Subject shallow(name, fewer, {depths}, 1);
  ResolvedRequest request = whole.Request(0, 24);
  const Written expected = shallow.Run(request);
  const Written before = whole.Run(request);
  for (const bool drafts : {false, true}) {
    ResolvedRequest asked = request;
    asked.recurrence = fewer;
    if (drafts) asked.depths = depths;
    ExpectSame(whole.Run(asked), expected, whole.vocab(), fmt::format("{} at {}", name, fewer));
    ExpectSame(whole.Run(request), before, whole.vocab(), fmt::format("{} after it", name));
  }
  for (const int unsuitable : {-1, recurrence + 1, fewer + 1}) {
    ResolvedRequest asked = request;
    asked.recurrence = unsuitable;
    EXPECT_THROW(whole.Run(asked), Error) << unsuitable;
  }
}
TEST(FewerRecurrences, AreTheModelOfThatDepth) {
  ExpectTheModelOfThatDepth("ouro-demo", 4, 2, {1});
  ExpectTheModelOfThatDepth("raven-demo", 16, 8, {2, 4});
  ExpectTheModelOfThatDepth("huginn-tiny-f32", 8, 5, {2});
}

// ---- Whatever is chosen to run ----

// Which of the live branches go, by what a step has drawn: each by itself, the likeliest within a
// budget, or all but those that wait at the first proposal depth for a group to gather.
std::vector<char> RandomFlags(const LoopSpec& decoder, const std::function<int(uint32_t)>& pick) {
  const std::span<const int32_t> active = decoder.tree().active();
  std::vector<char> advance(active.size(), 0);
  const int kind = pick(3);
  if (kind == 0) {
    for (char& flag : advance) flag = pick(3) > 0 ? 1 : 0;
  } else if (kind == 1) {
    std::vector<size_t> order(active.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return decoder.tree()[active[a]].reach > decoder.tree()[active[b]].reach;
    });
    const auto budget = static_cast<size_t>(1 + pick(8));
    for (size_t i = 0; i < std::min(budget, order.size()); ++i) advance[order[i]] = 1;
  } else {
    const int first = decoder.depths().empty() ? 0 : decoder.depths()[0];
    const bool gathered = pick(1 + static_cast<uint32_t>(pick(5))) == 0;
    for (size_t i = 0; i < active.size(); ++i)
      advance[i] = gathered || decoder.tree()[active[i]].depth != first ? 1 : 0;
  }
  return advance;
}

// Draws a choice of rows for every step: budgets, groups and pauses change from one to the next,
// and now and then a branch is given up.
std::function<void(LoopSpec&)> RandomChoice(uint32_t seed) {
  auto random = std::make_shared<std::mt19937>(seed);
  return [random](LoopSpec& decoder) {
    const auto pick = [&](uint32_t n) { return static_cast<int>((*random)() % n); };
    if (decoder.tree().size() > 1 && pick(4) == 0) {
      const int place = 1 + pick(static_cast<uint32_t>(decoder.tree().size()) - 1);
      const int32_t branch = decoder.tree().active()[static_cast<size_t>(place)];
      if (branch != decoder.tree().root()) decoder.Evict(branch);
    }
    std::vector<char> advance = RandomFlags(decoder, pick);
    // The root comes first and never passes anybody: with it the step is not empty.
    if (pick(8) > 0 || std::find(advance.begin(), advance.end(), 1) == advance.end())
      advance[0] = 1;
    decoder.Choose(advance);
    const std::span<const int32_t> active = decoder.tree().active();
    if (std::none_of(active.begin(), active.end(),
                     [&](int32_t b) { return decoder.tree()[b].advancing; })) {
      advance.assign(advance.size(), 1);
      decoder.Choose(advance);
    }
  };
}

// Groups, budgets, early children, and choices drawn at random in every step: the same bits.
void ExpectEqualHoweverChosen(const ModelCase& which,
                              const std::function<void(ResolvedRequest&, size_t)>& shape,
                              size_t prompts, int tokens, int threads) {
  constexpr int kGroups[] = {1, 2, 3, 5, 0};
  Subject subject(which.name, which.recurrence, which.depth_sets, prompts, ComputeMode::kAuto,
                  threads);
  int64_t adopted = 0;
  uint32_t round = 0;
  for (size_t p = 0; p < prompts; ++p) {
    ResolvedRequest request = subject.Request(p, tokens);
    shape(request, p);
    const Written plain = subject.Run(request);
    request.guesses = true;
    ExpectSame(subject.Run(request), plain, subject.vocab(), "lookup");
    for (const std::vector<int>& depths : which.depth_sets) {
      for (const int group : kGroups) {
        ++round;
        request.depths = depths;
        request.group = group;
        request.guesses = round % 2 == 0;
        request.max_rows = kBudgets[round % std::size(kBudgets)];
        const bool random = round % 3 == 0;
        const Written ours =
            random ? subject.Run(request, RandomChoice(round)) : subject.Run(request);
        ExpectSame(
            ours, plain, subject.vocab(),
            fmt::format("{} prompt {} depths {} group {} rows {} early {} random {}", which.name, p,
                        depths, group, request.max_rows, round % 2 == 0, random));
        if (testing::Test::HasFatalFailure()) return;
        adopted += ours.statistics.guesses_adopted;
      }
    }
  }
  EXPECT_GT(adopted, 0) << "no guess was ever right";
}

TEST(RowChoiceEquality, Ouro) {
  ExpectEqualHoweverChosen(kOuro, Greedy, 1, 12, 1);
}
TEST(RowChoiceEquality, OuroOnTwoThreads) {
  ExpectEqualHoweverChosen({"ouro-demo", 0, {{1, 2}, {2, 3}}}, Greedy, 1, 16, 2);
}
TEST(RowChoiceEquality, Raven) {
  ExpectEqualHoweverChosen({"raven-demo", 16, {{4}, {2, 4}, {1, 2, 4}}}, Greedy, 1, 24, 1);
}
TEST(RowChoiceEquality, OuroCoupled) {
  ExpectEqualHoweverChosen({"ouro-demo", 0, {{1, 2}, {1, 2, 3}}}, CoupledFiltered, 2, 12, 1);
}
TEST(RowChoiceEquality, Nanbeige) {
  ExpectEqualHoweverChosen(kNanbeige, Greedy, 2, 32, 1);
}
TEST(RowChoiceEquality, Huginn) {
  ExpectEqualHoweverChosen({"huginn-tiny-f32", 0, {{2}, {2, 4}, {1, 2, 4}}}, Greedy, 2, 64, 2);
}
TEST(RowChoiceEquality, IfmPart2) {
  ExpectEqualHoweverChosen({"ifm fixed", 0, {{2}, {1, 3}, {1, 2, 4}}}, Greedy, 2, 64, 2);
}
TEST(RowChoiceEqualityLong, Ouro) {
  ExpectEqualHoweverChosen(kOuro, Greedy, 8, 150, 1);
}
TEST(RowChoiceEqualityLong, OuroDeeper) {
  ExpectEqualHoweverChosen(kOuroDeeper, Greedy, 4, 150, 2);
}
TEST(RowChoiceEqualityLong, Raven) {
  ExpectEqualHoweverChosen(kRaven, Greedy, 4, 100, 1);
}
TEST(RowChoiceEqualityLong, RavenCoupled) {
  ExpectEqualHoweverChosen(kRaven, Coupled, 4, 60, 2);
}

// Ten thousand tokens for each depth set: fifty prompts of two hundred.
TEST(GreedyEqualityLong, Ouro) {
  ExpectEqual(kOuro, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, OuroDeeper) {
  ExpectEqual(kOuroDeeper, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, Raven) {
  ExpectEqual(kRaven, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, Huginn) {
  ExpectEqual(kHuginnDeeper, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, IfmPart1) {
  ExpectEqual({"ifm ouro", 0, kBelowFour}, Greedy, 50, 200);
  ExpectEqual({"ifm huginn", 0, kBelowEight}, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, IfmPart2) {
  ExpectEqual({"ifm fixed", 0, kBelowFive}, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, Nanbeige) {
  ExpectEqual(kNanbeige, Greedy, 50, 200);
}
TEST(GreedyEqualityLong, OuroPenaltiesAndBias) {
  ExpectEqual(kOuro, Penalised, 8, 200);
}
TEST(CoupledEqualityLong, Ouro) {
  ExpectEqual(kOuro, Coupled, 16, 200);
}
TEST(CoupledEqualityLong, OuroFiltered) {
  ExpectEqual(kOuroDeeper, CoupledFiltered, 16, 100);
}
TEST(CoupledEqualityLong, Raven) {
  ExpectEqual(kRaven, Coupled, 16, 100);
}

// ---- Cascade sampling ----

void SameAtEveryBudget(const ModelCase& which, int tokens) {
  Subject subject(which.name, which.recurrence, which.depth_sets, 0);
  for (size_t d = 0; d < which.depth_sets.size(); ++d) {
    ResolvedRequest request = subject.Request(d, tokens);
    request.sampling.temperature = 1.0f;
    request.sampling.top_p = d % 2 == 0 ? 1.0f : 0.7f;
    request.sampling.later = static_cast<LaterProposal>(d % 3);
    request.seed = 7 + d;
    request.depths = which.depth_sets[d];
    Written first;
    uint32_t round = 0;
    for (const int budget : kBudgets) {
      request.max_rows = budget;
      request.group = static_cast<int>(round % 4);
      request.guesses = round % 2 == 1;
      const Written written =
          ++round % 3 == 0 ? subject.Run(request, RandomChoice(round)) : subject.Run(request);
      if (first.tokens.empty()) {
        first = written;
        continue;
      }
      ExpectSame(written, first, subject.vocab(),
                 fmt::format("{} depths {} rows {}", which.name, request.depths, budget));
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(written.statistics.accepted, first.statistics.accepted);
    }
  }
}

TEST(CascadeSampling, OuroSameTextAtEveryBudget) {
  SameAtEveryBudget({"ouro-demo", 0, {{1, 2}, {2}, {1, 2, 3}}}, 24);
}
TEST(CascadeSampling, RavenSameTextAtEveryBudget) {
  SameAtEveryBudget({"raven-demo", 16, {{2, 4}, {3, 5}}}, 16);
}
TEST(CascadeSamplingLong, OuroSameTextAtEveryBudget) {
  SameAtEveryBudget(kOuro, 150);
}
TEST(CascadeSamplingLong, RavenSameTextAtEveryBudget) {
  SameAtEveryBudget(kRaven, 60);
}

// Mean log-probability under the model of what was sampled, over many seeds, with its standard
// error.
struct Likelihood {
  double mean, error;
};

Likelihood MeanLogprob(Subject& subject, const std::vector<int>& depths, LaterProposal later,
                       int texts, int tokens, uint64_t seed) {
  double sum = 0, squares = 0;
  for (int i = 0; i < texts; ++i) {
    ResolvedRequest request = subject.Request(static_cast<size_t>(i), tokens);
    request.sampling.temperature = 1.0f;
    request.sampling.later = later;
    request.seed = seed + static_cast<uint64_t>(i);
    request.depths = depths;
    request.logprobs = 0;
    const Choice result = RunRequest(subject.scheduler(), request);
    double text = 0;
    for (const Token& token : result.tokens) text += static_cast<double>(token.logprob.value());
    text /= static_cast<double>(result.tokens.size());
    sum += text;
    squares += text * text;
  }
  const double mean = sum / texts;
  return {mean, std::sqrt((squares / texts - mean * mean) / (texts - 1))};
}

void ExpectSameLikelihood(int texts, int tokens, std::initializer_list<LaterProposal> variants) {
  Subject subject("ouro-demo", 0, {{1, 2}}, 0);
  const Likelihood plain =
      MeanLogprob(subject, {}, LaterProposal::kGatedResidual, texts, tokens, 1);
  for (const LaterProposal later : variants) {
    const Likelihood ours = MeanLogprob(subject, {1, 2}, later, texts, tokens, 100000);
    const double noise = std::hypot(plain.error, ours.error);
    EXPECT_LT(std::fabs(ours.mean - plain.mean), 4 * noise)
        << fmt::format("{} +- {} against {} +- {}", ours.mean, ours.error, plain.mean, plain.error);
    std::printf("mean log-probability %.4f +- %.4f, autoregressive %.4f +- %.4f\n", ours.mean,
                ours.error, plain.mean, plain.error);
  }
}

TEST(CascadeSampling, OuroAsLikelyAsPlainSamples) {
  ExpectSameLikelihood(32, 12, {LaterProposal::kGatedResidual});
}
TEST(CascadeSamplingLong, OuroAsLikelyAsPlainSamples) {
  ExpectSameLikelihood(
      400, 48,
      {LaterProposal::kGatedResidual, LaterProposal::kResidual, LaterProposal::kNonResidual});
}

}  // namespace
}  // namespace loopspec

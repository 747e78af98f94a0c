// Grammars on real models: LoopSpec writes what autoregressive decoding writes under the same
// masks, and every text is valid or the beginning of a valid one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/schedule/scheduler.h"
#include "engine/session.h"
#include "fields/grammar_fields.h"
#include "tests/support/device.h"
#include "tests/support/run_request.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

GrammarSource Schema(std::string text) {
  return {GrammarKind::kJsonSchema, std::move(text)};
}

const std::vector<GrammarSource>& Sources() {
  static const std::vector<GrammarSource> sources = {
      Schema(R"({"type": "object",
                 "properties": {"name": {"type": "string", "maxLength": 12},
                                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                "tags": {"type": "array", "maxItems": 3,
                                         "items": {"enum": ["red", "green", "blue"]}}},
                 "required": ["name", "age", "tags"], "additionalProperties": false})"),
      Schema(R"({"type": "object",
                 "properties": {"name": {"const": "get_weather"},
                                "arguments": {"type": "object",
                                              "properties": {"city": {"type": "string"},
                                                             "unit": {"enum": ["C", "F"]}},
                                              "required": ["city", "unit"],
                                              "additionalProperties": false}},
                 "required": ["name", "arguments"], "additionalProperties": false})"),
      JsonObjectGrammar(),
      {GrammarKind::kRegex, R"((yes|no|maybe), [0-9]{1,3} [a-z]+( [a-z]+){0,4}\.)"},
      {GrammarKind::kGbnf, "root ::= item+\nitem ::= \"- \" [a-zA-Z ]+ \"\\n\"\n"},
      ChoiceGrammar(std::vector<std::string>{"once upon a time", "once more", "(never)"}),
  };
  return sources;
}

// One model, whose requests run one at a time.
class Subject {
 public:
  Subject(const std::string& model, int recurrence, const std::vector<std::vector<int>>& depths,
          int64_t positions = 2048) {
    EngineOptions options;
    options.model = std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / model;
    options.recurrence = recurrence;
    options.depths = depths;
    options.device = test::TestDevice();
    options.threads = 1;
    options.kv_positions = positions;
    session_ = std::make_unique<Session>(options);
    SchedulerOptions one = OneAtATime();
    one.tokenizer = &session_->loaded().tokenizer();
    scheduler_ = std::make_unique<Scheduler>(session_->backend(), one);
  }

  Session& session() { return *session_; }
  Choice Run(const ResolvedRequest& request) { return RunRequest(*scheduler_, request); }

 private:
  std::unique_ptr<Session> session_;
  std::unique_ptr<Scheduler> scheduler_;
};

struct Written {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kNone;
  bool operator==(const Written&) const = default;
};

Written Told(const Choice& choice) {
  Written written;
  for (const Token& token : choice.tokens) {
    written.ids.push_back(token.id);
    written.logprobs.push_back(token.logprob.value());
  }
  written.reason = choice.statistics.finish_reason;
  return written;
}

// Valid where it has ended by itself, else the beginning of something valid.
void ExpectAllowed(grammar::State state, const Choice& choice, const std::string& where) {
  for (const Token& token : choice.tokens) {
    ASSERT_TRUE(state.AdvanceToken(token.id)) << where << ": " << choice.text;
    EXPECT_LE(token.logprob.value(), 0.0f);
    for (const Alternative& entry : token.top) EXPECT_TRUE(std::isfinite(entry.logprob)) << where;
  }
  EXPECT_EQ(state.ended(), choice.statistics.finish_reason == FinishReason::kStop) << where;
}

using Shape = void (*)(SamplingParams&);
void Greedy(SamplingParams&) {}
void GreedyPenalised(SamplingParams& sampling) {
  sampling.repetition_penalty = 1.3f;
  sampling.frequency_penalty = 0.5f;
  sampling.bias = {{10, 2.0f}, {300, 5.0f}, {17, 100.0f}};
}
void Coupled(SamplingParams& sampling) {
  sampling.temperature = 1.0f;
  sampling.sampler = Sampler::kCoupled;
}
void CoupledFiltered(SamplingParams& sampling) {
  Coupled(sampling);
  GreedyPenalised(sampling);
  sampling.temperature = 1.4f;
  sampling.top_k = 40;
  sampling.top_p = 0.9f;
  sampling.top_n_sigma = 3.0f;
}
void Cascade(SamplingParams& sampling) {
  sampling.temperature = 1.0f;
}

struct Case {
  const char* model;
  int recurrence;
  std::vector<std::vector<int>> depth_sets;
};
const Case kOuro = {"ouro-demo", 0, {{1}, {2}, {1, 2}, {2, 3}, {1, 2, 3}}};
const Case kRaven = {"raven-demo", 8, {{2}, {2, 4}, {3, 5}, {1, 2, 4}}};

// `mark`: the grammar starts after it; with `may_end` the text may end without it.
void ExpectEqual(const Case& which, std::span<const GrammarSource> sources,
                 std::span<const Shape> shapes, int tokens, const std::string& mark = "",
                 int seeds = 1, bool may_end = false) {
  Subject subject(which.model, which.recurrence, which.depth_sets);
  int64_t texts = 0, written = 0, ended = 0, guessed = 0;
  uint32_t round = 0;
  for (const GrammarSource& source : sources) {
    for (const Shape shape : shapes) {
      for (int seed = 0; seed < seeds; ++seed) {
        Request request;
        request.prompt = "Once upon a time there was a cat. The cat was";
        request.grammar = source;
        request.sampling.emplace();
        shape(*request.sampling);
        request.seed = 7 + static_cast<uint64_t>(seed);
        request.max_tokens = tokens;
        request.logprobs = 2;
        request.decoding = Decoding::kAutoregressive;
        ResolvedRequest plain = subject.session().Resolve(request);
        const grammar::Mark marks[] = {{mark, may_end}};
        if (!mark.empty())
          plain.grammar = subject.session().grammars().Get(source)->StartAfter(marks);
        const Choice expected = subject.Run(plain);
        ExpectAllowed(*plain.grammar, expected, source.text);
        ended += expected.statistics.finish_reason == FinishReason::kStop ? 1 : 0;
        const bool cascade = plain.sampling.needs_distributions();
        ResolvedRequest ours = plain;
        ours.guesses = true;
        if (!cascade) {
          EXPECT_EQ(Told(subject.Run(ours)), Told(expected)) << source.text;
        }
        for (const std::vector<int>& depths : which.depth_sets) {
          Written first;  // cascade's text depends on the depths
          for (const int rows : cascade ? std::vector{0, 2} : std::vector{0}) {
            ++round;
            ours.depths = depths;
            ours.max_rows = cascade ? rows : std::array{0, 1, 3}[round % 3];
            ours.group = static_cast<int>(round % 3);
            ours.guesses = round % 4 != 0;
            const Choice choice = subject.Run(ours);
            const std::string where = fmt::format("{} {} depths {} rows {} mark {}", which.model,
                                                  source.text, depths, ours.max_rows, mark);
            ExpectAllowed(*plain.grammar, choice, where);
            if (source.kind == GrammarKind::kJsonSchema && mark.empty() &&
                choice.statistics.finish_reason == FinishReason::kStop) {
              EXPECT_NO_THROW(ParseJson(choice.text, where)) << choice.text;
            }
            if (rows == 0) first = cascade ? Told(choice) : Told(expected);
            ASSERT_EQ(Told(choice), first) << where << ": " << choice.text;
            ++texts;
            written += std::ssize(choice.tokens);
            guessed += choice.statistics.early;
          }
        }
      }
    }
  }
  EXPECT_GT(guessed, 0);
  std::printf(
      "%s: %lld texts, %lld tokens, %lld of them begun on a guess; %lld plain texts ended\n",
      which.model, static_cast<long long>(texts), static_cast<long long>(written),
      static_cast<long long>(guessed), static_cast<long long>(ended));
}

constexpr Shape kEveryShape[] = {Greedy, GreedyPenalised, Coupled, CoupledFiltered, Cascade};
// A schema, a regular expression, a grammar.
std::vector<GrammarSource> FewSources() {
  return {Sources()[0], Sources()[3], Sources()[4]};
}
constexpr Shape kFewShapes[] = {Greedy, CoupledFiltered, Cascade};

TEST(MaskedEquality, Ouro) {
  ExpectEqual({"ouro-demo", 0, {{1, 2, 3}}}, FewSources(), kFewShapes, 14);
}
TEST(MaskedEquality, Raven) {
  ExpectEqual({"raven-demo", 8, {{2, 4}}}, FewSources(), kFewShapes, 10);
}
// The grammar starts in the middle of the text, at whatever draft that falls.
TEST(MaskedEquality, AfterAMark) {
  ExpectEqual({"ouro-demo", 0, {{1, 2}}}, FewSources(), kFewShapes, 14, "a");
}
TEST(MaskedEquality, AfterAMarkThatNeedNotCome) {
  ExpectEqual({"ouro-demo", 0, {{1, 2}}}, FewSources(), kFewShapes, 14, "a", 1, true);
}
TEST(MaskedEqualityLong, Ouro) {
  ExpectEqual(kOuro, Sources(), kEveryShape, 120, "", 4);
}
TEST(MaskedEqualityLong, Raven) {
  ExpectEqual(kRaven, Sources(), kEveryShape, 80, "", 2);
}
TEST(MaskedEqualityLong, OuroAfterAMark) {
  for (const char* mark : {"a", " the", "</think>", "e.", ". The"})
    ExpectEqual(kOuro, Sources(), kEveryShape, 80, mark, 2);
}

// Many at once over too few pages: those that were preempted go on in the state that they had.
TEST(MaskedEquality, BesideOthersAndPreempted) {
  Subject subject("ouro-demo", 0, {{1, 2}}, 3 * kPageSize);
  std::vector<ResolvedRequest> requests;
  std::vector<Written> alone;
  const GrammarSource words = {GrammarKind::kRegex, "([a-z]{1,6}[ ,]){200,300}"};
  for (const Shape shape : {Greedy, CoupledFiltered}) {
    Request request;
    request.prompt = "Once upon a time";
    request.grammar = words;
    request.sampling.emplace();
    shape(*request.sampling);
    request.seed = 3;
    request.max_tokens = 136;  // three pages each
    request.logprobs = 0;
    requests.push_back(subject.session().Resolve(request));
    alone.push_back(Told(subject.Run(requests.back())));
  }
  SchedulerOptions options;
  options.max_running = std::ssize(requests);
  Scheduler together(subject.session().backend(), options);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const ResolvedRequest& request : requests) streams.push_back(together.Submit(request));
  while (together.Step()) {
  }
  int preemptions = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    Written written;
    StreamEvent event;
    while (IsEvent(streams[i]->Next(event, std::chrono::milliseconds(0)))) {
      if (event.status != Stream::Status::kToken) continue;
      written.ids.push_back(event.token.id);
      written.logprobs.push_back(event.token.logprob.value());
    }
    written.reason = streams[i]->statistics(0).finish_reason;
    preemptions += streams[i]->statistics(0).preemptions;
    EXPECT_EQ(written, alone[i]) << requests[i].sampling.temperature;
  }
  EXPECT_GT(preemptions, 0);
}

// ---- The engine's part ----

TEST(Grammars, AreCompiledOnceForEachSource) {
  Subject subject("ouro-demo", 0, {{1}});
  Grammars& grammars = subject.session().grammars();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) grammars.Get(Sources()[0]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(grammars.compiled(), 1);
  for (int i = 0; i < 100; ++i) grammars.Get({GrammarKind::kRegex, fmt::format("a{{{}}}", i + 1)});
  EXPECT_EQ(grammars.compiled(), 101);
  grammars.Get(Sources()[0]);  // no more than a few are kept
  EXPECT_EQ(grammars.compiled(), 102);
}

// Those that were asked for last are kept, as far as their bytes go.
TEST(Grammars, AreKeptUpToABoundInBytes) {
  Subject subject("ouro-demo", 0, {{1}});
  const auto& loaded = subject.session().shared_loaded();
  const GrammarSource first = Sources()[3], second = Sources()[4];
  const auto compiled = [&](size_t most_bytes) {
    Grammars grammars(loaded, most_bytes);
    for (const GrammarSource& source : {first, second, first, second, second})
      grammars.StartAfter(std::vector<int32_t>{1}, source, false);
    return grammars.compiled();
  };
  EXPECT_EQ(compiled(1), 4);
  EXPECT_EQ(compiled(size_t{1} << 30), 2);
  Grammars grammars(loaded);
  const auto grammar = grammars.Get(first);
  const size_t before = grammar->memory();
  grammar::State state = grammar->Start();
  for (const char c : std::string("yes, 12 we")) {
    ASSERT_TRUE(state.Advance(std::string(1, c)));
    state.NextTokens();
  }
  EXPECT_GT(grammar->memory(), before);
}

// What cannot be enforced is an error, again and again, for whoever asks.
TEST(Grammars, FailClosed) {
  Subject subject("ouro-demo", 0, {{1}});
  Grammars& grammars = subject.session().grammars();
  const GrammarSource unsupported = Schema(R"({"type": "object", "minProperties": 3})");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(grammars.Get(unsupported), Error);
    EXPECT_THROW(grammars.Get({GrammarKind::kRegex, "("}), Error);
    EXPECT_THROW(grammars.Get({GrammarKind::kGbnf, "root ::= nothing"}), Error);
    EXPECT_THROW(grammars.Get(Schema("{")), Error);
  }
  GrammarSource loose = unsupported;
  loose.strict = false;
  EXPECT_EQ(grammars.Get(loose)->ignored(), std::vector<std::string>{"minProperties"});
}

// A model whose template has <think> may open its thinking itself, in a chat.
TEST(Grammars, ThinkingThatTheModelOpens) {
  const TemporaryFolder folder;
  const std::filesystem::path demo =
      std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models" / "ouro-demo";
  for (const auto& file : std::filesystem::directory_iterator(demo))
    std::filesystem::create_symlink(file.path(), folder.path() / file.path().filename());
  std::ofstream(folder.path() / "chat_template.jinja")
      << "{{ messages[0].content }}{% if open %}<think>{% endif %}";
  Subject subject(folder.path(), 0, {{1}});
  Request request;
  request.grammar = {GrammarKind::kRegex, "abc"};
  const auto takes = [&](const char* text) {
    grammar::State state = *subject.session().Resolve(request).grammar;
    return state.Advance(text) && state.MustEnd();
  };
  request.prompt = "Once";
  EXPECT_TRUE(takes("abc"));
  EXPECT_FALSE(takes("<think>x</think>abc"));
  request.grammar.thinking = true;
  EXPECT_TRUE(takes("abc"));
  EXPECT_TRUE(takes("<think>x</think>\nabc"));
  EXPECT_FALSE(takes("<think>abc"));
  request.prompt = "Once<think>\n\n</think>\n\n";  // switched off
  EXPECT_TRUE(takes("abc"));
  EXPECT_FALSE(takes("<think>x</think>abc"));
  request.grammar.thinking = false;
  request.prompt = "";
  request.messages = {{"user", "Once"}};
  EXPECT_TRUE(takes("abc"));
  EXPECT_TRUE(takes("<think>x</think>abc"));
  request.template_arguments = R"({"open": true})";
  EXPECT_FALSE(takes("abc"));
  EXPECT_TRUE(takes("x</think>abc"));
}

TEST(Grammars, OfARequest) {
  Subject subject("ouro-demo", 0, {{1}});
  Request request;
  request.prompt = "Once";
  EXPECT_FALSE(subject.session().Resolve(request).grammar);
  request.grammar = {GrammarKind::kRegex, "abc"};
  EXPECT_TRUE(subject.session().Resolve(request).grammar->Advance("abc"));
  EXPECT_FALSE(subject.session().Resolve(request).grammar->Advance("x"));
  // Thinking is free.
  for (const char* prompt : {"Once<think>", "Once<think>\n\n"}) {
    request.prompt = prompt;
    grammar::State state = *subject.session().Resolve(request).grammar;
    EXPECT_TRUE(state.IsFree());
    EXPECT_TRUE(state.Advance("let me see </thin</think>\n\na"));
    EXPECT_FALSE(state.Advance("x"));
    EXPECT_TRUE(state.Advance("bc"));
    EXPECT_TRUE(state.MustEnd());
  }
  request.prompt = "Once<think>\n</think>\n";
  EXPECT_FALSE(subject.session().Resolve(request).grammar->IsFree());
  // A start of its own, after the thinking.
  request.grammar.after = "<call>";
  {
    grammar::State state = *subject.session().Resolve(request).grammar;
    EXPECT_TRUE(state.IsFree());
    EXPECT_TRUE(state.MayEnd());
    EXPECT_TRUE(state.Advance("x <call>ab"));
    EXPECT_FALSE(state.MayEnd());
    EXPECT_TRUE(state.Advance("c"));
    EXPECT_TRUE(state.MustEnd());
  }
  request.prompt = "Once<think>";
  grammar::State state = *subject.session().Resolve(request).grammar;
  EXPECT_FALSE(state.MayEnd());
  EXPECT_TRUE(state.Advance("<call>x"));
  EXPECT_FALSE(state.MayEnd());
  EXPECT_TRUE(state.Advance("</think>x"));
  EXPECT_TRUE(state.MayEnd());
  EXPECT_FALSE(state.Advance("<call>x"));
  EXPECT_TRUE(state.Advance("<call>abc"));
  request.ignore_eos = true;
  EXPECT_THROW(subject.session().Resolve(request), Error);
}

}  // namespace
}  // namespace loopspec

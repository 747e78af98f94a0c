// The same seed gives the same text whatever the prefix cache holds: random sequences of requests
// over one engine, each compared with the same request on a fresh one.
//
// Requests go on from texts that others wrote, and those wrote them in every way there is: without
// drafts, at other proposal depths, at fewer recurrences, with guesses, with drafts that were left
// out under load, as several choices, preempted in between, cancelled in the middle.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/load/loaded_model.h"
#include "engine/session.h"
#include "loopspec/loopspec.h"
#include "tests/support/driver.h"
#include "tests/support/models.h"
#include "tests/support/sanitized.h"

namespace loopspec {
namespace {

// A model, the depths that its backend reads out, and what requests choose from.
struct Setup {
  std::string model;
  std::vector<int> readouts;
  std::vector<std::vector<int>> depths;
  int fewer;  // recurrences of a request that asks for fewer; above all proposal depths
  ConfigOverrides config;
  const char* plan = nullptr;  // of keys
};

const Setup kOuro = {"ouro-demo", {1, 2, 3, 4}, {{1, 2}, {1}, {2}}, 3, {}};
const Setup kRaven = {"raven-demo", {2, 4, 8, 16, 32}, {{2, 8}, {4}, {8}}, 16, {}};
const Setup kHuginn = {
    "huginn-tiny-f32", {1, 2, 4, 6, 8}, {{2, 4}, {1}, {4}}, 6, {{"block_size", "512"}}};

const Setup kHuginnByPlan = {"huginn-tiny-f32",       {1, 2, 4, 6, 8}, {{2, 4}, {1}, {4}}, 6,
                             {{"block_size", "512"}}, "int8*2,last"};
const Setup kHuginnByResiduals = {"huginn-tiny-f32",       {1, 2, 4, 6, 8},
                                  {{2, 4}, {1}, {4}},      6,
                                  {{"block_size", "512"}}, "int8,r5*2,r3,last,r2"};
const Setup kOuroByResiduals = {"ouro-demo", {1, 2, 3, 4}, {{1, 2}, {1}, {2}}, 3, {}, "r6,r4,r3"};
const Setup kOuroByPlan = {"ouro-demo", {1, 2, 3, 4}, {{1, 2}, {1}, {2}}, 3, {}, "int8,last"};

constexpr size_t kLongest = 4 * kPageSize;  // positions of a text

struct Text {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Text&) const = default;
};

class CacheSequences {
 public:
  explicit CacheSequences(const Setup& setup)
      : setup_(setup),
        loaded_(std::make_shared<const LoadedModel>(Load(setup), std::nullopt, SpecialTokens{},
                                                    std::nullopt)),
        fresh_(MakeTestBackend(loaded_->model(),
                               Options(2 * kMostChoices * static_cast<int64_t>(kLongest)))) {}

  // Runs sequences of about a dozen requests each until `requests` have been compared.
  void Run(uint32_t seed, int requests) {
    for (; compared_ < requests; ++seed) RunSequence(seed, requests);
  }

  // A text is written without drafts, or with drafts at `depths`; another of the cascade, whose
  // drafts are at the first depths of the setup, goes on from it. Returns how many tokens of it
  // were in the cache.
  int64_t GoOnFromTextWith(const std::vector<int>& depths) {
    const auto engine = MakeEngine(fresh_, 0, 0, {});
    Request first = Cascade(RandomTokens(loaded_->spec(), 30, 3), 40);
    if (depths.empty()) first.decoding = Decoding::kAutoregressive;
    if (!depths.empty()) first.depths = depths;
    Request next = Cascade(first.tokens, 16);
    for (const int32_t id : TextOf(engine->Generate(first).choices[0]).ids)
      next.tokens.push_back(id);
    next.depths = setup_.depths[0];
    const Result followed = engine->Generate(next);
    EXPECT_EQ(TextOf(followed.choices[0]),
              TextOf(MakeEngine(fresh_, 0, 0, {})->Generate(next).choices[0]));
    return followed.statistics().cached_tokens;
  }

  // Four texts that begin with the same 140 tokens, and the first answer's continuation: how many
  // tokens of each were in the cache. All are what they are alone.
  std::vector<int64_t> HitsOfABeginning() const {
    const auto engine =
        MakeEngine(MakeTestBackend(loaded_->model(), Options(40 * kPageSize)), 0, 0, {});
    std::vector<int64_t> hits;
    std::vector<int32_t> answered;
    const auto run = [&](const Request& request) {
      const Result result = engine->Generate(request);
      EXPECT_EQ(TextOf(result.choices[0]),
                TextOf(MakeEngine(fresh_, 0, 0, {})->Generate(request).choices[0]));
      hits.push_back(result.statistics().cached_tokens);
      return TextOf(result.choices[0]).ids;
    };
    for (uint32_t i = 0; i < 4; ++i) {
      Request request = Cascade(RandomTokens(loaded_->spec(), 140, 5), 50);
      for (const int32_t id : RandomTokens(loaded_->spec(), 70, 50 + i))
        request.tokens.push_back(id);
      const std::vector<int32_t> ids = run(request);
      if (i > 0) continue;
      answered = request.tokens;
      answered.insert(answered.end(), ids.begin(), ids.end());
    }
    run(Cascade(answered, 10));
    return hits;
  }

  int compared() const { return compared_; }
  int differ() const { return differ_; }
  int64_t hits() const { return hits_; }
  int64_t preemptions() const { return preemptions_; }

 private:
  static constexpr int kMostChoices = 3;

  static Model Load(const Setup& setup) {
    if (setup.config.empty()) return LoadTestModel(setup.model);
    return Model::Load(GoldenFolder() / setup.model, setup.config);
  }

  BackendOptions Options(int64_t positions) const {
    BackendOptions options;
    options.readout_depths = setup_.readouts;
    options.cells = 48;
    options.threads = 1;  // tests share the machine with others
    options.kv_positions = positions;
    if (setup_.plan != nullptr) {
      options.kv_type = KvType::kLoops;
      options.key_plan = SpannedKeyPlan::Parse(setup_.plan, loaded_->spec().recurrence);
      // Short of pages too: of a window's there are as many as one text needs.
      const KeptPlanes kept(loaded_->spec(), static_cast<int>(options.readout_depths.size()),
                            options.key_plan);
      const ModelSpec& spec = loaded_->spec();
      const int64_t page =
          kept.BytesPerPosition(spec.kv_heads * 2 * (spec.head_dim + 4)) * kPageSize;
      options.kv_memory = page * (positions / kPageSize + kept.window_pages());
    }
    return options;
  }

  // Rows cost as they do on a machine with few cores, so that drafts come and go with the load.
  static StepCost FewCores() {
    StepCost cost;
    cost.recurrence = {1, 1.3, 1.9, 3.6, 7.1, 14, 28};
    cost.readout = 0.3;
    cost.readout_row = 0.05;
    return cost;
  }

  std::unique_ptr<Engine> MakeEngine(std::shared_ptr<Backend> backend, int max_running, int chunk,
                                     const StepCost& cost) const {
    EngineOptions options;
    options.depths = setup_.depths;
    options.background = false;
    options.max_running = max_running;
    options.prefill_chunk = chunk;
    return std::make_unique<Engine>(std::make_unique<Session>(
        options, loaded_, SessionParts{.backend = std::move(backend), .cost = cost}));
  }

  static Request Cascade(std::vector<int32_t> tokens, int max_tokens) {
    Request request;
    request.tokens = std::move(tokens);
    request.max_tokens = max_tokens;
    request.seed = 11;
    request.ignore_eos = true;
    request.logprobs = 0;
    request.sampling.emplace();
    request.sampling->temperature = 1.0f;
    return request;
  }

  static Text TextOf(const Choice& choice) {
    Text text;
    for (const Token& token : choice.tokens) {
      text.ids.push_back(token.id);
      text.logprobs.push_back(*token.logprob);
    }
    return text;
  }

  // Goes on from one of the texts, mostly, or from a beginning of it.
  Request MakeRequest(std::mt19937& random, const std::vector<std::vector<int32_t>>& texts) {
    Request request = Cascade({}, 0);
    if (!texts.empty() && random() % 5 > 0) {
      request.tokens = texts[random() % texts.size()];
      if (random() % 4 == 0) request.tokens.resize(1 + random() % request.tokens.size());
    }
    const size_t own = request.tokens.empty() ? 20 + random() % 40 : random() % 20;
    for (const int32_t id : RandomTokens(loaded_->spec(), own, random()))
      request.tokens.push_back(id);
    request.tokens.resize(std::min(request.tokens.size(), kLongest - 32));
    // A few tokens, a page of them, or as many as a text may have, so that pages run out.
    const uint32_t length = random() % 8;
    const size_t most = kLongest - request.tokens.size();
    const size_t wanted = length < 4   ? 6 + random() % 12
                          : length < 7 ? 30 + random() % 40
                                       : kLongest;
    request.max_tokens = static_cast<int>(std::min(wanted, most));
    request.seed = random();
    request.guesses = random() % 2 == 0;
    if (random() % 6 == 0) request.recurrence = setup_.fewer;
    if (random() % 6 == 0) request.choices = 2 + static_cast<int>(random() % (kMostChoices - 1));
    ChooseDecoding(random, request);
    return request;
  }

  void ChooseDecoding(std::mt19937& random, struct Request& request) const {
    // Half of the texts are the cascade's, which alone depend on their drafts.
    const uint32_t sampler = random() % 4;
    if (sampler == 0) request.sampling->temperature = 0;
    if (sampler == 1) request.sampling->sampler = Sampler::kCoupled;
    const uint32_t decoding = random() % 6;
    if (decoding == 0) {
      request.decoding = Decoding::kAutoregressive;
    } else if (decoding == 1) {
      request.decoding = Decoding::kLookup;
      request.guesses = true;
    } else {
      request.depths = setup_.depths[random() % setup_.depths.size()];
    }
  }

  static void Read(Stream& stream, std::vector<Text>& texts) {
    Token token;
    for (;;) {
      const Stream::Status status = stream.Next(token, std::chrono::milliseconds(0));
      if (status == Stream::Status::kTimeout || status == Stream::Status::kDone) return;
      if (status != Stream::Status::kToken) continue;
      Text& text = texts[static_cast<size_t>(token.choice)];
      text.ids.push_back(token.id);
      text.logprobs.push_back(*token.logprob);
    }
  }

  struct UnderWay {
    Request request;
    Stream stream;
    int cancel_after;  // steps; -1: it is not cancelled
    std::vector<Text> texts = {};
  };

  void RunSequence(uint32_t seed, int requests_in_all) {
    std::mt19937 random(seed);
    const auto pages = static_cast<int64_t>(5 + random() % 8);
    const std::shared_ptr<Backend> backend =
        MakeTestBackend(loaded_->model(), Options(pages * kPageSize));
    const auto engine = MakeEngine(backend, 1 + static_cast<int>(random() % 8),
                                   random() % 2 == 0 ? 0 : 48, FewCores());
    std::vector<std::vector<int32_t>> texts;
    for (int round = 0; round < 6 && compared_ < requests_in_all; ++round) {
      std::vector<UnderWay> requests;
      const size_t together = random() % 2 == 0 ? 1 : 2 + random() % 4;
      for (size_t i = 0; i < together; ++i) {
        Request request = MakeRequest(random, texts);
        Stream stream = engine->Submit(request);
        requests.push_back({std::move(request), std::move(stream),
                            random() % 10 == 0 ? static_cast<int>(random() % 60) : -1});
      }
      for (int step = 0; engine->Step(); ++step) {
        for (UnderWay& one : requests) {
          if (step == one.cancel_after) one.stream.Cancel();
        }
      }
      for (UnderWay& one : requests) {
        Compare(one, seed, round);
        for (const Text& text : one.texts) {
          texts.push_back(one.request.tokens);
          texts.back().insert(texts.back().end(), text.ids.begin(), text.ids.end());
        }
      }
    }
  }

  void Compare(UnderWay& one, uint32_t seed, int round) {
    one.texts.resize(static_cast<size_t>(one.request.choices));
    Read(one.stream, one.texts);
    const Result expected = MakeEngine(fresh_, 0, 0, {})->Generate(one.request);
    bool same = true;
    for (int choice = 0; choice < one.request.choices; ++choice) {
      const auto c = static_cast<size_t>(choice);
      const Statistics statistics = one.stream.statistics(choice);
      EXPECT_NE(statistics.finish_reason, FinishReason::kError) << statistics.error;
      Text alone = TextOf(expected.choices[c]);
      if (statistics.finish_reason == FinishReason::kCancelled) {
        ASSERT_LE(one.texts[c].ids.size(), alone.ids.size());
        alone.ids.resize(one.texts[c].ids.size());
        alone.logprobs.resize(one.texts[c].ids.size());
      }
      same = same && one.texts[c] == alone;
      hits_ += statistics.cached_tokens;
      preemptions_ += statistics.preemptions;
    }
    ++compared_;
    if (same) return;
    ++differ_;
    ADD_FAILURE() << setup_.model << ", seed " << seed << ", round " << round << ": a request of "
                  << one.request.tokens.size() << " tokens with "
                  << one.stream.statistics().cached_tokens << " from the cache gave another text";
  }

  const Setup setup_;
  const std::shared_ptr<const LoadedModel> loaded_;
  const std::shared_ptr<Backend> fresh_;
  int compared_ = 0, differ_ = 0;
  int64_t hits_ = 0, preemptions_ = 0;
};

// Sequences from those of `seed` on, until so many requests have been compared.
void ExpectTheSameTexts(const Setup& setup, uint32_t seed, int requests) {
  CacheSequences sequences(setup);
  sequences.Run(seed, requests);
  EXPECT_EQ(sequences.differ(), 0) << "of " << sequences.compared() << " requests";
  EXPECT_GT(sequences.hits(), 0);
  if (requests >= 100) {
    EXPECT_GT(sequences.preemptions(), 0);
  }
}

// The seed is that of a sequence in which texts differ when pages are found by their tokens and
// recurrence alone.
TEST(CacheSequences, Huginn) {
  ExpectTheSameTexts(kHuginn, 7, 40);
}
TEST(CacheSequences, Ouro) {
  ExpectTheSameTexts(kOuro, 1, 5);
}

// Pages of an answer hold the coda's keys at the depths that it was read out at, and are found by
// requests that read no others.
TEST(CacheSequences, Raven) {
  CacheSequences sequences(kRaven);
  EXPECT_EQ(sequences.GoOnFromTextWith({}), 0);
  EXPECT_EQ(sequences.GoOnFromTextWith(kRaven.depths[1]), 0);
  EXPECT_EQ(sequences.GoOnFromTextWith(kRaven.depths[0]), kPageSize);
}

TEST(CacheSequences, HuginnByAPlanOfKeys) {
  ExpectTheSameTexts(kHuginnByPlan, 7, 60);
}

TEST(CacheSequences, HuginnByResiduals) {
  ExpectTheSameTexts(kHuginnByResiduals, 7, 60);
}

// The second text that begins as the first leaves a window where they part, the third hits there;
// and a text that goes on from an answer hits at its end.
TEST(CacheSequences, ByAPlanOfKeysTheThirdTextHitsWhereTextsPart) {
  const CacheSequences sequences(kHuginnByPlan);
  EXPECT_EQ(sequences.HitsOfABeginning(), (std::vector<int64_t>{0, 0, 128, 128, 256}));
}

// A thousand requests.
TEST(CacheSequencesLong, HuginnByAPlanOfKeys) {
  ExpectTheSameTexts(kHuginnByPlan, 100, 700);
}
TEST(CacheSequencesLong, OuroByAPlanOfKeys) {
  ExpectTheSameTexts(kOuroByPlan, 1, 100);
}
TEST(CacheSequencesLong, HuginnByResiduals) {
  ExpectTheSameTexts(kHuginnByResiduals, 100, 700);
}
TEST(CacheSequencesLong, OuroByResiduals) {
  ExpectTheSameTexts(kOuroByResiduals, 1, 100);
}
TEST(CacheSequencesLong, Ouro) {
  ExpectTheSameTexts(kOuro, 1, 150);
}
TEST(CacheSequencesLong, Raven) {
  ExpectTheSameTexts(kRaven, 1, 150);
}
TEST(CacheSequencesLong, Huginn) {
  ExpectTheSameTexts(kHuginn, 1, 700);
}

}  // namespace
}  // namespace loopspec

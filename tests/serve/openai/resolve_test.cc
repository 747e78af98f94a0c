// Requests of the wire held against a model, and answers made of its events; no socket.
#include "serve/openai/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/scripted_engine.h"

namespace loopspec::test {
namespace {

using namespace serve;

class ResolveTest : public testing::Test {
 protected:
  ResolveTest() {
    context_.engine = MakeScriptedEngine();
    context_.model = "m";
    context_.id = "1";
    context_.max_scores = 1000;
  }

  TextCall Read(Endpoint endpoint, const std::string& body) const {
    return ReadTextCall(endpoint, body, parser_)(context_);
  }
  TextCall Completion(const std::string& fields) const {
    return Read(kCompletions, R"({"prompt":"hi")" + fields + "}");
  }

  const WireParser parser_{WireLimits()};
  CallContext context_;
};

Token TokenOf(const std::string& text, int choice = 0) {
  Token token;
  token.choice = choice;
  token.id = static_cast<unsigned char>(text[0]);
  token.text = text;
  return token;
}

Token Silence(int choice) {
  Token token;
  token.choice = choice;
  return token;
}

Statistics Ended(FinishReason reason, int64_t tokens) {
  Statistics statistics;
  statistics.finish_reason = reason;
  statistics.decoded_tokens = tokens;
  return statistics;
}

TEST_F(ResolveTest, TakesAPriority) {
  EXPECT_EQ(Completion("").requests.at(0).priority, 0);
  EXPECT_EQ(Completion(R"(,"priority":-3)").requests.at(0).priority, -3);
}

TEST_F(ResolveTest, WhatIsAbsentIsTheModelsOwn) {
  const Request plain = Completion("").requests.at(0);
  EXPECT_EQ(plain.tokens, (std::vector<int32_t>{256, 'h', 'i'}));
  EXPECT_EQ(plain.sampling->temperature, 0.7f);
  EXPECT_EQ(plain.sampling->top_k, 1);
  EXPECT_EQ(plain.max_tokens, 16);
  EXPECT_TRUE(plain.seed.has_value());
  EXPECT_FALSE(plain.logprobs || plain.prompt_logprobs || plain.depths || plain.trace);
  EXPECT_EQ(plain.decoding, Decoding::kLoopSpec);

  const Request asked = Completion(R"(,"temperature":0.25,"top_k":5,"seed":7,"depths":[1,2],
      "logit_bias":{"5":-100},"sampler":"coupled","stop":"x","stop_token_ids":[3],"echo":true,
      "logprobs":2,"max_tokens":9,"n":3,"trace":true,"ignore_eos":true)")
                            .requests.at(0);
  EXPECT_EQ(asked.sampling->temperature, 0.25f);
  EXPECT_EQ(asked.sampling->top_k, 5);
  EXPECT_EQ(asked.sampling->bias.at(0).token, 5);
  EXPECT_EQ(asked.sampling->sampler, Sampler::kCoupled);
  EXPECT_EQ(asked.seed, 7u);
  EXPECT_EQ(asked.depths, (std::vector<int>{1, 2}));
  EXPECT_EQ(asked.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(asked.stop_tokens, std::vector<int32_t>{3});
  EXPECT_EQ(asked.logprobs, 2);
  EXPECT_EQ(asked.prompt_logprobs, 2);
  EXPECT_EQ(asked.max_tokens, 9);
  EXPECT_EQ(asked.choices, 3);
  EXPECT_TRUE(asked.trace && asked.ignore_eos);
  EXPECT_EQ(Completion(R"(,"decode":"ar")").requests[0].decoding, Decoding::kAutoregressive);
}

TEST_F(ResolveTest, SamplesWhereTheModelDoesNotSay) {
  ModelFacts facts;
  EXPECT_EQ(ServedSampling(facts).temperature, 1.0f);
  facts.sampling_chosen = true;  // do_sample: false
  EXPECT_EQ(ServedSampling(facts).temperature, 0.0f);
  facts.sampling.temperature = 0.6f;
  facts.sampling.top_p = 0.9f;
  EXPECT_EQ(ServedSampling(facts).temperature, 0.6f);
  context_.sampling = ServedSampling(facts);
  EXPECT_EQ(Completion("").requests[0].sampling->temperature, 0.6f);
  EXPECT_EQ(Completion("").requests[0].sampling->top_p, 0.9f);
  EXPECT_EQ(Completion(R"(,"temperature":0)").requests[0].sampling->temperature, 0.0f);
}

TEST_F(ResolveTest, NoProbabilityAtAllIsGreedy) {
  const Request request = Completion(R"(,"top_p":0,"temperature":0.9)").requests[0];
  EXPECT_TRUE(request.sampling->greedy());
  EXPECT_EQ(request.sampling->top_p, 1.0f);
}

TEST_F(ResolveTest, RecurrencesAreThoseThatTheModelOffers) {
  const ModelFacts& facts = context_.engine->facts();
  ASSERT_GE(facts.recurrences.size(), 2u);
  EXPECT_FALSE(Completion("").requests.at(0).recurrence.has_value());
  for (const int recurrence : facts.recurrences) {
    const std::string field = R"(,"recurrence":)" + std::to_string(recurrence);
    EXPECT_EQ(Completion(field).requests.at(0).recurrence, recurrence);
    EXPECT_EQ(Read(kGenerate, R"({"text":"a")" + field + "}").requests.at(0).recurrence,
              recurrence);
  }
  const auto refusal = [&](const std::string& fields) {
    try {
      Completion(fields);
    } catch (const ApiException& error) {
      return error.error().param + ": " + error.error().message;
    }
    return std::string("accepted");
  };
  const std::string beyond = refusal(R"(,"recurrence":4000)");
  EXPECT_TRUE(beyond.starts_with("recurrence: recurrence is 4000, expected one of [")) << beyond;
  EXPECT_NE(beyond.find("the model was trained for " + std::to_string(facts.trained_recurrence)),
            std::string::npos)
      << beyond;
  EXPECT_TRUE(refusal(R"(,"recurrence":0)").starts_with("recurrence: "));
  EXPECT_TRUE(refusal(R"(,"recurrence":2.5)").starts_with("recurrence: "));
  EXPECT_TRUE(refusal(R"(,"recurrence":1,"depths":[1,2])").starts_with("depths: depths is [1,2]"));
}

TEST_F(ResolveTest, PromptsOfOneCallShareASeed) {
  const TextCall call = Read(kGenerate, R"({"text":["a","bc"],"sampling_params":{"n":2}})");
  ASSERT_EQ(call.requests.size(), 2u);
  EXPECT_EQ(call.requests[0].seed, call.requests[1].seed);
  EXPECT_EQ(call.requests[0].max_tokens, 128);
  EXPECT_EQ(call.choices, 4);
  EXPECT_EQ(call.prompt_tokens, 5);
  EXPECT_TRUE(call.prompt.empty());
}

TEST_F(ResolveTest, ConversationsGoThroughTheTemplate) {
  context_.keep_prompt = true;
  const TextCall call =
      Read(kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3})");
  EXPECT_EQ(call.prompt, "user: hi\n");
  EXPECT_EQ(call.requests[0].tokens, context_.engine->Encode("user: hi\n", false));
  // A user's special token is text, the assistant's is one; a raw prompt has them as they are.
  const auto ends = [&](Endpoint endpoint, const std::string& body) {
    const std::vector<int32_t> ids = Read(endpoint, body).requests[0].tokens;
    return std::count(ids.begin(), ids.end(), kScriptEnd);
  };
  EXPECT_EQ(ends(kChat, R"({"messages":[{"role":"user","content":"a</s>b"}]})"), 0);
  EXPECT_EQ(ends(kChat, R"({"messages":[{"role":"user","content":[{"type":"text","text":"a</"},
      {"type":"text","text":"s>b"}]}]})"),
            0);
  EXPECT_EQ(ends(kChat, R"({"messages":[{"role":"assistant","content":"a</s>b"}]})"), 1);
  EXPECT_EQ(ends(kCompletions, R"({"prompt":"a</s>b"})"), 1);
  // Without a number the rest of the context is the answer's.
  const TextCall open = Read(kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(*open.requests[0].max_tokens + open.prompt_tokens, context_.engine->facts().context);
}

TEST_F(ResolveTest, AnswersAreMadeOfEventsAlone) {
  TextCall call = Completion(R"(,"n":2,"stream":true,"stream_options":{"include_usage":true})");
  AnswerWriter& answer = *call.answer;
  EXPECT_EQ(answer.Events(0), "");
  answer.AddToken(0, TokenOf("a", 0));
  answer.AddToken(0, TokenOf("b", 0));
  answer.AddToken(0, TokenOf("c", 1));
  const std::string first = answer.Events(0);  // one event for each choice
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 4);
  EXPECT_NE(first.find(R"("text":"ab")"), std::string::npos) << first;
  EXPECT_EQ(answer.Events(0), "");
  answer.AddEnd(0, Silence(0), Ended(FinishReason::kLength, 2));
  EXPECT_FALSE(answer.complete());
  EXPECT_EQ(answer.counts().outcome, "length");
  EXPECT_EQ(answer.counts().completion_tokens, 3);
  Statistics stopped = Ended(FinishReason::kStop, 1);
  stopped.stop_token = 'q';
  answer.AddEnd(0, TokenOf("held", 1), stopped);
  EXPECT_TRUE(answer.complete());
  const std::string rest = answer.Events(0);
  EXPECT_NE(rest.find(R"("text":"held")"), std::string::npos) << rest;
  EXPECT_NE(rest.find(R"("stop_reason":113)"), std::string::npos) << rest;
  EXPECT_NE(rest.find(R"("total_tokens":6)"), std::string::npos) << rest;
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n"));
}

TEST_F(ResolveTest, WholeAnswersHaveEveryPromptAndChoice) {
  TextCall call = Read(kCompletions, R"({"prompt":["hi","ho"],"echo":true,"logprobs":1})");
  AnswerWriter& answer = *call.answer;
  for (const size_t prompt : {1u, 0u}) {
    Token score = TokenOf("h");
    score.logprob = -1.0f;
    answer.AddPrompt(prompt, {score, score});
    Token token = TokenOf(prompt == 0 ? "x" : "y");
    token.logprob = -2.0f;
    answer.AddToken(prompt, token);
    answer.AddEnd(prompt, Silence(0), Ended(FinishReason::kStop, 1));
  }
  const Json body = Json::parse(answer.Body(0));
  EXPECT_EQ(body["choices"][0]["text"], "hix");
  EXPECT_EQ(body["choices"][1]["text"], "hoy");
  const Json logprobs = body["choices"][1]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (std::vector<std::string>{"<s>", "h", "h", "y"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json::parse("[null,-1.0,-1.0,-2.0]"));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
}

// SGLang's events carry the whole answer so far; together they are a few times the answer all the
// same.
TEST_F(ResolveTest, LongStreamsOfWholeAnswersAreNotQuadratic) {
  TextCall call = Read(kGenerate, R"({"text":"hi","stream":true,"return_logprob":true,
      "top_logprobs_num":20,"sampling_params":{"max_new_tokens":1500}})");
  constexpr int kTokens = 1500;
  size_t sent = 0;
  int events = 0;
  for (int i = 0; i < kTokens; ++i) {
    Token token = TokenOf("a");
    token.logprob = -0.123456f;
    for (int j = 0; j < 20; ++j) token.top.push_back({j, -1.2345678f});
    call.answer->AddToken(0, std::move(token));
    const std::string event = call.answer->Events(0);
    sent += event.size();
    events += event.empty() ? 0 : 1;
  }
  call.answer->AddEnd(0, Silence(0), Ended(FinishReason::kLength, kTokens));
  const std::string last = call.answer->Events(0);
  EXPECT_NE(last.find(std::string(kTokens, 'a')), std::string::npos);  // nothing is lost
  EXPECT_GT(events, 50);
  EXPECT_LT(sent + last.size(), (5u << 20) + 6 * last.size());
}

// A prompt that is far too long is refused by its bytes alone, and one that nobody waits for any
// more is given up.
TEST_F(ResolveTest, GivesUpTextsThatAreTooLong) {
  int asked = 0;
  context_.cancelled = [&] {
    ++asked;
    return false;
  };
  const std::string body = Json{{"prompt", std::string(20 << 20, 'x')}}.dump();
  try {
    Read(kCompletions, body);
    ADD_FAILURE() << "a prompt of 20 MB was taken";
  } catch (const ApiException& error) {
    EXPECT_EQ(error.error().code, "context_length_exceeded");
    EXPECT_EQ(error.error().param, "prompt");
  }
  EXPECT_EQ(asked, 0);
  context_.cancelled = [] { return true; };
  EXPECT_THROW(Read(kCompletions, Json{{"prompt", std::string(100'000, 'x')}}.dump()),
               EncodeCancelled);
}

}  // namespace
}  // namespace loopspec::test

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

Token Say(const std::string& text, int choice = 0) {
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
  // Without a number the rest of the context is the answer's.
  const TextCall open = Read(kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(*open.requests[0].max_tokens + open.prompt_tokens, context_.engine->facts().context);
}

TEST_F(ResolveTest, AnswersAreMadeOfEventsAlone) {
  TextCall call = Completion(R"(,"n":2,"stream":true,"stream_options":{"include_usage":true})");
  AnswerWriter& answer = *call.answer;
  EXPECT_EQ(answer.Events(0), "");
  answer.AddToken(0, Say("a", 0));
  answer.AddToken(0, Say("b", 0));
  answer.AddToken(0, Say("c", 1));
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
  answer.AddEnd(0, Say("held", 1), stopped);
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
    Token score = Say("h");
    score.logprob = -1.0f;
    answer.AddPrompt(prompt, {score, score});
    Token token = Say(prompt == 0 ? "x" : "y");
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

}  // namespace
}  // namespace loopspec::test

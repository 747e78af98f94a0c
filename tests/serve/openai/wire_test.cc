// The wire format alone: bodies to requests, answers to JSON, text in pieces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "serve/openai/error.h"
#include "serve/openai/known_fields.h"
#include "serve/openai/openapi.h"
#include "serve/openai/parse.h"
#include "serve/openai/text.h"
#include "serve/openai/write.h"
#include "serve/server/api_keys.h"
#include "text/unicode.h"

namespace loopspec::test {
namespace {

using namespace serve;

const WireParser& Parser() {
  static const WireParser parser{WireLimits()};
  return parser;
}

CompletionRequest Completion(const std::string& body) {
  return Parser().Completion(kCompletions, body);
}
CompletionRequest ChatRequest(const std::string& fields) {
  return Parser().Completion(kChat,
                             R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}");
}

// The 400 that a body gets.
ApiError Refused(Endpoint endpoint, const std::string& body) {
  try {
    Parser().Completion(endpoint, body);
  } catch (const ApiException& error) {
    EXPECT_EQ(error.error().status, 400) << body;
    EXPECT_EQ(error.error().type, "invalid_request_error") << body;
    EXPECT_TRUE(IsValidUtf8(Dump(ErrorJson(error.error()))));
    return error.error();
  }
  ADD_FAILURE() << "not refused: " << body;
  return {};
}

TEST(WireParse, ReadsPromptsInEveryForm) {
  EXPECT_EQ(Completion(R"({"prompt":"a"})").prompts[0].text, "a");
  EXPECT_FALSE(Completion(R"({"prompt":"a"})").batch);
  const CompletionRequest texts = Completion(R"({"prompt":["a","b"]})");
  EXPECT_EQ(texts.prompts.size(), 2u);
  EXPECT_TRUE(texts.batch);
  EXPECT_EQ(Completion(R"({"prompt":[1,2,3]})").prompts[0].ids, (std::vector<int32_t>{1, 2, 3}));
  const CompletionRequest lists = Completion(R"({"prompt":[[1,2],[3]]})");
  EXPECT_EQ(lists.prompts[1].ids, std::vector<int32_t>{3});
  EXPECT_EQ(lists.prompts.size(), 2u);
}

// Before they take memory: a body of 16 MiB holds millions of either.
TEST(WireParse, RefusesOrFoldsLongLists) {
  std::string prompts = R"({"prompt":[[1])", stops = R"({"prompt":"a","stop_token_ids":[7)";
  for (int i = 0; i < 100'000; ++i) {
    prompts += ",[1]";
    stops += i % 2 == 0 ? ",7" : ",3";
  }
  const ApiError error = Refused(kCompletions, prompts + "]}");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_EQ(error.message, "prompt has 100001 prompts, expected at most 128.");
  EXPECT_EQ(Completion(stops + "]}").asked.stop_tokens, (std::vector<int32_t>{3, 7}));
}

TEST(WireParse, ReadsEveryField) {
  const CompletionRequest r = Completion(R"({"prompt":"a","temperature":0.5,"top_p":0.9,"top_k":-1,
      "min_p":0.1,"top_n_sigma":2,"repetition_penalty":1.1,"presence_penalty":-2,"frequency_penalty":2,
      "sampler":"coupled","n":3,"seed":-1,"logit_bias":{"5":-100},"stop":["x","y"],
      "stop_token_ids":[7],"ignore_eos":true,"max_tokens":9,"stream":true,
      "stream_options":{"include_usage":true},"logprobs":2,"echo":true,"best_of":3,"decode":"ar",
      "depths":"auto","token_details":true,"trace":true,"user":"u","model":"m","suffix":null})");
  EXPECT_EQ(r.sampling.said().temperature, 0.5f);
  EXPECT_EQ(r.sampling.said().top_k, -1);
  for (const SamplingField& field : SamplingFields())
    EXPECT_TRUE(r.sampling.Says(field)) << field.name;
  EXPECT_EQ(r.sampling.Over({}).sampler, Sampler::kCoupled);
  EXPECT_EQ(r.asked.seed, UINT64_MAX);
  EXPECT_EQ(r.sampling.said().bias.at(0).token, 5);
  EXPECT_EQ(r.asked.stop.size(), 2u);
  EXPECT_EQ(r.asked.max_tokens, 9);
  EXPECT_TRUE(r.stream && r.include_usage && r.echo && r.token_details);
  EXPECT_TRUE(r.asked.trace && r.asked.ignore_eos);
  EXPECT_EQ(r.asked.logprobs, 2);
  EXPECT_EQ(r.asked.choices, 3);
  EXPECT_EQ(r.asked.decoding, Decoding::kAutoregressive);
  EXPECT_FALSE(r.asked.depths.has_value());
}

TEST(WireParse, ReadsConversations) {
  const CompletionRequest r = Parser().Completion(kChat, R"({"messages":[
      {"role":"developer","content":"be brief"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"N"},
      {"role":"assistant","content":null,"refusal":null,"tool_calls":[]}],
      "logprobs":true,"top_logprobs":5,"max_completion_tokens":4,"enable_thinking":false,
      "chat_template_kwargs":{"x":1},"reasoning_format":"deepseek"})");
  EXPECT_EQ(r.messages[0]["role"], "system");
  EXPECT_EQ(r.messages[1]["content"], "ab");
  EXPECT_EQ(r.messages[1]["name"], "N");
  EXPECT_EQ(r.messages[2]["content"], "");
  EXPECT_EQ(r.asked.logprobs, 5);
  EXPECT_EQ(r.asked.max_tokens, 4);
  EXPECT_EQ(r.template_arguments["enable_thinking"], false);
  EXPECT_EQ(r.template_arguments["x"], 1);
  EXPECT_EQ(r.reasoning, ReasoningFormat::kReasoningContent);
  EXPECT_EQ(ChatRequest("").asked.logprobs, std::nullopt);
  EXPECT_EQ(ChatRequest(R"(,"logprobs":true)").asked.logprobs, 0);
  EXPECT_EQ(ChatRequest(R"(,"logprobs":false)").asked.logprobs, std::nullopt);
}

// Clients send whole histories: what was no text is refused only where it is asked about now.
TEST(WireParse, ReadsPartsThatAreNoText) {
  const CompletionRequest r = Parser().Completion(kChat, R"({"messages":[
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]},
      {"role":"assistant","content":[{"type":"refusal","refusal":"No."}]},
      {"role":"user","content":[{"type":"input_audio"},{"type":"hologram"},
                                {"type":"text","text":"b"}]},
      {"role":"user","content":[]},
      {"role":"tool","tool_call_id":"c","content":[{"type":"file"}]}]})");
  EXPECT_EQ(r.messages[0]["content"], "a[image left out: this model reads text only]");
  EXPECT_EQ(r.messages[1]["content"], "No.");
  EXPECT_EQ(r.messages[2]["content"], "[audio left out: this model reads text only]b");
  EXPECT_EQ(r.messages[3]["content"], "");
  EXPECT_EQ(r.messages[4]["content"], "[file left out: this model reads text only]");
  EXPECT_EQ(r.ignored.names(), std::vector<std::string>{"messages[].content[].hologram"});
}

TEST(WireParse, ReadsTools) {
  const CompletionRequest r = Parser().Completion(kChat, R"({"messages":[
      {"role":"user","content":"x"},
      {"role":"assistant","content":null,"reasoning":"hm","tool_calls":[
          {"id":"c","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},
          {"function":{"name":"g","arguments":""}},
          {"function":{"name":"h","arguments":"{\"cut"}}]},
      {"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"3"}]},
      {"role":"tool","tool_call_id":"d","content":null}],
      "tools":[{"type":"function","function":{"name":"f","parameters":
          {"type":"object","properties":{"z":{},"a":{}}}}}],
      "tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false,
      "reasoning_effort":"low"})");
  EXPECT_EQ(r.messages[1]["content"], "");
  EXPECT_EQ(r.messages[1]["reasoning_content"], "hm");
  const OrderedJson& calls = r.messages[1]["tool_calls"];
  EXPECT_EQ(calls[0].dump(),
            R"({"type":"function","function":{"name":"f","arguments":{"b":1,"a":2}},"id":"c"})");
  EXPECT_EQ(calls[1]["function"]["arguments"], OrderedJson::object());
  EXPECT_EQ(calls[2]["function"]["arguments"].dump(), R"({"arguments":"{\"cut"})");
  EXPECT_EQ(r.messages[2].dump(), R"({"role":"tool","content":"3","tool_call_id":"c"})");
  EXPECT_EQ(r.messages[3]["content"], "");
  // In the order of the body, which is that of the arguments.
  EXPECT_EQ(r.tools.tools[0]["function"]["parameters"]["properties"].dump(), R"({"z":{},"a":{}})");
  EXPECT_EQ(r.tools.choice, ToolChoice::kNamed);
  EXPECT_EQ(r.tools.named, "f");
  EXPECT_FALSE(r.tools.parallel);
  EXPECT_EQ(r.reasoning_effort, "low");
  const CompletionRequest allowed = ChatRequest(
      R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":
      "allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":
      {"name":"f"}}]}})");
  EXPECT_EQ(allowed.tools.choice, ToolChoice::kRequired);
  EXPECT_EQ(allowed.tools.allowed, std::vector<std::string>{"f"});
}

TEST(WireParse, ReadsSglangsForm) {
  const CompletionRequest r = Parser().Completion(kGenerate, R"({"text":["a","b"],"rid":"me",
      "sampling_params":{"max_new_tokens":5,"temperature":0,"stop":"x"},"return_logprob":true,
      "top_logprobs_num":2})");
  EXPECT_EQ(r.prompts.size(), 2u);
  EXPECT_EQ(r.asked.max_tokens, 5);
  SamplingParams warm;
  warm.temperature = 1;
  EXPECT_EQ(r.sampling.Over(warm).temperature, 0);
  EXPECT_EQ(r.asked.logprobs, 2);
  EXPECT_EQ(r.id, "me");
  EXPECT_EQ(Refused(kGenerate, R"({"text":"a","sampling_params":{"min_tokens":1}})").param,
            "sampling_params.min_tokens");
  EXPECT_EQ(Refused(kGenerate, R"({"text":"a","input_ids":[1]})").param, "text");
}

TEST(WireParse, Grammars) {
  const auto asked = [](const std::string& fields) {
    return Parser().Completion(kCompletions, R"({"prompt":"a",)" + fields + "}").asked.grammar;
  };
  for (const char* none : {R"("response_format":{"type":"text"})", R"("response_format":null)",
                           R"("grammar":"")", R"("structured_outputs":{})",
                           R"("structured_outputs":{"json":null,"disable_fallback":false})"})
    EXPECT_EQ(asked(none).kind, GrammarKind::kNone) << none;
  // The properties of a schema keep their order.
  const std::string schema = R"({"properties":{"b":{},"a":{}}})";
  for (const std::string& fields :
       {R"("response_format":{"type":"json_schema","json_schema":{"schema":)" + schema + "}}",
        R"("structured_outputs":{"json":)" + schema + "}", R"("guided_json":)" + schema,
        R"("json_schema":)" + schema,
        std::string(R"("guided_json":"{\"properties\":{\"b\":{},\"a\":{}}}")")}) {
    EXPECT_EQ(asked(fields).kind, GrammarKind::kJsonSchema) << fields;
    EXPECT_EQ(asked(fields).text, schema) << fields;
    EXPECT_TRUE(asked(fields).strict) << fields;
  }
  EXPECT_FALSE(asked(R"("response_format":{"type":"json_schema","json_schema":)"
                     R"({"name":"x","strict":false,"schema":{}}})")
                   .strict);
  EXPECT_EQ(asked(R"("response_format":{"type":"json_object"})").text, R"({"type": "object"})");
  EXPECT_EQ(asked(R"("structured_outputs":{"json_object":true})").text, R"({"type": "object"})");
  for (const char* fields :
       {R"("regex":"a|b")", R"("guided_regex":"a|b")", R"("structured_outputs":{"regex":"a|b"})"}) {
    EXPECT_EQ(asked(fields).kind, GrammarKind::kRegex) << fields;
    EXPECT_EQ(asked(fields).text, "a|b") << fields;
  }
  for (const char* fields : {R"("grammar":"root ::= x")", R"("guided_grammar":"root ::= x")",
                             R"("ebnf":"root ::= x")"}) {
    EXPECT_EQ(asked(fields).kind, GrammarKind::kGbnf) << fields;
    EXPECT_EQ(asked(fields).text, "root ::= x") << fields;
  }
  EXPECT_EQ(asked(R"("guided_choice":["a.b","c"])").text, R"((?:a\.b|c))");
  EXPECT_EQ(Parser()
                .Completion(kGenerate, R"({"text":"a","sampling_params":{"json_schema":"{}"}})")
                .asked.grammar.text,
            "{}");
}

TEST(WireParse, NamesTheFieldAtFault) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("top_p":-0.1)", "top_p"},
      {R"("top_k":1.5)", "top_k"},
      {R"("n":0)", "n"},
      {R"("n":17)", "n"},
      {R"("n":99999999999999999999)", "n"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("seed":1.5)", "seed"},
      {R"("stop":[""])", "stop[0]"},
      {R"("stop":[1])", "stop[0]"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])", "stop"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"5":101})", "logit_bias.5"},
      {R"("logit_bias":[])", "logit_bias"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"continuous_usage_stats":1})",
       "stream_options.continuous_usage_stats"},
      {R"("logprobs":21)", "logprobs"},
      {R"("logprobs":true)", "logprobs"},
      {R"("best_of":2)", "best_of"},
      {R"("suffix":"end")", "suffix"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"lax":1}})",
       "response_format.json_schema.lax"},
      {R"("structured_outputs":{"json":{},"regex":"a"})", "structured_outputs.regex"},
      {R"("structured_outputs":{"structural_tag":"a"})", "structured_outputs.structural_tag"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("guided_choice":["a",1])", "guided_choice[1]"},
      {R"("guided_json":1)", "guided_json"},
      {R"("grammar":"root ::= \"a\"","regex":"a")", "regex"},
      {R"("sampler":"magic")", "sampler"},
      {R"("decode":"fast")", "decode"},
      {R"("depths":[])", "depths"},
      {R"("depths":[2,1])", "depths[1]"},
      {R"("depths":[0])", "depths[0]"},
      {R"("messages":[])", "messages"},
  };
  for (const auto& entry : cases) {
    const std::string body = std::string(R"({"prompt":"a",)") + entry.fields + "}";
    EXPECT_EQ(Refused(kCompletions, body).param, entry.param) << body;
  }
  EXPECT_EQ(ChatRequest(R"(,"tools":[],"functions":[])").asked.choices, 1);
  // The words of OpenAI's first API of tools are refused with those that took their place.
  const std::string hello = R"({"messages":[{"role":"user","content":"x"}],)";
  EXPECT_EQ(Refused(kChat, hello + R"("functions":[{"name":"f"}]})").message,
            "functions is not supported by this server, which has tools instead.");
  EXPECT_EQ(Refused(kChat, hello + R"("function_call":{"name":"f"}})").message,
            "function_call is not supported by this server, which has tool_choice instead.");
  const struct {
    const char* fields;
    const char* param;
  } chats[] = {
      {R"("messages":[])", "messages"},
      {R"("messages":"hi")", "messages"},
      {R"("messages":[1])", "messages[0]"},
      {R"("messages":[{}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"function","content":"x"}])", "messages[0].role"},
      {R"("messages":[{"role":"user","content":"x"}],"functions":[{}])", "functions"},
      {R"("messages":[{"role":"user","content":"x"}],"tools":{})", "tools"},
      {R"("messages":[{"role":"user","content":"x"}],"tool_choice":"required")", "tool_choice"},
      {R"("messages":[{"role":"user","content":"x"}],"tool_choice":"some")", "tool_choice"},
      {R"("messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"web"})",
       "tool_choice.type"},
      {R"("messages":[{"role":"user","content":"x"}],"parallel_tool_calls":1)",
       "parallel_tool_calls"},
      {R"("messages":[{"role":"user","content":"x"}],"reasoning_effort":"much")",
       "reasoning_effort"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])",
       "messages[0].content[0]"},
      {R"("messages":[{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"("messages":[{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0]"},
      {R"("messages":[{"role":"user","content":1}])", "messages[0].content"},
      {R"("messages":[{"role":"assistant","content":"","tool_calls":[1]}])",
       "messages[0].tool_calls[0]"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])",
       "messages[0].tool_calls[0].function.name"},
      {R"("messages":[{"role":"user","content":"x"}],"top_logprobs":2)", "top_logprobs"},
      {R"("messages":[{"role":"user","content":"x"}],"audio":{})", "audio"},
      {R"("messages":[{"role":"user","content":"x"}],"max_tokens":1,"max_completion_tokens":2)",
       "max_tokens"},
      {R"("messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":1})",
       "chat_template_kwargs.messages"},
      {R"("model":"m")", "messages"},
  };
  for (const auto& entry : chats) {
    EXPECT_EQ(Refused(kChat, std::string("{") + entry.fields + "}").param, entry.param)
        << entry.fields;
  }
}

TEST(WireParse, RefusesWhatIsNoJson) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("nul"),
        std::string("{\"prompt\":\"\xff\xfe\"}"), std::string("{\"prompt\":\"\\ud800\"}"),
        std::string("{\"prompt\":\"a\",}"), std::string("{\"prompt\":1e999}"),
        "{\"prompt\":" + std::string(600, '[') + std::string(600, ']') + "}",
        std::string("{\"prompt\":\"a\"} {}"), std::string("\xef\xbb\xbf")}) {
    Refused(kCompletions, body);
  }
  EXPECT_EQ(Refused(kCompletions, "{}").param, "prompt");
  EXPECT_EQ(Refused(kCompletions, R"({"prompt":[]})").param, "prompt");
  EXPECT_EQ(Refused(kCompletions, R"({"prompt":[1,"a"]})").param, "prompt[1]");
  EXPECT_EQ(Refused(kCompletions, R"({"prompt":[[1],"a"]})").param, "prompt[1]");
  EXPECT_EQ(Refused(kCompletions, R"({"prompt":[-1]})").param, "prompt[0]");
  EXPECT_EQ(Refused(kCompletions, R"({"prompt":[9999999999]})").param, "prompt[0]");
}

TEST(WireParse, LimitsAnswersOfOneRequest) {
  std::string many = R"({"n":16,"prompt":["a")";
  for (int i = 1; i < 9; ++i) many += R"(,"a")";
  EXPECT_EQ(Refused(kCompletions, many + "]}").param, "n");
}

TEST(WireParse, ReadsTokenizeForms) {
  EXPECT_EQ(Parser().Tokenize(R"({"prompt":"a"})").prompt, "a");
  EXPECT_EQ(Parser().Tokenize(R"({"messages":[{"role":"user","content":"x"}]})").messages.size(),
            1u);
  EXPECT_THROW(Parser().Tokenize("{}"), ApiException);
  EXPECT_THROW(Parser().Tokenize(R"({"prompt":"a","messages":[{"role":"user","content":"x"}]})"),
               ApiException);
  EXPECT_EQ(Parser().Detokenize(R"({"tokens":[1,2]})").tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_THROW(Parser().Detokenize(R"({"tokens":"x"})"), ApiException);
}

// ---- Fields of others ----

std::string With(Endpoint endpoint, const std::string& field) {
  const std::string prompt = endpoint == kChat ? R"("messages":[{"role":"user","content":"x"}])"
                             : endpoint == kGenerate ? R"("text":"x")"
                                                     : R"("prompt":"x")";
  return "{" + prompt + "," + field + "}";
}

// Every line of the table: its own values are taken and change nothing, another is refused by name.
TEST(WireParse, TakesFieldsOfOthersAtValuesThatMeanNothing) {
  size_t tried = 0;
  for (const KnownField& field : KnownFields()) {
    for (const Endpoint endpoint : {kCompletions, kChat, kGenerate}) {
      const bool inner = (field.where & kSamplingParams) != 0 && endpoint == kGenerate;
      if ((field.where & endpoint) == 0 && !inner) continue;
      const auto body = [&](const Json& value, bool in_parameters) {
        std::string member = Json(field.name).dump() + ":" + value.dump();
        if (in_parameters) member = R"("sampling_params":{)" + member + "}";
        return With(endpoint, member);
      };
      Json values = field.any() ? Json::array({0, "x", Json::object(), true}) : field.values();
      values.push_back(nullptr);
      for (const Json& value : values) {
        if (std::string(field.name) == "best_of" && endpoint != kChat) continue;  // a field of ours
        for (const bool in_parameters : {false, true}) {
          if (in_parameters ? !inner : (field.where & endpoint) == 0) continue;
          const CompletionRequest request =
              Parser().Completion(endpoint, body(value, in_parameters));
          EXPECT_TRUE(request.ignored.names().empty()) << field.name;
          ++tried;
          if (field.any()) continue;
          const std::string path =
              (in_parameters ? "sampling_params." : "") + std::string(field.name);
          EXPECT_EQ(Refused(endpoint, body({{"asks", "something"}}, in_parameters)).param, path);
        }
      }
    }
  }
  EXPECT_GT(tried, 400u);
}

// What sglang-router, vllm-router and a benchmark client send with every request.
TEST(WireParse, TakesWhatRoutersAdd) {
  const std::string common =
      R"("no_stop_trim":false,"return_hidden_states":false,"skip_special_tokens":true)";
  Parser().Completion(kCompletions, With(kCompletions, common));
  Parser().Completion(kChat, With(kChat, common + R"(,"continue_final_message":false,
      "separate_reasoning":true,"stream_reasoning":true,"include_reasoning":true)"));
  Parser().Completion(kGenerate, With(kGenerate, R"("background":false,"log_metrics":true,
      "model":"m","no_logs":false,"return_bytes":false,"return_entropy":false)"));
  const CompletionRequest counted = Parser().Completion(
      kChat, With(kChat, R"("stream":true,"stream_options":{"include_usage":true,
                            "continuous_usage_stats":true})"));
  EXPECT_TRUE(counted.include_usage && counted.usage_in_every_event);
}

TEST(WireParse, IgnoresWhatNobodyKnowsUnlessStrict) {
  const std::string body = With(kChat, R"("surprise":{"a":1},"stream":true,
      "stream_options":{"shock":1},"\u00e9,\r\nX: y":0)");
  const CompletionRequest request = Parser().Completion(kChat, body);
  EXPECT_EQ(request.ignored.names(),
            (std::vector<std::string>{"stream_options.shock", "surprise", "?????X:?y"}));
  const std::string message =
      R"({"messages":[{"role":"user","content":"x","mood":1},{"role":"user","content":"y","mood":2}]})";
  EXPECT_EQ(Parser().Completion(kChat, message).ignored.names(),
            (std::vector<std::string>{"messages[].mood"}));
  EXPECT_EQ(Parser()
                .Completion(kGenerate, R"({"text":"a","sampling_params":{"mood":1}})")
                .ignored.names(),
            (std::vector<std::string>{"sampling_params.mood"}));
  EXPECT_EQ(Parser().Tokenize(R"({"prompt":"a","mood":1})").ignored.names().size(), 1u);
  EXPECT_EQ(Parser().Detokenize(R"({"tokens":[1],"mood":1})").ignored.names().size(), 1u);
  std::string many = R"({"prompt":"x")";
  for (int i = 0; i < 1000; ++i) many += fmt::format(R"(,"mood{}":1)", i);
  EXPECT_EQ(Completion(many + "}").ignored.names().size(), 16u);

  WireLimits limits;
  limits.strict = true;
  const WireParser strict(limits);
  const auto refused = [&](Endpoint endpoint, const std::string& text) -> std::string {
    try {
      strict.Completion(endpoint, text);
    } catch (const ApiException& error) {
      return error.error().param;
    }
    return "taken";
  };
  EXPECT_EQ(refused(kCompletions, With(kCompletions, R"("surprise":1)")), "surprise");
  EXPECT_EQ(refused(kChat, message), "messages[0].mood");
  EXPECT_EQ(refused(kChat, With(kChat, R"("stream":true,"stream_options":{"x":1})")),
            "stream_options.x");
  EXPECT_EQ(refused(kGenerate, R"({"text":"a","sampling_params":{"mood":1}})"),
            "sampling_params.mood");
  EXPECT_EQ(refused(kChat, With(kChat, R"("user":"u","min_tokens":0)")), "taken");
  // Values that change nothing are taken without a word, others are refused by name.
  for (const auto endpoint : {kChat, kCompletions}) {
    EXPECT_EQ(refused(endpoint, With(endpoint, R"("samplers":[],"tfs_z":1.0,"stream_interval":1)")),
              "taken");
    EXPECT_EQ(refused(endpoint, With(endpoint, R"("samplers":["top_k"])")), "samplers");
    EXPECT_EQ(refused(endpoint, With(endpoint, R"("tfs_z":0.9)")), "tfs_z");
    EXPECT_EQ(refused(endpoint, With(endpoint, R"("stream_interval":8)")), "stream_interval");
  }
  EXPECT_THROW(strict.Detokenize(R"({"tokens":[1],"x":1})"), ApiException);
}

TEST(OpenApi, HasEveryFieldThatIsRead) {
  const OrderedJson document = OpenApi(Parser(), "1.2.3");
  EXPECT_EQ(document["openapi"], "3.1.0");
  const struct {
    const char* path;
    Endpoint endpoint;
  } paths[] = {
      {"/v1/completions", kCompletions}, {"/v1/chat/completions", kChat}, {"/generate", kGenerate}};
  for (const auto& [path, endpoint] : paths) {
    const OrderedJson& schema =
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    size_t known = 0;
    for (const auto& field : Parser().completion_fields()) {
      if ((field.endpoints & endpoint) == 0) continue;
      ++known;
      EXPECT_TRUE(schema["properties"].contains(field.name)) << path << " " << field.name;
    }
    EXPECT_EQ(schema["properties"].size(), known) << path;  // none twice
    EXPECT_EQ(schema["additionalProperties"], true);
  }
  WireLimits limits;
  limits.strict = true;
  const OrderedJson strict = OpenApi(WireParser(limits), "1.2.3");
  EXPECT_EQ(strict["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]
                  ["schema"]["additionalProperties"],
            false);
}

// ---- Text in pieces ----

const char* kTricky = "a\u00e9\u20ac\U0001F600z \xff\xe2\x82 \xf0\x9f end \xe2\x82";

ReasoningSplitter::Parts Split(std::string_view text, bool open, size_t step) {
  ReasoningSplitter splitter(open);
  ReasoningSplitter::Parts all;
  const auto add = [&](const ReasoningSplitter::Parts& parts) {
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  };
  for (size_t at = 0; at < text.size(); at += step) add(splitter.Push(text.substr(at, step)));
  add(splitter.Finish());
  return all;
}

TEST(WireText, DividesReasoningFromContent) {
  const struct {
    const char* text;
    bool open;
    const char* reasoning;
    const char* content;
  } cases[] = {
      {"<think>\nwhy not\n\n</think>\n\nbecause", false, "why not", "because"},
      {" \n<think>a < b </thin </think>c</think>", false, "a < b </thin", "c</think>"},
      {"plain <think>text</think>", false, "", "plain <think>text</think>"},
      {"  plain", false, "", "  plain"},
      {"<thin", false, "", "<thin"},
      {"inside \n</think> out", true, "inside", "out"},
      {"never closed  ", true, "never closed", ""},
      {"", true, "", ""},
      {"   ", false, "", "   "},
      {"<think></think>", false, "", ""},
  };
  for (const auto& entry : cases) {
    for (size_t step = 1; step < 12; ++step) {
      const ReasoningSplitter::Parts parts = Split(entry.text, entry.open, step);
      EXPECT_EQ(parts.reasoning, entry.reasoning) << entry.text << " in " << step;
      EXPECT_EQ(parts.content, entry.content) << entry.text << " in " << step;
    }
  }
  EXPECT_TRUE(EndsInThink("user: hi\n<think>\n"));
  EXPECT_FALSE(EndsInThink("<think></think>"));
  EXPECT_FALSE(EndsInThink(""));
}

TEST(WireText, ShowsTokensThatAreNoText) {
  EXPECT_EQ(TokenText("caf\u00e9"), "caf\u00e9");
  EXPECT_EQ(TokenText("\xe2\x82"), "bytes:\\xe2\\x82");
}

// ---- Answers ----

Token MakeToken(int32_t id, float logprob) {
  Token token;
  token.id = id;
  token.logprob = logprob;
  return token;
}

std::string_view Piece(int32_t id) {
  static const std::map<int32_t, std::string> pieces = {
      {1, "a"}, {2, "\xe2\x82"}, {3, "\xac"}, {4, "\xff\x80"}, {9, "z"}, {10, "z"}};
  return pieces.at(id);
}

TEST(WireWrite, ListsLogprobsAsEachFormHasThem) {
  ChoicePart part;
  part.text = "a\u20ac";
  part.tokens = {MakeToken(1, -0.5f), MakeToken(2, -std::numeric_limits<float>::infinity()),
                 MakeToken(3, -1.25f)};
  part.tokens[0].logprob.reset();
  part.tokens[2].top = {{9, -0.125f}, {10, -3.0f}};
  part.finish = Statistics();
  part.finish->finish_reason = FinishReason::kLength;
  WriteOptions options;
  options.pieces = Piece;
  options.logprobs = 2;
  const ChoicePart* parts[] = {&part};
  const ResponseHead head{kCompletions, "cmpl-1", "m", 7};
  const OrderedJson body = CompletionBody(head, parts, {}, {}, options);
  const OrderedJson& logprobs = body["choices"][0]["logprobs"];
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][1], -9999.0);
  EXPECT_EQ(logprobs["token_logprobs"][2], -1.25);
  EXPECT_EQ(logprobs["tokens"][1], "bytes:\\xe2\\x82");
  EXPECT_EQ(logprobs["text_offset"], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][2]["z"], -0.125);  // the likelier of two that look the same
  EXPECT_EQ(logprobs["top_logprobs"][2]["bytes:\\xac"], -1.25);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");

  const ResponseHead chat{kChat, "chatcmpl-1", "m", 7};
  const OrderedJson answer = CompletionBody(chat, parts, {}, {}, options);
  const OrderedJson& content = answer["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[1]["bytes"], (std::vector<int>{0xe2, 0x82}));
  EXPECT_EQ(content[2]["top_logprobs"].size(), 2u);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "a\u20ac");
  EXPECT_EQ(answer["object"], "chat.completion");
}

TEST(WireWrite, IsValidWhateverTheBytes) {
  ChoicePart part;
  part.text = kTricky;
  part.tokens = {MakeToken(4, -1)};
  part.finish = Statistics();
  part.finish->finish_reason = FinishReason::kStop;
  part.finish->stop_string = "\xff";
  WriteOptions options;
  options.pieces = Piece;
  options.logprobs = 1;
  options.token_details = true;
  part.tokens[0].text = "\xff";
  const ChoicePart* parts[] = {&part};
  for (const Endpoint endpoint : {kCompletions, kChat}) {
    const ResponseHead head{endpoint, "\xff", "\xfe", 7};
    const std::string text = Dump(CompletionBody(head, parts, {}, {}, options));
    EXPECT_TRUE(IsValidUtf8(text));
    EXPECT_NO_THROW(Json::parse(text));
    const std::string event = ServerSentEvent(CompletionEvent(head, part, nullptr, options));
    EXPECT_EQ(event.find('\n'), event.size() - 2);
  }
}

TEST(ApiKeysTest, WeightsAreNumbersOfAUsefulSize) {
  const std::string folder = testing::TempDir();
  const auto read = [&](const std::string& line) {
    const std::string path = folder + "/keys_of_weight";
    std::ofstream(path) << line << "\n";
    ApiKeys keys;
    keys.AddFile(path);
    return keys.FindKey("secret")->weight;
  };
  EXPECT_EQ(read("secret"), 1);
  EXPECT_EQ(read("secret weight=2.5"), 2.5);
  EXPECT_EQ(read("secret weight=0.001"), 0.001);
  for (const char* weight : {"0", "-1", "1e-310", "0.0009", "1001", "inf", "nan", "", "2x"})
    EXPECT_ANY_THROW(read(std::string("secret weight=") + weight)) << weight;
}

TEST(ApiKeysTest, LetsKeysInAndNothingElse) {
  ApiKeys keys;
  keys.Add("secret-one", "test");
  keys.Add("two", "test");
  EXPECT_TRUE(keys.Allows("Bearer secret-one"));
  EXPECT_TRUE(keys.Allows("bearer two"));
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer secret-on", "Bearer secret-one1",
                             "Bearer twotwo", "Basic two", "two", "Bearer secret-onesecret-one"}) {
    EXPECT_FALSE(keys.Allows(header)) << header;
  }
  EXPECT_ANY_THROW(keys.Add("", "test"));
  EXPECT_ANY_THROW(keys.Add("a b", "test"));
}

}  // namespace
}  // namespace loopspec::test

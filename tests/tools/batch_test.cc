// loopspec batch from outside: requests as OpenAI's batches have them, answers likewise.
#include <gtest/gtest.h>

#include <set>

#include "tests/tools/batch_cases.h"
#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

std::vector<std::string> Arguments(const std::string& input, const std::string& output) {
  return BatchArguments(input, output);
}

TEST(Batch, AnswersAsOpenAisBatchesDo) {
  const Scratch scratch;
  const std::string input = scratch.Write(
      "in.jsonl",
      Completion(1, 8) +
          BatchRequest("talk", "/v1/chat/completions",
                       {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                        {"max_tokens", 5},
                        {"temperature", 0}}) +
          BatchRequest("bad", "/v1/completions", {{"prompt", "x"}, {"max_tokens", -1}}) +
          BatchRequest("nowhere", "/v1/nothing", {{"prompt", "x"}}) +
          BatchRequest("streamed", "/v1/completions", {{"prompt", "x"}, {"stream", true}}) +
          "{\"custom_id\": 3}\n" + "{broken\n" + "\n" + Completion(2, 30));
  const RunResult run = Call(Arguments(input, scratch / "out.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("8 of 8 requests answered, 5 with an error"), std::string::npos)
      << run.err;
  const std::vector<Json> out = JsonLines(Slurp(scratch / "out.jsonl"));
  ASSERT_EQ(out.size(), 8u);
  const std::vector<std::string> ids = {"r1",       "talk",   "bad",    "nowhere",
                                        "streamed", "line-6", "line-7", "r2"};
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i]["custom_id"], ids[i]);
  EXPECT_EQ(out[0]["response"]["status_code"], 200);
  EXPECT_TRUE(out[0]["error"].is_null());
  EXPECT_EQ(out[0]["response"]["body"]["usage"]["completion_tokens"], 8);
  const Json alone =
      Generate({"-m", OuroDemo(), "--threads", "1", "-p", "Tom has 1 apples", "-n", "8"});
  EXPECT_EQ(out[0]["response"]["body"]["choices"][0]["text"], alone["text"]);
  EXPECT_EQ(out[1]["response"]["body"]["object"], "chat.completion");
  EXPECT_EQ(out[2]["response"]["status_code"], 400);
  EXPECT_EQ(out[2]["response"]["body"]["error"]["param"], "max_tokens");
  EXPECT_EQ(out[3]["response"]["status_code"], 404);
  for (const size_t i : {4, 5, 6}) {
    EXPECT_TRUE(out[i]["response"].is_null());
    EXPECT_EQ(out[i]["error"]["code"], "invalid_line");
  }
  EXPECT_NE(out[4]["error"]["message"].get<std::string>().find("stream"), std::string::npos);
  EXPECT_EQ(out[7]["response"]["status_code"], 200);
}

// The order in which a schema's properties stand is the order in which they are written.
TEST(Batch, SchemasKeepTheOrderOfTheirProperties) {
  const Scratch scratch;
  const std::string input = scratch.Write(
      "in.jsonl",
      R"({"custom_id":"x","url":"/v1/completions","body":{"prompt":"x","max_tokens":300,)"
      R"("temperature":0,"json_schema":{"type":"object","properties":{"b":{"const":1},)"
      R"("a":{"const":2}},"required":["b","a"],"additionalProperties":false}}})"
      "\n");
  const RunResult run = Call(Arguments(input, scratch / "out.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  const Json answer = JsonLines(Slurp(scratch / "out.jsonl")).at(0);
  const std::string text = answer["response"]["body"]["choices"][0]["text"];
  EXPECT_LT(text.find("\"b\""), text.find("\"a\"")) << text;
}

// Strict is a refusal; where it is off the answer says what it does not keep.
TEST(Batch, SaysWhichKeywordsOfASchemaWereIgnored) {
  const auto request = [](const std::string& id, bool strict) {
    const Json schema = {{"type", "array"},
                         {"uniqueItems", true},
                         {"contains", {{"const", 1}}},
                         {"items", {{"type", "integer"}}}};
    const Json format = {{"type", "json_schema"},
                         {"json_schema", {{"name", "x"}, {"strict", strict}, {"schema", schema}}}};
    return BatchRequest(id, "/v1/completions",
                        {{"prompt", "x"}, {"max_tokens", 4}, {"response_format", format}});
  };
  const Scratch scratch;
  const std::string input =
      scratch.Write("in.jsonl", request("strict", true) + request("loose", false));
  const RunResult run = Call(Arguments(input, scratch / "out.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<Json> out = JsonLines(Slurp(scratch / "out.jsonl"));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["response"]["status_code"], 400);
  EXPECT_FALSE(out[0]["response"].contains("headers"));
  EXPECT_EQ(out[1]["response"]["status_code"], 200);
  EXPECT_EQ(out[1]["response"]["headers"]["X-Loopspec-Ignored-Keywords"], "uniqueItems");
}

TEST(Batch, GoesOnAfterABreak) {
  const Scratch scratch;
  std::string requests;
  for (int i = 0; i < 12; ++i) requests += Completion(i, 4 + 3 * (i % 4));
  const std::string input = scratch.Write("in.jsonl", requests);
  for (const std::string order : {"input", "free"}) {
    const std::string output = scratch / ("out-" + order + ".jsonl");
    std::vector<std::string> arguments = Arguments(input, output);
    arguments.insert(arguments.end(), {"--order", order});
    ASSERT_EQ(Call(arguments).code, 0);
    const std::string whole = Slurp(output);
    ASSERT_EQ(JsonLines(whole).size(), 12u);
    // Five answers and half of the sixth are left.
    size_t at = 0;
    for (int i = 0; i < 5; ++i) at = whole.find('\n', at) + 1;
    scratch.Write("out-" + order + ".jsonl", whole.substr(0, at + 20));
    const RunResult again = Call(arguments);
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_NE(again.err.find("12 of 12 requests answered, 5 of them before"), std::string::npos)
        << again.err;
    const auto texts = [](const std::string& file) {
      std::map<std::string, std::string> by_id;
      for (const Json& line : JsonLines(file))
        by_id[line["custom_id"]] = line["response"]["body"]["choices"][0]["text"];
      return by_id;
    };
    EXPECT_EQ(Slurp(output).substr(0, at), whole.substr(0, at));
    EXPECT_EQ(texts(Slurp(output)), texts(whole));
    EXPECT_EQ(texts(whole).size(), 12u);
    const RunResult third = Call(arguments);
    EXPECT_EQ(third.code, 0);
    EXPECT_NE(third.err.find("all 12 requests are answered already"), std::string::npos);
  }
}

// Killed while the first and longest request is under way: the others are on disk already.
TEST(Batch, AFinishedAnswerIsOnDiskAtOnce) {
  const Scratch scratch;
  std::string requests = Completion(0, 1500);
  for (int i = 1; i < 6; ++i) requests += Completion(i, 2);
  const std::string input = scratch.Write("in.jsonl", requests);
  const std::string output = scratch / "out.jsonl";
  RunOptions killed;
  killed.kill_when = [&] { return WholeLines(Slurp(output)).size() >= 3; };
  const RunResult run = Call(Arguments(input, output), killed);
  ASSERT_EQ(run.signal, SIGKILL) << "it ended before: " << run.err;
  const std::vector<Json> left = WholeLines(Slurp(output));
  ASSERT_GE(left.size(), 3u);
  for (const Json& line : left) EXPECT_NE(line["custom_id"], "r0");
}

// All answers are there, a run ended while it put them in order: the next one does it.
TEST(Batch, PutsAFinishedFileInOrder) {
  const Scratch scratch;
  std::string requests;
  for (int i = 0; i < 4; ++i) requests += Completion(i, 3);
  const std::string input = scratch.Write("in.jsonl", requests);
  const std::string output = scratch / "out.jsonl";
  ASSERT_EQ(Call(Arguments(input, output)).code, 0);
  const std::string whole = Slurp(output);
  const size_t half = whole.find('\n', whole.find('\n') + 1) + 1;
  scratch.Write("out.jsonl", whole.substr(half) + whole.substr(0, half));
  scratch.Write("out.jsonl.partial", whole.substr(0, 30));
  const RunResult again = Call(Arguments(input, output));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Slurp(output), whole);
  EXPECT_EQ(scratch.Names(), (std::vector<std::string>{"in.jsonl", "out.jsonl"}));
}

TEST(Batch, SurvivesKillsAtRandomMoments) {
  KillAtRandomMoments(5, 1);
}

TEST(Batch, LeavesNoEmptyFileBehind) {
  const Scratch scratch;
  const std::string input = scratch.Write("in.jsonl", Completion(1, 2));
  std::vector<std::string> arguments = Arguments(input, scratch / "out");
  arguments[2] = scratch / "no-model";
  ExpectRefusal(arguments, {"no-model"});
  EXPECT_EQ(scratch.Names(), std::vector<std::string>{"in.jsonl"});
}

TEST(Batch, TakesPlainPrompts) {
  const Scratch scratch;
  const std::string input =
      scratch.Write("in.txt", "Once upon a time\n\"a\\nquoted one\"\n\nThe end\n");
  std::vector<std::string> arguments = Arguments(input, "-");
  arguments.insert(arguments.end(), {"-n", "6"});
  const RunResult run = Call(arguments);
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<Json> out = JsonLines(run.out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[2]["custom_id"], "line-4");
  for (const Json& line : out) EXPECT_EQ(line["response"]["status_code"], 200) << line.dump();
}

// The texts of a batch of plain prompts, with more arguments and variables.
std::vector<std::string> PlainTexts(const std::string& input, const std::vector<std::string>& more,
                                    const RunOptions& options = {}) {
  std::vector<std::string> arguments = Arguments(input, "-");
  arguments.insert(arguments.end(), more.begin(), more.end());
  const RunResult run = Call(arguments, options);
  EXPECT_EQ(run.code, 0) << run.err;
  std::vector<std::string> texts;
  for (const Json& line : JsonLines(run.out))
    texts.push_back(line["response"]["body"]["choices"][0]["text"]);
  return texts;
}

// One default in all commands: greedy where the model does not ask for anything else.
TEST(Batch, APromptIsSampledAsGenerateDoes) {
  const Scratch scratch;
  const std::string input = scratch.Write("in.txt", "Once upon a time\nThe cat\n");
  const auto generate = [](const std::string& prompt, std::vector<std::string> more) {
    more.insert(more.begin(), {"-m", OuroDemo(), "--threads", "1", "-p", prompt, "-n", "20"});
    return Generate(more)["text"].get<std::string>();
  };
  EXPECT_EQ(PlainTexts(input, {"-n", "20"}),
            (std::vector<std::string>{generate("Once upon a time", {}), generate("The cat", {})}));
  // Line by line the seeds that follow; by options and by variables.
  const std::vector<std::string> sampled = {
      generate("Once upon a time", {"--temperature", "1.5", "--top-k", "40", "--seed", "7"}),
      generate("The cat", {"--temperature", "1.5", "--top-k", "40", "--seed", "8"})};
  EXPECT_EQ(PlainTexts(input, {"-n", "20", "--temperature", "1.5", "--top-k", "40", "--seed", "7"}),
            sampled);
  RunOptions variables;
  variables.environment = {
      {"LOOPSPEC_TEMPERATURE", "1.5"}, {"LOOPSPEC_TOP_K", "40"}, {"LOOPSPEC_SEED", "7"}};
  EXPECT_EQ(PlainTexts(input, {"-n", "20"}, variables), sampled);
}

TEST(Batch, TheSameFileAndSeedAreTheSameBytes) {
  const Scratch scratch;
  std::string requests;
  for (int i = 0; i < 6; ++i) requests += "Tom has a cat\n";
  requests += BatchRequest("own", "/v1/completions",
                           {{"prompt", "Lily"}, {"max_tokens", 12}, {"temperature", 0.5}});
  requests +=
      BatchRequest("open", "/v1/chat/completions",
                   {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}, {"max_tokens", 12}});
  requests += BatchRequest("other", "/generate",
                           {{"text", "Lily"}, {"sampling_params", {{"max_new_tokens", 12}}}});
  const std::string input = scratch.Write("in.jsonl", requests);
  const auto run = [&](const std::string& name, const std::string& seed) {
    std::vector<std::string> arguments = Arguments(input, scratch / name);
    arguments.insert(arguments.end(), {"-n", "12", "--temperature", "1.2", "--seed", seed});
    const RunResult result = Call(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return Slurp(scratch / name);
  };
  const std::string first = run("first", "5");
  EXPECT_EQ(JsonLines(first).size(), 9u);
  EXPECT_EQ(run("second", "5"), first);
  EXPECT_NE(run("third", "6"), first);
  // The same prompt in six lines is drawn six times.
  std::set<std::string> texts;
  for (const Json& line : JsonLines(first)) {
    EXPECT_EQ(line["response"]["status_code"], 200) << line.dump();
    if (line["response"]["body"].contains("choices"))
      texts.insert(line["response"]["body"]["choices"][0].dump());
  }
  EXPECT_GT(texts.size(), 5u);
}

TEST(Batch, RefusesWhatCannotBeABatch) {
  const Scratch scratch;
  const std::string twice = scratch.Write("twice.jsonl", Completion(1, 2) + Completion(1, 3));
  ExpectRefusal(Arguments(twice, scratch / "out"), {"line 2", "custom_id r1", "line 1"});
  ExpectRefusal(Arguments(scratch.Write("empty", "\n"), scratch / "out"), {"no request"});
  ExpectRefusal(Arguments(scratch / "missing", scratch / "out"), {"missing"});
  const std::string input = scratch.Write("in.jsonl", Completion(1, 2));
  ExpectRefusal(Arguments(input, scratch.Write("other", "{\"a\": 1}\n")), {"other", "line 1"});
  ExpectRefusal(Arguments(input, scratch / "no/folder/out"), {"cannot be written"});
}

// As wherever a file is named.
TEST(ServeLog, ADashIsStandardOutput) {
  const Scratch scratch;
  RunOptions options;
  options.folder = scratch.path().string();
  options.signal_after_output = SIGTERM;
  const RunResult run = Call(
      {"serve", "-m", OuroDemo(), "--threads", "1", "--port", "0", "--log-file", "-"}, options);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("info"), std::string::npos) << run.out << run.err;
  EXPECT_EQ(scratch.Names(), std::vector<std::string>());
}

}  // namespace
}  // namespace loopspec::test

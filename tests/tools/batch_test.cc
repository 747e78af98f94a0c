// loopspec batch from outside: requests as OpenAI's batches have them, answers likewise.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::string Request(const std::string& id, const std::string& url, const Json& body) {
  return Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump() + "\n";
}

std::string Completion(int i, int max_tokens) {
  return Request("r" + std::to_string(i), "/v1/completions",
                 {{"prompt", "Tom has " + std::to_string(i) + " apples"},
                  {"max_tokens", max_tokens},
                  {"temperature", 0}});
}

std::vector<std::string> Arguments(const std::string& input, const std::string& output) {
  return {"batch", "-m", OuroDemo(), "--threads", "1", "--input", input, "--output", output};
}

TEST(Batch, AnswersAsOpenAisBatchesDo) {
  const Scratch scratch;
  const std::string input = scratch.Write(
      "in.jsonl", Completion(1, 8) +
                      Request("talk", "/v1/chat/completions",
                              {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                               {"max_tokens", 5},
                               {"temperature", 0}}) +
                      Request("bad", "/v1/completions", {{"prompt", "x"}, {"max_tokens", -1}}) +
                      Request("nowhere", "/v1/nothing", {{"prompt", "x"}}) +
                      Request("streamed", "/v1/completions", {{"prompt", "x"}, {"stream", true}}) +
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

}  // namespace
}  // namespace loopspec::test

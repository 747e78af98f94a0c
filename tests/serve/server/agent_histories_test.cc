// Conversations in the shape that coding agents send, whole with every request: a long system text,
// tools, calls and their results, images, blocks that nobody knows, a line about billing that
// always changes. No request is refused, and what was computed before is found again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/scripted_engine.h"

namespace loopspec::test {
namespace {

constexpr int kTurns = 20;

std::string LongText(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) text += fmt::format("Rule {}: be careful. ", i);
  return text;
}

Json Block(const char* type, const char* key, const std::string& text) {
  return {{"type", type}, {key, text}};
}

Json PathSchema() {
  return {{"$schema", "http://json-schema.org/draft-07/schema#"},
          {"type", "object"},
          {"properties", {{"path", {{"type", "string"}, {"description", "Absolute."}}}}},
          {"required", {"path"}},
          {"additionalProperties", false}};
}

class AgentHistoriesTest : public testing::Test {
 protected:
  AgentHistoriesTest() {
    serve::ServiceOptions options;
    options.log.file = "/dev/null";
    service_ = std::make_unique<serve::Service>(options);
    server_ = std::make_unique<serve::HttpServer>(PatientHttp(), *service_);
    ScriptedOptions engine;
    // Where thinking is enabled the prompt ends within it.
    engine.answer = "Hm.</think>I see.";
    engine.endless = false;
    engine.context = 200'000;
    engine.max_running = 2;
    service_->SetEngine(MakeScriptedEngine(engine));
  }

  // Of the prompt, the share that was found computed.
  double Hits(const char* path, const Json& body, Json& answer) {
    const Answer got = Post(server_->port(), path, body);
    EXPECT_EQ(got.status, 200) << got.body;
    if (got.status != 200) return 0;
    answer = got.json();
    const Json& usage = answer["usage"];
    if (usage.contains("input_tokens_details")) {
      return usage["input_tokens_details"]["cached_tokens"].get<double>() /
             usage["input_tokens"].get<double>();
    }
    const double cached = usage["cache_read_input_tokens"];
    return cached / (cached + usage["input_tokens"].get<double>());
  }

  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> server_;
};

// As Claude Code sends them. `front`: the line at the very beginning.
Json MessagesBody(const std::string& front, const Json& messages) {
  Json system =
      Json::array({Block("text", "text", front), Block("text", "text", LongText(60'000))});
  system[1]["cache_control"] = {{"type", "ephemeral"}};
  Json tools = Json::array(
      {{{"name", "Read"}, {"description", "Reads a file."}, {"input_schema", PathSchema()}},
       {{"type", "web_search_20250305"}, {"name", "web_search"}, {"max_uses", 8}}});
  return {{"model", "claude-something"},
          {"max_tokens", 32'000},
          {"system", system},
          {"messages", messages},
          {"tools", tools},
          {"stream", false},
          {"metadata", {{"user_id", "u"}}},
          {"thinking", {{"type", "enabled"}, {"budget_tokens", 31'999}}},
          {"context_management", {{"edits", Json::array()}}}};
}

TEST_F(AgentHistoriesTest, Messages) {
  Json messages = Json::array();
  for (int turn = 0; turn < kTurns; ++turn) {
    Json said = Json::array({Block("text", "text", "<system-reminder>Go on.</system-reminder>"),
                             Block("text", "text", fmt::format("Step {}.", turn))});
    if (turn % 5 == 2) said.push_back(Block("container_upload", "file_id", "f"));
    messages.push_back({{"role", "user"}, {"content", said}});
    Json answer;
    const double hits = Hits(
        "/v1/messages",
        MessagesBody(fmt::format("x-anthropic-billing-header: cc_version=2; cch={:05x};", turn),
                     messages),
        answer);
    if (turn > 0) {
      EXPECT_GT(hits, 0.99) << turn;
    }
    ASSERT_TRUE(answer.contains("content"));
    // The answer as it came, and a call of a tool with its result.
    Json content = Json::array({Block("thinking", "thinking", "Hm.")});
    content[0]["signature"] = "s";
    content.push_back(Block("redacted_thinking", "data", "zzz"));
    content.insert(content.end(), answer["content"].begin(), answer["content"].end());
    const std::string id = fmt::format("toolu_{}", turn);
    content.push_back(
        {{"type", "tool_use"}, {"id", id}, {"name", "Read"}, {"input", {{"path", "/a"}}}});
    messages.push_back({{"role", "assistant"}, {"content", content}});
    Json result = {{"type", "tool_result"}, {"tool_use_id", id}, {"content", "12 lines"}};
    if (turn % 5 == 1) result["is_error"] = true;
    if (turn % 5 == 3) {
      result["content"] = Json::array(
          {Block("text", "text", "a picture"),
           {{"type", "image"},
            {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", "AAAA"}}}}});
    }
    messages.push_back({{"role", "user"}, {"content", Json::array({result})}});
  }
  // What changes at the beginning, and is in the prompt, finds nothing again.
  Json answer;
  Hits("/v1/messages", MessagesBody("1 o'clock", messages), answer);
  EXPECT_LT(Hits("/v1/messages", MessagesBody("2 o'clock", messages), answer), 0.01);
}

// As Codex sends them.
TEST_F(AgentHistoriesTest, Responses) {
  const Json tools =
      Json::array({{{"type", "function"},
                    {"name", "shell"},
                    {"description", "Runs a command."},
                    {"strict", false},
                    {"parameters", PathSchema()}},
                   {{"type", "web_search"}},
                   {{"type", "custom"}, {"name", "apply_patch"}, {"format", {{"type", "grammar"}}}},
                   {{"type", "local_shell"}}});
  Json input = Json::array(
      {{{"type", "message"},
        {"role", "developer"},
        {"content", Json::array({Block("input_text", "text", "Permissions: none.")})}}});
  for (int turn = 0; turn < kTurns; ++turn) {
    input.push_back(
        {{"type", "message"},
         {"role", "user"},
         {"content", Json::array({Block("input_text", "text", fmt::format("Step {}.", turn))})}});
    const Json body = {{"model", "gpt-something"},
                       {"instructions", LongText(60'000)},
                       {"input", input},
                       {"tools", tools},
                       {"tool_choice", "auto"},
                       {"parallel_tool_calls", false},
                       {"reasoning", {{"effort", "medium"}, {"summary", "auto"}}},
                       {"store", false},
                       {"stream", false},
                       {"max_output_tokens", 32'000},
                       {"include", Json::array({"reasoning.encrypted_content"})},
                       {"prompt_cache_key", "k"},
                       {"text", {{"verbosity", "medium"}}}};
    Json answer;
    const double hits = Hits("/v1/responses", body, answer);
    if (turn > 0) {
      EXPECT_GT(hits, 0.99) << turn;
    }
    ASSERT_TRUE(answer.contains("output"));
    input.push_back({{"type", "reasoning"},
                     {"summary", Json::array({Block("summary_text", "text", "Hm.")})},
                     {"encrypted_content", "zzz"}});
    for (const Json& item : answer["output"]) input.push_back(item);
    const std::string id = fmt::format("call_{}", turn);
    input.push_back({{"type", "function_call"},
                     {"call_id", id},
                     {"name", "shell"},
                     {"arguments", R"({"path":"/a"})"}});
    input.push_back({{"type", "function_call_output"}, {"call_id", id}, {"output", "12 lines"}});
    if (turn % 5 == 3) {
      input.back()["output"] =
          Json::array({{{"type", "input_image"}, {"image_url", "data:image/png;base64,AAAA"}}});
    }
    if (turn % 5 == 2) input.push_back({{"type", "web_search_call"}, {"status", "completed"}});
  }
}

}  // namespace
}  // namespace loopspec::test

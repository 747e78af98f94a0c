// Tools over a demo model, in every form of calls: its folder with another chat template. What it
// writes has no meaning, but must be valid, and the same with and without drafts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "serve/http/server.h"
#include "serve/server/service.h"
#include "tests/serve/client.h"
#include "tests/support/device.h"
#include "tests/support/temporary_folder.h"

namespace loopspec::test {
namespace {

constexpr const char* kTurns =
    "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{%- if add_generation_prompt %}{% if think %}<think>{% else %}The{% endif %}{% endif %}";

struct MarkedForm {
  const char* name;
  const char* marks;  // what the template is known by
};
constexpr MarkedForm kForms[] = {
    {"hermes", "{# tools <tool_call> #}"},
    {"xml", "{# tools <tool_call> <function= #}"},
    {"llama", "{# tools ipython \"parameters\": #} "},
    {"generic", ""},
};

const Json kLookAndWait = Json::parse(R"([
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties":
        {"what": {"type": "string", "maxLength": 12}, "times": {"type": "integer", "minimum": 1,
         "maximum": 99}, "how": {"enum": ["fast", "slow"]}, "sure": {"type": "boolean"}},
        "required": ["what", "times", "how"]}}},
    {"type": "function", "function": {"name": "wait"}}])");

std::string Fault(const Json& call) {
  const Json arguments =
      Json::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
  if (!arguments.is_object()) return "no object";
  if (call["function"]["name"] == "wait") return arguments.empty() ? "" : "not empty";
  if (call["function"]["name"] != "look") return "no tool";
  for (const char* name : {"what", "times", "how"})
    if (!arguments.contains(name)) return std::string("no ") + name;
  if (!arguments["what"].is_string()) return "what";
  const Json& times = arguments["times"];
  if (!times.is_number_integer() || times.get<int>() < 1 || times.get<int>() > 99) return "times";
  if (arguments["how"] != "fast" && arguments["how"] != "slow") return "how";
  return "";
}

class ToolsModelTest : public testing::TestWithParam<MarkedForm> {
 protected:
  ToolsModelTest() {
    const std::filesystem::path demo = LOOPSPEC_SOURCE_DIR "/models/ouro-demo";
    for (const auto& file : std::filesystem::directory_iterator(demo))
      std::filesystem::create_symlink(file.path(), folder_ / file.path().filename().string());
    std::ofstream(folder_ / "chat_template.jinja") << GetParam().marks << kTurns;
    EngineOptions load;
    load.model = folder_.path().string();
    load.device = TestDevice();
    load.threads = 2;
    load.kv_positions = 8192;
    serve::ServiceOptions options;
    options.log.file = "/dev/null";
    service_ = std::make_unique<serve::Service>(options);
    service_->SetEngine(std::make_shared<Engine>(load));
    server_ = std::make_unique<serve::HttpServer>(PatientHttp(), *service_);
  }
  ~ToolsModelTest() override { server_.reset(); }

  // The first choice, which is the same with and without drafts.
  Json Choice(Json fields) {
    fields["messages"] = {{{"role", "user"}, {"content", "Tell me of a cat."}}};
    fields["tools"] = kLookAndWait;
    fields["max_tokens"] = 160;
    Json choices[2];
    for (const bool drafts : {true, false}) {
      fields["decode"] = drafts ? "loopspec" : "ar";
      const Answer answer = Post(server_->port(), "/v1/chat/completions", fields);
      EXPECT_EQ(answer.status, 200) << answer.body;
      Json& choice = choices[drafts ? 0 : 1] = answer.json()["choices"][0];
      if (!choice["message"].contains("tool_calls")) continue;
      for (Json& call : choice["message"]["tool_calls"]) call.erase("id");
    }
    EXPECT_EQ(choices[0], choices[1]) << fields;
    return choices[0];
  }

  const TemporaryFolder folder_;
  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> server_;
};

TEST_P(ToolsModelTest, CallsAreValidAndTheSameWithDrafts) {
  const Json named = {{"type", "function"}, {"function", {{"name", "look"}}}};
  for (const Json& choice : {Json("required"), named}) {
    for (const int seed : {-1, 2}) {
      Json fields = {{"tool_choice", choice}, {"parallel_tool_calls", false}};
      fields["temperature"] = seed < 0 ? 0.0 : 1.0;
      if (seed >= 0) fields["seed"] = seed;
      if (seed >= 0) fields["sampler"] = "coupled";
      if (seed == 2) {
        fields["chat_template_kwargs"] = {{"think", true}};
        fields["max_thinking_tokens"] = 9;
      }
      const Json got = Choice(fields);
      if (got["finish_reason"] == "length") continue;  // white space without end, or thoughts
      ASSERT_EQ(got["finish_reason"], "tool_calls") << got;
      ASSERT_EQ(got["message"]["tool_calls"].size(), 1u) << got;
      EXPECT_EQ(Fault(got["message"]["tool_calls"][0]), "") << got;
      if (choice.is_object()) {
        EXPECT_EQ(got["message"]["tool_calls"][0]["function"]["name"], "look");
      }
      EXPECT_TRUE(seed == 2 || got["message"]["content"].is_null()) << got;
    }
  }
}

// Text is what it is without tools that may be called, since the grammar waits for a mark.
TEST_P(ToolsModelTest, TextStaysFree) {
  const Json choice = Choice({{"temperature", 0}, {"stop", {"."}}});
  ASSERT_FALSE(choice["message"].contains("tool_calls")) << choice;
  EXPECT_GT(choice["message"]["content"].get<std::string>().size(), 10u);
}

INSTANTIATE_TEST_SUITE_P(Forms, ToolsModelTest, testing::ValuesIn(kForms),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace loopspec::test

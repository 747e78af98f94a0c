// Conversations with tools, for templates that know tools and for those that do not.
#include "text/tool_prompt.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/mapped_file.h"
#include "text/chat_template.h"
#include "text/tool_format.h"

namespace loopspec {
namespace {

OrderedJson Tools() {
  return OrderedJson::parse(
      R"([{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": 2}}}])");
}

TEST(ToolPrompt, IsUntouchedWithoutTools) {
  const OrderedJson messages = OrderedJson::parse(
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])");
  EXPECT_EQ(WithToolsInWords(messages, nullptr), messages);
  EXPECT_EQ(WithToolsInWords(messages, OrderedJson::array()), messages);
  EXPECT_EQ(WithOneCallEach(messages), messages);
}

TEST(ToolPrompt, NamesToolsCallsAndResults) {
  const OrderedJson messages = OrderedJson::parse(R"([
      {"role": "user", "content": "add"},
      {"role": "assistant", "content": "Yes.", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
          {"id": "2", "type": "function", "function": {"name": "add", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "1", "content": "3"},
      {"role": "tool", "tool_call_id": "2", "content": "4"},
      {"role": "user", "content": "thanks"}])");
  const OrderedJson said = WithToolsInWords(messages, Tools());
  ASSERT_EQ(said.size(), 5u);
  EXPECT_EQ(said[0]["role"], "system");
  EXPECT_EQ(said[0]["content"],
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
            "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"b\": 1, "
            "\"a\": 2}}}\n</tools>\n\nFor each function call, return a json object with function "
            "name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
            "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
  EXPECT_EQ(said[2]["content"],
            "Yes.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(said[3]["role"], "user");
  EXPECT_EQ(said[3]["content"],
            "<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>");
  EXPECT_EQ(said[4], messages[4]);

  OrderedJson with_system = messages;
  with_system.insert(with_system.begin(), OrderedJson{{"role", "system"}, {"content", "Be kind."}});
  const OrderedJson both = WithToolsInWords(with_system, Tools());
  ASSERT_EQ(both.size(), 5u);
  EXPECT_EQ(both[0]["content"], "Be kind.\n\n" + said[0]["content"].get<std::string>());
}

TEST(ToolPrompt, GivesEachCallAMessage) {
  const OrderedJson messages = OrderedJson::parse(
      R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}, {"id": "2"}]}])");
  const OrderedJson split = WithOneCallEach(messages);
  ASSERT_EQ(split.size(), 2u);
  EXPECT_EQ(split[1]["tool_calls"].dump(), R"([{"id":"2"}])");
}

// The templates that models bring, and what is recognised in them.
TEST(ToolPrompt, KnowsTheTemplatesOfModels) {
  const auto path = std::filesystem::path(LOOPSPEC_TEMPLATE_DATA) / "templates.json";
  const OrderedJson data = ParseOrderedJson(ReadFile(path), path.string());
  const OrderedJson json = {{"tool_call_format", "json"}};
  int known = 0;
  for (const auto& [name, entry] : data["templates"].items()) {
    const std::string source = entry["source"].get<std::string>();
    const ToolFormat format = ToolFormatOf(source, OrderedJson::object());
    if (name.find("Nanbeige") != name.npos) {
      EXPECT_EQ(format, ToolFormat::kXml) << name;
      EXPECT_EQ(ToolFormatOf(source, json), ToolFormat::kHermes) << name;
      ++known;
    } else if (name.find("Qwen") != name.npos) {
      EXPECT_EQ(format, ToolFormat::kHermes) << name;
      ++known;
    } else if (name.find("Huginn") != name.npos || name.find("demo") != name.npos) {
      EXPECT_EQ(format, ToolFormat::kGeneric) << name;
      ++known;
    }
  }
  EXPECT_GE(known, 4);
}

TEST(ToolPrompt, IsPutIntoATemplateThatKnowsNoTools) {
  const ChatTemplate plain = ChatTemplate::FromSource(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", OrderedJson::object());
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "user", "content": "hi"}])");
  ChatTemplate::Options options;
  options.arguments = {{"tools", Tools()}};
  EXPECT_EQ(plain.Render(messages, options), "[user]hi");
  options.tool_format = ToolFormatOf(plain.source(), options.arguments);
  const std::string said = plain.Render(messages, options);
  EXPECT_EQ(said.find("[system]# Tools"), 0u) << said;
  EXPECT_NE(said.find("</tool_call>[user]hi"), std::string::npos) << said;
}

}  // namespace
}  // namespace loopspec

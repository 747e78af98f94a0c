#include "serve/openai/chat_form.h"

#include <utility>

#include "serve/openai/error.h"
#include "serve/openai/fields.h"
#include "serve/openai/members.h"
#include "serve/openai/tool_fields.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

// {"type": "function", "function": {...}}; what is null is left out.
OrderedJson ChatTool(const std::string& name, const OrderedJson& description,
                     const OrderedJson& parameters, const OrderedJson& strict) {
  OrderedJson function = {{"name", name}};
  if (!description.is_null()) function["description"] = description;
  if (!parameters.is_null()) function["parameters"] = parameters;
  if (!strict.is_null()) function["strict"] = strict;
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace

void ChatForm::System(const std::string& text) {
  if (messages_.size() == 1 && messages_[0]["role"] == "system") {
    std::string& content = messages_[0]["content"].get_ref<std::string&>();
    content += (content.empty() || text.empty() ? "" : "\n\n") + text;
    return;
  }
  messages_.push_back({{"role", "system"}, {"content", text}});
}

void ChatForm::User(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
}

void ChatForm::Result(const std::string& id, const std::string& text) {
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
}

OrderedJson& ChatForm::Assistant() {
  if (messages_.empty() || messages_.back()["role"] != "assistant")
    messages_.push_back({{"role", "assistant"}, {"content", ""}});
  return messages_.back();
}

void ChatForm::Turn() {
  Assistant();
}

void ChatForm::Reasoning(const std::string& text) {
  OrderedJson& message = Assistant();
  if (!message.contains("reasoning_content")) message["reasoning_content"] = "";
  message["reasoning_content"].get_ref<std::string&>() += text;
}

void ChatForm::Say(const std::string& text) {
  Assistant()["content"].get_ref<std::string&>() += text;
}

void ChatForm::Call(const std::string& id, const std::string& name, OrderedJson arguments) {
  Assistant()["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

OrderedJson ChatTools(const OrderedJson& value, const std::string& path, const ToolWords& words,
                      const WireLimits& limits, IgnoredFields& ignored) {
  CheckIsList(value, path);
  OrderedJson tools = OrderedJson::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const OrderedJson& tool = value[i];
    const std::string where = ElementOf(path, i);
    CheckIsObject(tool, where);
    const std::string type = TextMember(tool, "type", where);
    if (type != words.function && !(type.empty() && words.typeless)) {
      UnknownType(where, type, limits, ignored);
      continue;
    }
    const std::string name = TextMember(tool, "name", where);
    if (name.empty()) Refuse(where + ".name", "{} has no name.", where);
    CheckToolName(name, where + ".name");
    const OrderedJson& schema = Member(tool, words.schema);
    if (words.needs_schema || !schema.is_null()) CheckIsObject(schema, where + "." + words.schema);
    static const OrderedJson absent;
    const OrderedJson& strict = words.strict ? Member(tool, "strict") : absent;
    if (!strict.is_null()) ReadBool(strict, where + ".strict");
    tools.push_back(ChatTool(name, TextMember(tool, "description", where), schema, strict));
  }
  return tools;
}

void CheckToolChoice(ToolUse& tools, const std::string& path) {
  if (tools.tools.empty()) tools.choice = ToolChoice::kAuto;
  if (tools.choice != ToolChoice::kNamed) return;
  for (const OrderedJson& tool : tools.tools) {
    if (tool["function"]["name"] == tools.named) return;
  }
  Refuse(path, "{} names the tool {}, which is not among tools.", path, Shown(Json(tools.named)));
}

std::string LeftOut(std::string_view kind) {
  return fmt::format("[{} left out: this model reads text only]", kind);
}

}  // namespace loopspec::serve

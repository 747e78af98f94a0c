#include "serve/openai/chat_form.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "serve/openai/error.h"
#include "serve/openai/fields.h"
#include "serve/openai/values.h"

namespace loopspec::serve {

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

OrderedJson ChatTool(const std::string& name, const OrderedJson& description,
                     const OrderedJson& parameters, const OrderedJson& strict) {
  OrderedJson function = {{"name", name}};
  if (!description.is_null()) function["description"] = description;
  if (!parameters.is_null()) function["parameters"] = parameters;
  if (!strict.is_null()) function["strict"] = strict;
  return {{"type", "function"}, {"function", std::move(function)}};
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

const OrderedJson& Member(const OrderedJson& object, const char* name) {
  static const OrderedJson none;
  const auto it = object.find(name);
  return it == object.end() ? none : *it;
}

std::string TextMember(const OrderedJson& object, const char* name, const std::string& path) {
  const OrderedJson& value = Member(object, name);
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return ReadString(value, path + "." + name);
}

void CheckIsObject(const OrderedJson& value, const std::string& path) {
  if (!value.is_object()) Refuse(path, "{} is {}, expected an object.", path, Shown(value));
}

void CheckIsList(const OrderedJson& value, const std::string& path) {
  if (!value.is_array()) Refuse(path, "{} is {}, expected a list.", path, Shown(value));
}

std::string ElementOf(const std::string& path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

std::string WithoutIndices(const std::string& path) {
  std::string out = path;
  out.erase(
      std::remove_if(out.begin(), out.end(), [](unsigned char c) { return std::isdigit(c) != 0; }),
      out.end());
  return out;
}

}  // namespace loopspec::serve

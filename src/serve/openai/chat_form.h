// Conversations and tools in the form of OpenAI's chat, for APIs that have other words for them.
#pragma once

#include <string>
#include <string_view>

#include "serve/openai/types.h"

namespace loopspec::serve {

// Messages in the order in which they are said. What the assistant thinks, says and calls before
// anybody else speaks is one message.
class ChatForm {
 public:
  void System(const std::string& text);  // at the beginning all of these are one message
  void User(const std::string& text);
  void Reasoning(const std::string& text);
  void Say(const std::string& text);
  // `arguments`: an object, as templates want them; text where they are no object.
  void Call(const std::string& id, const std::string& name, OrderedJson arguments);
  void Result(const std::string& id, const std::string& text);
  // The assistant's turn, even if nothing is said in it.
  void Turn();

  bool empty() const { return messages_.empty(); }
  OrderedJson Take() { return std::move(messages_); }

 private:
  OrderedJson& Assistant();
  OrderedJson messages_ = OrderedJson::array();
};

// {"type": "function", "function": {...}}; what is null is left out.
OrderedJson ChatTool(const std::string& name, const OrderedJson& description,
                     const OrderedJson& parameters, const OrderedJson& strict);
// Throws ApiException where `request` names a tool that is not there. Where there are no tools
// nothing is chosen.
void CheckToolChoice(ToolUse& tools, const std::string& path);

// What stands in the prompt for something that is no text.
std::string LeftOut(std::string_view kind);

// An object's member as text. Throws ApiException that names `path`; absent or null: empty.
std::string TextMember(const OrderedJson& object, const char* name, const std::string& path);
// Null where there is none.
const OrderedJson& Member(const OrderedJson& object, const char* name);
void CheckIsObject(const OrderedJson& value, const std::string& path);
void CheckIsList(const OrderedJson& value, const std::string& path);
std::string ElementOf(const std::string& path, size_t index);
// "messages[3].content[1]" as "messages[].content[]", so that the same in many of them has one
// name.
std::string WithoutIndices(const std::string& path);

}  // namespace loopspec::serve

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

// How an API writes a function in its list of tools, which may hold tools of other types too.
struct ToolWords {
  const char* function;  // the type that a function has
  bool typeless;         // a tool without a type is a function too
  const char* schema;    // the member with the schema of its arguments
  bool needs_schema;
  bool strict;  // it may have a member of this name
};

// The functions among `value` as the chat template wants them; tools of other types are noted as
// unknown and left out. Throws ApiException that names the tool.
OrderedJson ChatTools(const OrderedJson& value, const std::string& path, const ToolWords& words,
                      const WireLimits& limits, IgnoredFields& ignored);
// Throws ApiException where `request` names a tool that is not there. Where there are no tools
// nothing is chosen.
void CheckToolChoice(ToolUse& tools, const std::string& path);

// What stands in the prompt for something that is no text.
std::string LeftOut(std::string_view kind);

}  // namespace loopspec::serve

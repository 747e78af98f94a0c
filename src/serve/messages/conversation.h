// The conversation of a /v1/messages body, block by block.
#pragma once

#include <string>

#include "serve/openai/chat_form.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// Reads blocks into a conversation. Blocks of unknown types are left out and named in `ignored`.
struct BlockReader {
  const WireLimits& limits;
  IgnoredFields& ignored;
  ChatForm& form;

  // A text, or a list of blocks of text. Claude Code's line about billing is left out: it
  // changes with every request, so that no prompt would begin as an earlier one did.
  void System(const OrderedJson& value, const std::string& path);
  void Messages(const OrderedJson& value, const std::string& path);

 private:
  void User(const OrderedJson& content, const std::string& path, bool last);
  void Assistant(const OrderedJson& content, const std::string& path);
  std::string ResultText(const OrderedJson& block, const std::string& path);
};

// {"name", "description", "input_schema"}; tools that only Anthropic's own servers run are left
// out.
OrderedJson ReadMessagesTools(const OrderedJson& value, const std::string& path,
                              const WireLimits& limits, IgnoredFields& ignored);

}  // namespace loopspec::serve

// The conversation of a /v1/messages body, block by block.
#pragma once

#include <string>

#include "serve/openai/chat_form.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

// Where blocks are read: their limits, and where those that nobody knows are told.
struct BlockReader {
  const WireLimits& limits;
  IgnoredFields& ignored;
  ChatForm& form;

  // A text, or a list of blocks of text. A line about billing that changes with every request is no
  // part of it: with it no prefix of a prompt would ever be found again.
  void System(const OrderedJson& value, const std::string& path);
  void Messages(const OrderedJson& value, const std::string& path);

 private:
  void User(const OrderedJson& content, const std::string& path, bool last);
  void Assistant(const OrderedJson& content, const std::string& path);
  std::string ResultText(const OrderedJson& block, const std::string& path);
  // Tells of a block that is left out.
  void Skip(const std::string& type, const std::string& path);
};

// {"name", "description", "input_schema"}; tools that only Anthropic's own servers run are left
// out.
OrderedJson ReadMessagesTools(const OrderedJson& value, const std::string& path,
                              const WireLimits& limits, IgnoredFields& ignored);

}  // namespace loopspec::serve

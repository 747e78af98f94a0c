// The items of a /v1/responses body: the conversation so far, whole.
#pragma once

#include <string>

#include "serve/openai/chat_form.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

struct ItemReader {
  const WireLimits& limits;
  IgnoredFields& ignored;
  ChatForm& form;

  // A text, or a list of items. Items of unknown types are left out and named in `ignored`. An
  // image in the last item is refused. In earlier items a sentence stands for it: else a client
  // that sends its whole history would never be answered again.
  void Input(const OrderedJson& value, const std::string& path);

 private:
  void Item(const OrderedJson& item, const std::string& path, bool last);
  void Message(const OrderedJson& item, const std::string& path, bool last);
  // `refuse`: images, files and audio are refused; else a sentence stands for each.
  std::string PartsText(const OrderedJson& value, const std::string& path, bool refuse);
};

// Functions alone; other tools, which only OpenAI's own servers run, are left out.
OrderedJson ReadResponsesTools(const OrderedJson& value, const std::string& path,
                               const WireLimits& limits, IgnoredFields& ignored);

}  // namespace loopspec::serve

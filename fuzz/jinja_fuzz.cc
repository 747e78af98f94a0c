// Any bytes as a chat template over a small conversation: they render or end in an Error, within
// the limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "jinja/budget.h"
#include "text/chat_template.h"

namespace {

const loopspec::OrderedJson& Conversation() {
  static const auto* const kMessages = new loopspec::OrderedJson(loopspec::OrderedJson::parse(R"([
    {"role": "system", "content": "s"},
    {"role": "user", "content": "Größe <x> 1"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]},
    {"role": "tool", "content": [{"type": "text", "text": "t"}]}])"));
  return *kMessages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  loopspec::jinja::Limits limits;
  limits.steps = 3000;
  limits.text_bytes = 1 << 14;
  limits.range_items = 200;
  limits.depth = 100;
  try {
    const auto chat_template = loopspec::ChatTemplate::FromSource(
        std::string(reinterpret_cast<const char*>(data), size),
        {{"bos_token", "<s>"}, {"x", 3}, {"d", {{"k", 1.5}, {"l", {3, 1, 2}}}}});
    loopspec::ChatTemplate::Options options;
    options.now_unix = 1750000000;
    chat_template.Render(Conversation(), options, limits);
  } catch (const loopspec::Error&) {
    // A refusal is an answer.
  }
  return 0;
}

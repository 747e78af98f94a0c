#include "text/chat_prompt.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "base/json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr char32_t kFirstMark = 0xE000, kLastMark = 0xF8FF;  // for private use

// Calls `visit` with every string of a value.
template <typename Value, typename F>
void ForEachString(Value& value, F visit) {
  if (value.is_string()) {
    visit(value.template get_ref<
          std::conditional_t<std::is_const_v<Value>, const std::string&, std::string&>>());
  } else if (value.is_structured()) {
    for (auto& member : value) ForEachString(member, visit);
  }
}

bool IsTrusted(const OrderedJson& message) {
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return false;
  const auto& name = role->template get_ref<const std::string&>();
  return name == "assistant" || name == "system" || name == "developer";
}

// Calls `visit` with every string of a message that somebody else than the service or the model may
// have written.
template <typename Message, typename F>
void ForEachStrangeString(Message& message, F visit) {
  if (!message.is_object()) return;
  const bool trusted = IsTrusted(message);
  for (auto it = message.begin(); it != message.end(); ++it) {
    if (trusted ? it.key() == "tool_calls" : it.key() != "role") ForEachString(*it, visit);
  }
}

// Whether some text of others has a special token in it; most conversations have none.
bool HasStrangeTokens(const Tokenizer& tokenizer, const OrderedJson& messages) {
  bool found = false;
  for (const OrderedJson& message : messages) {
    ForEachStrangeString(message, [&](const std::string& text) {
      found = found || !tokenizer.SpecialPositions(text).empty();
    });
  }
  return found;
}

// A character that occurs in none of the texts that go into the prompt.
std::string UnusedMark(const std::string& all) {
  for (char32_t c = kFirstMark; c <= kLastMark; ++c) {
    std::string mark;
    AppendUtf8(c, mark);
    if (all.find(mark) == all.npos) return mark;
  }
  Fail("messages have every one of the {} characters for private use, expected one that is free",
       static_cast<int>(kLastMark - kFirstMark + 1));
}

// Every string of the messages of others, with `mark` within each special token. There it survives
// whatever a template does to the text: trimming, cutting, putting it into JSON.
OrderedJson Marked(const Tokenizer& tokenizer, OrderedJson messages, const std::string& mark) {
  for (OrderedJson& message : messages) {
    ForEachStrangeString(message, [&](std::string& text) {
      const std::vector<size_t> positions = tokenizer.SpecialPositions(text);
      for (auto at = positions.rbegin(); at != positions.rend(); ++at) text.insert(*at, mark);
    });
  }
  return messages;
}

}  // namespace

ChatPrompt EncodeChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      const OrderedJson& messages, const ChatTemplate::Options& options, bool trust,
                      const EncodeLimits& limits) {
  ChatPrompt prompt;
  if (trust || !HasStrangeTokens(tokenizer, messages)) {
    prompt.text = chat_template.Render(messages, options);
    // The template writes the special tokens itself.
    prompt.ids = tokenizer.Encode(prompt.text, false, limits);
    return prompt;
  }
  const std::string mark =
      UnusedMark(messages.dump() + options.arguments.dump() + chat_template.source());
  const std::string marked = chat_template.Render(Marked(tokenizer, messages, mark), options);
  std::vector<size_t> positions;
  for (size_t at = 0; at < marked.size();) {
    const size_t next = marked.find(mark, at);
    prompt.text += marked.substr(at, std::min(next, marked.size()) - at);
    if (next == marked.npos) break;
    positions.push_back(prompt.text.size());
    at = next + mark.size();
  }
  prompt.ids = tokenizer.Encode(prompt.text, false, limits, positions);
  return prompt;
}

}  // namespace loopspec

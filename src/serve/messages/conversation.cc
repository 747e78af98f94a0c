#include "serve/messages/conversation.h"

#include "serve/openai/error.h"
#include "serve/openai/members.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

constexpr std::string_view kBilling = "x-anthropic-billing-header";

// Blocks that are not text but have a content: a sentence in the prompt says that it was left out.
bool IsMedium(const std::string& type) {
  return type == "image" || type == "document";
}

std::string TypeOfBlock(const OrderedJson& block, const std::string& path) {
  CheckIsObject(block, path);
  const std::string type = TextMember(block, "type", path);
  if (type.empty()) Refuse(path + ".type", "{} has no type.", path);
  return type;
}

void AddParagraph(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

}  // namespace

void BlockReader::System(const OrderedJson& value, const std::string& path) {
  if (value.is_null()) return;
  const auto add = [&](const std::string& text) {
    if (!text.empty() && !text.starts_with(kBilling)) form.System(text);
  };
  if (value.is_string()) return add(value.get<std::string>());
  CheckIsList(value, path);
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = ElementOf(path, i);
    const std::string type = TypeOfBlock(value[i], where);
    if (type == "text") {
      add(TextMember(value[i], "text", where));
    } else {
      UnknownType(where, type, limits, ignored);
    }
  }
}

void BlockReader::Messages(const OrderedJson& value, const std::string& path) {
  CheckIsList(value, path);
  if (value.empty()) Refuse(path, "{} is an empty list.", path);
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = ElementOf(path, i);
    CheckIsObject(value[i], where);
    const OrderedJson& content = Member(value[i], "content");
    const std::string role =
        ReadChoice(Member(value[i], "role"), where + ".role", {"user", "assistant", "system"});
    if (content.is_null()) Refuse(where + ".content", "{} has no content.", where);
    if (!content.is_string() && !content.is_array()) {
      Refuse(where + ".content", "{}.content is {}, expected a string or a list of blocks.", where,
             Shown(content));
    }
    if (role == "system") {
      System(content, where + ".content");
    } else if (role == "user") {
      User(content, where + ".content", i + 1 == value.size());
    } else {
      Assistant(content, where + ".content");
    }
  }
}

// An image that is being asked about now is refused. One that was talked about before is not: a
// client that sends its whole history would never be answered again.
void BlockReader::User(const OrderedJson& content, const std::string& path, bool last) {
  if (content.is_string()) return form.User(content.get<std::string>());
  std::string text;
  bool said = content.empty();
  const auto flush = [&] {
    if (said) form.User(text);
    text.clear();
    said = false;
  };
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = ElementOf(path, i);
    const std::string type = TypeOfBlock(content[i], where);
    if (type == "text") {
      AddParagraph(text, TextMember(content[i], "text", where));
      said = true;
    } else if (type == "tool_result") {
      flush();
      form.Result(TextMember(content[i], "tool_use_id", where), ResultText(content[i], where));
    } else if (IsMedium(type)) {
      if (last) Refuse(where, "{} has type {}; this model reads text only.", where, type);
      AddParagraph(text, LeftOut(type));
      said = true;
    } else {
      UnknownType(where, type, limits, ignored);
    }
  }
  flush();
}

std::string BlockReader::ResultText(const OrderedJson& block, const std::string& path) {
  const OrderedJson& content = Member(block, "content");
  const std::string inside = path + ".content";
  std::string text;
  if (content.is_string()) {
    text = content.get<std::string>();
  } else if (!content.is_null()) {
    CheckIsList(content, inside);
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string where = ElementOf(inside, i);
      const std::string type = TypeOfBlock(content[i], where);
      if (type == "text") {
        AddParagraph(text, TextMember(content[i], "text", where));
      } else if (IsMedium(type)) {
        AddParagraph(text, LeftOut(type));
      } else {
        UnknownType(where, type, limits, ignored);
      }
    }
  }
  const OrderedJson& error = Member(block, "is_error");
  if (!error.is_null() && ReadBool(error, path + ".is_error")) text = "Error: " + text;
  return text;
}

void BlockReader::Assistant(const OrderedJson& content, const std::string& path) {
  form.Turn();
  if (content.is_string()) return form.Say(content.get<std::string>());
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = ElementOf(path, i);
    const OrderedJson& block = content[i];
    const std::string type = TypeOfBlock(block, where);
    if (type == "text") {
      form.Say(TextMember(block, "text", where));
    } else if (type == "thinking") {
      form.Reasoning(TextMember(block, "thinking", where));
    } else if (type == "tool_use") {
      const OrderedJson& input = Member(block, "input");
      if (!input.is_null()) CheckIsObject(input, where + ".input");
      form.Call(TextMember(block, "id", where), TextMember(block, "name", where),
                input.is_null() ? OrderedJson::object() : input);
    } else if (type != "redacted_thinking") {  // encrypted for Anthropic alone
      UnknownType(where, type, limits, ignored);
    }
  }
}

OrderedJson ReadMessagesTools(const OrderedJson& value, const std::string& path,
                              const WireLimits& limits, IgnoredFields& ignored) {
  constexpr ToolWords kWords = {.function = "custom",
                                .typeless = true,
                                .schema = "input_schema",
                                .needs_schema = true,
                                .strict = false};
  return ChatTools(value, path, kWords, limits, ignored);
}

}  // namespace loopspec::serve

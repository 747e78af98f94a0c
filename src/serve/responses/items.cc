#include "serve/responses/items.h"

#include "base/error.h"
#include "serve/openai/error.h"
#include "serve/openai/fields.h"
#include "serve/openai/members.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

// The texts of a reasoning item's content or summary.
std::string TextsOf(const OrderedJson& list, const std::string& path) {
  std::string text;
  if (list.is_null()) return text;
  CheckIsList(list, path);
  for (size_t i = 0; i < list.size(); ++i) {
    CheckIsObject(list[i], ElementOf(path, i));
    text += TextMember(list[i], "text", ElementOf(path, i));
  }
  return text;
}

// A call that was cut off has arguments that are no JSON.
OrderedJson ArgumentsOf(const std::string& text) {
  try {
    OrderedJson arguments = ParseOrderedJson(text, "arguments");
    if (arguments.is_object()) return arguments;
  } catch (const Error&) {
  }
  return text.empty() ? OrderedJson::object() : OrderedJson(text);
}

}  // namespace

void ItemReader::Input(const OrderedJson& value, const std::string& path) {
  if (value.is_string()) return form.User(value.get<std::string>());
  if (!value.is_array())
    Refuse(path, "{} is {}, expected a string or a list of items.", path, Shown(value));
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = ElementOf(path, i);
    CheckIsObject(value[i], where);
    Item(value[i], where, i + 1 == value.size());
  }
}

void ItemReader::Item(const OrderedJson& item, const std::string& path, bool last) {
  const std::string said = TextMember(item, "type", path);
  const std::string type = said.empty() && item.contains("role") ? "message" : said;
  if (type == "message") {
    Message(item, path, last);
  } else if (type == "function_call") {
    form.Call(TextMember(item, "call_id", path), TextMember(item, "name", path),
              ArgumentsOf(TextMember(item, "arguments", path)));
  } else if (type == "function_call_output") {
    form.Result(TextMember(item, "call_id", path),
                PartsText(Member(item, "output"), path + ".output", false));
  } else if (type == "reasoning") {
    const std::string thought = TextsOf(Member(item, "content"), path + ".content");
    const std::string summary = TextsOf(Member(item, "summary"), path + ".summary");
    form.Reasoning(thought.empty() ? summary : thought);
  } else if (type == "item_reference") {
    Refuse(path,
           "{} refers to an item of an earlier response; this server keeps none, so send "
           "the item itself.",
           path);
  } else if (type.empty()) {
    Refuse(path + ".type", "{} has no type.", path);
  } else {
    UnknownType(path, type, limits, ignored);
  }
}

void ItemReader::Message(const OrderedJson& item, const std::string& path, bool last) {
  const std::string role = ReadChoice(Member(item, "role"), path + ".role",
                                      {"user", "assistant", "system", "developer"});
  const std::string text = PartsText(Member(item, "content"), path + ".content", last);
  if (role == "user") {
    form.User(text);
  } else if (role == "assistant") {
    form.Say(text);
  } else {
    form.System(text);
  }
}

std::string ItemReader::PartsText(const OrderedJson& value, const std::string& path, bool refuse) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array())
    Refuse(path, "{} is {}, expected a string or a list of parts.", path, Shown(value));
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = ElementOf(path, i);
    CheckIsObject(value[i], where);
    const std::string type = TextMember(value[i], "type", where);
    if (type == "input_text" || type == "output_text" || type == "text") {
      text += TextMember(value[i], "text", where);
    } else if (type == "refusal") {
      text += TextMember(value[i], "refusal", where);
    } else if (type == "input_image" || type == "input_file" || type == "input_audio") {
      if (refuse) Refuse(where, "{} has type {}; this model reads text only.", where, type);
      text += LeftOut(type.substr(6));
    } else {
      UnknownType(where, type, limits, ignored);
    }
  }
  return text;
}

OrderedJson ReadResponsesTools(const OrderedJson& value, const std::string& path,
                               const WireLimits& limits, IgnoredFields& ignored) {
  constexpr ToolWords kWords = {.function = "function",
                                .typeless = false,
                                .schema = "parameters",
                                .needs_schema = false,
                                .strict = true};
  return ChatTools(value, path, kWords, limits, ignored);
}

}  // namespace loopspec::serve

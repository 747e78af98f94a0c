#include "serve/openai/values.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "serve/openai/chat_form.h"
#include "serve/openai/error.h"
#include "serve/openai/fields.h"
#include "serve/openai/known_fields.h"
#include "serve/openai/members.h"
#include "serve/openai/tool_fields.h"

namespace loopspec::serve {
namespace {

constexpr size_t kMaxDepths = 16;
constexpr size_t kMaxTemplateBytes = 64 << 10;

// What a part that is no text is called in the prompt; empty for all others.
std::string_view MediumOf(std::string_view type) {
  if (type == "image_url") return "image";
  if (type == "input_audio") return "audio";
  if (type == "video_url") return "video";
  return type == "file" ? type : "";
}

// An image or the like that is being asked about now is refused (`refuse`). One that was talked
// about before is not, since clients send their whole history.
std::string TextOfParts(const Json& parts, const std::string& path, bool refuse,
                        const WireLimits& limits, IgnoredFields& ignored) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string where = ElementOf(path, i);
    CheckIsObject(part, where);
    if (!part.contains("type")) Refuse(where + ".type", "{} has no type.", where);
    const std::string type = ReadString(part["type"], where + ".type");
    if (type == "text" || type == "refusal") {
      const auto content = part.find(type);
      if (content == part.end()) Refuse(where, "{} has no {}.", where, type);
      text += ReadString(*content, where + "." + type);
    } else if (const std::string_view medium = MediumOf(type); !medium.empty()) {
      if (refuse) Refuse(where, "{} has type {}; this model reads text only.", where, type);
      text += LeftOut(medium);
    } else {
      UnknownType(where, type, limits, ignored);
    }
  }
  return text;
}

OrderedJson ReadMessage(const Json& message, const std::string& path, bool last,
                        const WireLimits& limits, IgnoredFields& ignored) {
  CheckIsObject(message, path);
  OrderedJson out;
  const auto role = message.find("role");
  if (role == message.end()) Refuse(path + ".role", "{} has no role.", path);
  const std::string name =
      ReadChoice(*role, path + ".role", {"system", "developer", "user", "assistant", "tool"});
  // Templates of open models know OpenAI's newer name under the old one.
  out["role"] = name == "developer" ? "system" : name;
  out["content"] = "";
  bool has_content = false;
  for (const auto& [key, value] : message.items()) {
    const std::string where = path + "." + key;
    if (key == "role" || value.is_null()) continue;
    if (key == "content") {
      // Images and the like are refused in the last message, but not in what a tool gave back.
      out["content"] = value.is_array()
                           ? TextOfParts(value, where, last && name != "tool", limits, ignored)
                           : ReadString(value, where);
      has_content = true;
    } else if (key == "name" || key == "reasoning_content") {
      out[key] = ReadString(value, where);
    } else if (key == "reasoning") {  // another name of reasoning_content, which wins
      if (message.value("reasoning_content", Json()).is_null())
        out["reasoning_content"] = ReadString(value, where);
    } else if (key == "tool_calls") {
      OrderedJson calls = ReadToolCalls(value, where);
      if (name == "assistant" && !calls.empty()) out[key] = std::move(calls);
    } else if (key == "tool_call_id") {
      const std::string id = ReadString(value, where);
      if (name == "tool") out[key] = id;
    } else if (const KnownField* known = FindKnownField(key, kMessage)) {
      CheckAsksForNothing(*known, value, where);
    } else if (limits.strict) {
      Unknown(where, limits, ignored);
    } else {
      Unknown("messages[]." + key, limits, ignored);  // the same in all of them
    }
  }
  if (!has_content && name != "assistant" && name != "tool") {
    Refuse(path + ".content", "{} has no content.", path);
  }
  return out;
}

}  // namespace

std::string Shown(const Json& value) {
  // A long text is cut before it is escaped: it may be megabytes.
  if (value.is_string() && value.get_ref<const std::string&>().size() > 60) {
    return Shown(Json(value.get_ref<const std::string&>().substr(0, 40))) + "...";
  }
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return "an object";
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool ReadBool(const Json& value, const std::string& path) {
  if (!value.is_boolean()) Refuse(path, "{} is {}, expected true or false.", path, Shown(value));
  return value.get<bool>();
}

int64_t ReadInt(const Json& value, const std::string& path, int64_t low, int64_t high) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    number = static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX));
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float() && std::fabs(value.get<double>()) < 9e15 &&
             value.get<double>() == std::floor(value.get<double>())) {
    number = static_cast<int64_t>(value.get<double>());  // 32.0 written for 32
  } else {
    Refuse(path, "{} is {}, expected a whole number.", path, Shown(value));
  }
  if (number < low || number > high) {
    Refuse(path, "{} is {}, expected {} to {}.", path, Shown(value), low, high);
  }
  return number;
}

double ReadNumber(const Json& value, const std::string& path, const Range& range) {
  if (!value.is_number()) Refuse(path, "{} is {}, expected a number.", path, Shown(value));
  const auto number = value.get<double>();
  if (!range.Holds(number))
    Refuse(path, "{} is {}, expected {}.", path, Shown(value), Expected(range));
  return number;
}

std::string ReadString(const Json& value, const std::string& path) {
  if (!value.is_string()) Refuse(path, "{} is {}, expected a string.", path, Shown(value));
  return value.get<std::string>();
}

std::string ReadChoice(const Json& value, const std::string& path,
                       const std::vector<std::string>& choices) {
  const bool known =
      value.is_string() && std::find(choices.begin(), choices.end(),
                                     value.get_ref<const std::string&>()) != choices.end();
  if (!known) {
    Refuse(path, "{} is {}, expected one of {}.", path, Shown(value), fmt::join(choices, ", "));
  }
  return value.get<std::string>();
}

uint64_t ReadSeed(const Json& value, const std::string& path) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return static_cast<uint64_t>(ReadInt(value, path, INT64_MIN, INT64_MAX));
}

std::vector<int32_t> ReadTokenIds(const Json& value, const std::string& path) {
  if (!value.is_array()) Refuse(path, "{} is {}, expected token ids.", path, Shown(value));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    // The name of the element is made up only when it is needed.
    if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX) {
      ids.push_back(id.get<int32_t>());
    } else {
      ids.push_back(static_cast<int32_t>(ReadInt(id, ElementOf(path, ids.size()), 0, INT32_MAX)));
    }
  }
  return ids;
}

std::vector<std::string> ReadStops(const Json& value, const std::string& path,
                                   const WireLimits& limits) {
  const auto check = [&](std::string text, const std::string& where) {
    if (text.empty()) Refuse(where, "{} is empty.", where);
    if (text.size() > static_cast<size_t>(limits.max_stop_bytes)) {
      Refuse(where, "{} has {} bytes, expected at most {}.", where, text.size(),
             limits.max_stop_bytes);
    }
    return text;
  };
  if (value.is_string()) return {check(value.get<std::string>(), path)};
  if (!value.is_array()) {
    Refuse(path, "{} is {}, expected a string or a list of strings.", path, Shown(value));
  }
  if (value.size() > static_cast<size_t>(limits.max_stops)) {
    Refuse(path, "{} has {} strings, expected at most {}.", path, value.size(), limits.max_stops);
  }
  std::vector<std::string> stops;
  for (const Json& stop : value) {
    const std::string where = ElementOf(path, stops.size());
    stops.push_back(check(ReadString(stop, where), where));
  }
  return stops;
}

std::vector<TokenBias> ReadBias(const Json& value, const std::string& path,
                                const WireLimits& limits) {
  if (!value.is_object()) {
    Refuse(path, "{} is {}, expected an object from token ids to numbers.", path, Shown(value));
  }
  if (value.size() > static_cast<size_t>(limits.max_bias)) {
    Refuse(path, "{} has {} entries, expected at most {}.", path, value.size(), limits.max_bias);
  }
  std::vector<TokenBias> bias;
  for (const auto& [key, entry] : value.items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      Refuse(path, "{} names {}, expected a token id.", path, Shown(Json(key)));
    }
    const double added = ReadNumber(entry, fmt::format("{}.{}", path, id), {-100, 100});
    bias.push_back({id, static_cast<float>(added)});
  }
  return bias;
}

std::vector<PromptInput> ReadPrompts(const Json& value, const std::string& path,
                                     const WireLimits& limits, bool& batch) {
  batch = false;
  if (value.is_string()) return {{.text = value.get<std::string>(), .ids = {}}};
  if (!value.is_array()) {
    Refuse(path, "{} is {}, expected a string, a list of strings, token ids or lists of them.",
           path, Shown(value));
  }
  if (value.empty()) Refuse(path, "{} is an empty list.", path);
  if (value[0].is_number()) return {{.text = {}, .ids = ReadTokenIds(value, path)}};
  batch = true;
  // Before they are taken apart: there may be millions.
  if (value.size() > static_cast<size_t>(limits.max_choices)) {
    Refuse(path, "{} has {} prompts, expected at most {}.", path, value.size(), limits.max_choices);
  }
  std::vector<PromptInput> prompts;
  for (const Json& entry : value) {
    const std::string where = ElementOf(path, prompts.size());
    if (value[0].is_string()) {
      prompts.push_back({.text = ReadString(entry, where), .ids = {}});
    } else {
      prompts.push_back({.text = {}, .ids = ReadTokenIds(entry, where)});
    }
  }
  return prompts;
}

OrderedJson ReadMessages(const Json& value, const std::string& path, const WireLimits& limits,
                         IgnoredFields& ignored) {
  CheckIsList(value, path);
  if (value.empty()) Refuse(path, "{} is an empty list.", path);
  OrderedJson messages = OrderedJson::array();
  for (const Json& message : value) {
    const bool last = messages.size() + 1 == value.size();
    messages.push_back(
        ReadMessage(message, ElementOf(path, messages.size()), last, limits, ignored));
  }
  return messages;
}

OrderedJson ReadTemplateArguments(const Json& value, const std::string& path) {
  CheckIsObject(value, path);
  if (value.dump().size() > kMaxTemplateBytes) {
    Refuse(path, "{} has more than {} bytes.", path, kMaxTemplateBytes);
  }
  for (const char* own : {"messages", "tools", "add_generation_prompt"}) {
    if (value.contains(own)) Refuse(path + "." + own, "{}.{} cannot be set.", path, own);
  }
  return OrderedJson(value);
}

std::optional<std::vector<int>> ReadDepths(const Json& value, const std::string& path) {
  if (value == "auto") return std::nullopt;
  if (!value.is_array() || value.empty() || value.size() > kMaxDepths) {
    Refuse(path, "{} is {}, expected auto or 1 to {} depths.", path, Shown(value), kMaxDepths);
  }
  std::vector<int> depths;
  for (const Json& depth : value) {
    const int low = depths.empty() ? 1 : depths.back() + 1;
    depths.push_back(static_cast<int>(ReadInt(depth, ElementOf(path, depths.size()), low, 4096)));
  }
  return depths;
}

}  // namespace loopspec::serve

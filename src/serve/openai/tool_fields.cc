#include "serve/openai/tool_fields.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "serve/openai/error.h"
#include "serve/openai/members.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

constexpr size_t kMostTools = 512;
constexpr size_t kLongestName = 128;

void CheckIsToolList(const Json& value, const std::string& path) {
  CheckIsList(value, path);
  if (value.size() > kMostTools)
    Refuse(path, "{} has {} tools, expected at most {}.", path, value.size(), kMostTools);
}

// The name in {"type": "function", "function": {"name": ...}}, or in {"type": "function", "name":
// ...}, as OpenAI's newer API has it.
std::string ReadNamed(const Json& value, const std::string& path) {
  CheckIsObject(value, path);
  ReadChoice(value.value("type", Json()), path + ".type", {"function"});
  const auto function = value.find("function");
  if (function == value.end()) return ReadString(value.value("name", Json()), path + ".name");
  CheckIsObject(*function, path + ".function");
  return ReadString(function->value("name", Json()), path + ".function.name");
}

void ReadToolChoice(const Json& value, const std::string& path, CompletionRequest& request) {
  ToolUse& use = request.tools;
  const auto mode = [&](const Json& name, const std::string& where,
                        const std::vector<std::string>& names) {
    const std::string chosen = ReadChoice(name, where, names);
    use.choice = chosen == "none"   ? ToolChoice::kNone
                 : chosen == "auto" ? ToolChoice::kAuto
                                    : ToolChoice::kRequired;
  };
  if (!value.is_object()) return mode(value, path, {"none", "auto", "required"});
  if (value.value("type", Json()) != "allowed_tools") {
    use.choice = ToolChoice::kNamed;
    use.named = ReadNamed(value, path);
    return;
  }
  // OpenAI's list of the tools that may be called, while the prompt has all of them.
  const std::string inner = path + ".allowed_tools";
  const Json allowed = value.value("allowed_tools", value);
  CheckIsObject(allowed, inner);
  mode(allowed.value("mode", Json()), inner + ".mode", {"auto", "required"});
  const Json tools = allowed.value("tools", Json());
  CheckIsToolList(tools, inner + ".tools");
  if (tools.empty()) Refuse(inner + ".tools", "{}.tools is empty.", inner);
  for (size_t i = 0; i < tools.size(); ++i)
    use.allowed.push_back(ReadNamed(tools[i], ElementOf(inner + ".tools", i)));
}

OrderedJson ToolsSchema() {
  const OrderedJson function = {{"type", "object"},
                                {"properties",
                                 {{"name",
                                   {{"type", "string"},
                                    {"pattern", "^[a-zA-Z0-9_.:/-]+$"},
                                    {"minLength", 1},
                                    {"maxLength", kLongestName}}},
                                  {"description", {{"type", "string"}}},
                                  {"parameters", {{"type", "object"}}},
                                  {"strict", {{"type", "boolean"}}}}},
                                {"required", {"name"}}};
  return {{"type", "array"},
          {"maxItems", kMostTools},
          {"items",
           {{"type", "object"},
            {"properties",
             {{"type", {{"type", "string"}, {"enum", {"function"}}}}, {"function", function}}},
            {"required", {"type", "function"}}}}};
}

OrderedJson ToolChoiceSchema() {
  const OrderedJson named = {{"type", "object"},
                             {"properties",
                              {{"type", {{"type", "string"}, {"enum", {"function"}}}},
                               {"function",
                                {{"type", "object"},
                                 {"properties", {{"name", {{"type", "string"}}}}},
                                 {"required", {"name"}}}}}},
                             {"required", {"type", "function"}}};
  return {{"anyOf", {{{"type", "string"}, {"enum", {"none", "auto", "required"}}}, named}}};
}

}  // namespace

void AddToolFields(std::vector<CompletionField>& fields) {
  fields.push_back({"tools", kChat,
                    "Functions that the answer may call. A call has the name of one of them and "
                    "arguments that are valid by its parameters.",
                    ToolsSchema(),
                    [](const Json& value, const std::string& path, CompletionRequest& request) {
                      CheckIsToolList(value, path);
                      request.tools.tools = OrderedJson(value);
                    }});
  fields.push_back({"tool_choice", kChat,
                    "none: no call; auto: text or calls; required: a call; or the function that "
                    "is called. Default: auto.",
                    ToolChoiceSchema(), ReadToolChoice});
  fields.push_back({"parallel_tool_calls", kChat,
                    "Whether an answer may have more than one call. Default: true.",
                    OrderedJson{{"type", "boolean"}},
                    [](const Json& value, const std::string& path, CompletionRequest& request) {
                      request.tools.parallel = ReadBool(value, path);
                    }});
}

void AddToolFields(std::vector<Field<TokenizeRequest>>& fields) {
  fields.push_back({"tools", kTokenize, "Functions that the conversation may call.", ToolsSchema(),
                    [](const Json& value, const std::string& path, TokenizeRequest& request) {
                      CheckIsToolList(value, path);
                      request.tools.tools = OrderedJson(value);
                    }});
}

void CheckToolName(const OrderedJson& name, const std::string& path) {
  const auto fits = [](const std::string& text) {
    return !text.empty() && text.size() <= kLongestName && std::ranges::all_of(text, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             std::string_view("_-.:/").find(c) != std::string_view::npos;
    });
  };
  if (!name.is_string() || !fits(name.get_ref<const std::string&>())) {
    Refuse(path, "{} is {}, expected 1 to {} letters, digits and _-.:/ alone.", path,
           Shown(Json(name)), kLongestName);
  }
}

OrderedJson OrderedTools(std::string_view body) {
  return ParseOrderedJson(body, "the request's body").at("tools");
}

std::vector<Tool> ToolsToCall(const ToolUse& use) {
  std::vector<Tool> tools;
  std::set<std::string> names;
  for (size_t i = 0; i < use.tools.size(); ++i) {
    const std::string path = ElementOf("tools", i);
    const OrderedJson& given = use.tools[i];
    CheckIsObject(given, path);
    ReadChoice(Json(given.value("type", OrderedJson())), path + ".type", {"function"});
    const OrderedJson function = given.value("function", OrderedJson());
    CheckIsObject(function, path + ".function");
    const OrderedJson name = function.value("name", OrderedJson());
    CheckToolName(name, path + ".function.name");
    Tool tool{name.get<std::string>(), function.value("parameters", OrderedJson())};
    const OrderedJson strict = function.value("strict", OrderedJson());
    if (!strict.is_null()) tool.strict = ReadBool(Json(strict), path + ".function.strict");
    if (!tool.parameters.is_null()) CheckIsObject(tool.parameters, path + ".function.parameters");
    if (!names.insert(tool.name).second)
      Refuse(path + ".function.name", "tools has two functions of the name {}.", tool.name);
    tools.push_back(std::move(tool));
  }
  std::vector<std::string> wanted = use.allowed;
  if (use.choice == ToolChoice::kNamed) wanted = {use.named};
  for (const std::string& name : wanted) {
    if (!names.contains(name))
      Refuse("tool_choice", "tool_choice names {}, which is not among tools.", Shown(Json(name)));
  }
  if (!wanted.empty()) {
    std::erase_if(tools, [&](const Tool& tool) {
      return std::ranges::find(wanted, tool.name) == wanted.end();
    });
  }
  return tools;
}

OrderedJson ReadToolCalls(const Json& value, const std::string& path) {
  CheckIsList(value, path);
  OrderedJson calls = OrderedJson::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = ElementOf(path, i);
    const Json& call = value[i];
    CheckIsObject(call, where);
    const Json function = call.value("function", Json());
    CheckIsObject(function, where + ".function");
    const std::string name = ReadString(function.value("name", Json()), where + ".function.name");
    // Templates want an object. Arguments that are none, as a call that was cut leaves them, are
    // told under a name of their own.
    const Json given = function.value("arguments", Json());
    OrderedJson arguments = OrderedJson::object();
    if (given.is_object()) {
      arguments = OrderedJson(given);
    } else if (!given.is_null() && given != "") {
      const std::string text = ReadString(given, where + ".function.arguments");
      arguments = OrderedJson::parse(text, nullptr, false);
      if (!arguments.is_object()) arguments = {{"arguments", text}};
    }
    OrderedJson out = {{"type", "function"},
                       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
    const Json id = call.value("id", Json());
    if (!id.is_null()) out["id"] = ReadString(id, where + ".id");
    calls.push_back(std::move(out));
  }
  return calls;
}

}  // namespace loopspec::serve

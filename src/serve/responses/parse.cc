#include "serve/responses/parse.h"

#include <limits>

#include "fields/grammar_fields.h"
#include "serve/openai/chat_form.h"
#include "serve/openai/error.h"
#include "serve/openai/grammar_fields.h"
#include "serve/openai/members.h"
#include "serve/openai/shared_fields.h"
#include "serve/openai/values.h"
#include "serve/responses/items.h"

namespace loopspec::serve {
namespace {

using ResponsesField = Field<ResponsesRequest, OrderedJson>;

constexpr int kMostOutput = std::numeric_limits<int32_t>::max();

OrderedJson OfType(const char* type) {
  return {{"type", type}};
}

// Members of a response that repeat the request, at their defaults.
OrderedJson EchoDefaults() {
  return {{"instructions", nullptr},
          {"max_output_tokens", nullptr},
          {"metadata", OrderedJson::object()},
          {"parallel_tool_calls", true},
          {"previous_response_id", nullptr},
          {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
          {"store", false},
          {"temperature", nullptr},
          {"text", {{"format", {{"type", "text"}}}}},
          {"tool_choice", "auto"},
          {"tools", OrderedJson::array()},
          {"top_p", nullptr},
          {"truncation", "disabled"},
          {"user", nullptr}};
}

// The names of the functions in a list of tools.
std::vector<std::string> AllowedNames(const OrderedJson& list, const std::string& path) {
  std::vector<std::string> names;
  CheckIsList(list, path + ".tools");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = ElementOf(path + ".tools", i);
    CheckIsObject(list[i], where);
    if (Member(list[i], "type") == "function") names.push_back(TextMember(list[i], "name", where));
  }
  return names;
}

// "none", "auto", "required", {"type": "function", "name"} or {"type": "allowed_tools", "mode",
// "tools"}
void ReadResponsesToolChoice(const OrderedJson& value, const std::string& path,
                             ResponsesRequest& request) {
  request.echo["tool_choice"] = value;
  ToolUse& tools = request.chat.tools;
  OrderedJson choice = value;
  if (value.is_object()) {
    const std::string type = TextMember(value, "type", path);
    if (type == "function") {
      tools.choice = ToolChoice::kNamed;
      tools.named = ReadString(Member(value, "name"), path + ".name");
      return;
    }
    // A tool that only OpenAI's servers run cannot be called, and is not among the tools.
    choice = type == "allowed_tools" ? Member(value, "mode") : OrderedJson("auto");
    if (type == "allowed_tools") tools.allowed = AllowedNames(Member(value, "tools"), path);
  }
  const std::string name = ReadChoice(choice, path, {"none", "auto", "required"});
  tools.choice = name == "none"   ? ToolChoice::kNone
                 : name == "auto" ? ToolChoice::kAuto
                                  : ToolChoice::kRequired;
}

// {"format": {"type": "text" | "json_object" | "json_schema", ...}, "verbosity"}
void ReadText(const OrderedJson& value, const std::string& path, ResponsesRequest& request) {
  CheckIsObject(value, path);
  const OrderedJson& format = Member(value, "format");
  if (format.is_null()) return;
  const std::string where = path + ".format";
  CheckIsObject(format, where);
  const std::string type =
      ReadChoice(Member(format, "type"), where + ".type", {"text", "json_object", "json_schema"});
  request.echo["text"]["format"] = format;
  if (type == "json_object") AskForGrammar(where, JsonObjectGrammar(), request.chat);
  if (type != "json_schema") return;
  const OrderedJson& schema = Member(format, "schema");
  CheckIsObject(schema, where + ".schema");
  const OrderedJson& strict = Member(format, "strict");
  AskForGrammar(where,
                {GrammarKind::kJsonSchema, schema.dump(),
                 strict.is_null() || ReadBool(strict, where + ".strict")},
                request.chat);
}

// {"effort", "summary"}
void ReadReasoning(const OrderedJson& value, const std::string& path, ResponsesRequest& request) {
  CheckIsObject(value, path);
  const std::string effort = TextMember(value, "effort", path);
  if (!effort.empty()) {
    request.chat.reasoning_effort = effort;
    request.echo["reasoning"]["effort"] = effort;
  }
  std::string summary = TextMember(value, "summary", path);
  if (summary.empty()) summary = TextMember(value, "generate_summary", path);
  if (summary.empty() || summary == "none") return;
  request.summary = true;
  request.echo["reasoning"]["summary"] = summary;
}

// Fields that refer to an earlier response: this server keeps none.
void RefuseState(const OrderedJson& value, const std::string& path, ResponsesRequest&) {
  Refuse(path,
         "{} is {}, expected none: this server keeps no responses, so send the whole conversation "
         "as input.",
         path, Shown(value));
}

void RefuseBackground(const OrderedJson& value, const std::string& path, ResponsesRequest&) {
  if (!ReadBool(value, path)) return;
  Refuse(path, "{} is true, expected false: this server keeps no responses to ask for later.",
         path);
}

void ReadNothing(const OrderedJson&, const std::string&, ResponsesRequest&) {}

OrderedJson InputSchema() {
  return {{"anyOf", {OfType("string"), {{"type", "array"}, {"items", OfType("object")}}}}};
}

std::vector<ResponsesField> ResponsesFields(const WireParser& parser) {
  const WireLimits limits = parser.limits();
  std::vector<ResponsesField> fields;
  const auto add = [&](const char* name, const char* description, OrderedJson schema, auto read) {
    fields.push_back({name, kResponses, description, std::move(schema), read});
  };
  add("input",
      "The conversation so far, whole: a text, or items of type message, function_call, "
      "function_call_output and reasoning. Images of the last item are refused; items that nobody "
      "knows are left out and named in the header X-Loopspec-Ignored.",
      InputSchema(), ReadNothing);
  add("instructions", "What holds for the whole conversation.", OfType("string"),
      [](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        r.echo["instructions"] = ReadString(value, path);
      });
  add("max_output_tokens",
      "Tokens of the answer at most; what the context does not hold is cut off.",
      OrderedJson{{"type", "integer"}, {"minimum", 1}, {"maximum", kMostOutput}},
      [](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        r.chat.asked.max_tokens = static_cast<int>(ReadInt(value, path, 1, kMostOutput));
      });
  add("tools", "Functions that the answer may call. Tools of other types are left out.",
      OrderedJson{{"type", "array"}, {"items", OfType("object")}},
      [limits](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        r.chat.tools.tools = ReadResponsesTools(value, path, limits, r.chat.ignored);
        r.echo["tools"] = value;
      });
  add("tool_choice", "Whether a tool may or must be called, and which.",
      OrderedJson{{"anyOf", {OfType("string"), OfType("object")}}}, ReadResponsesToolChoice);
  add("parallel_tool_calls", "Whether an answer may call more than one tool.", OfType("boolean"),
      [](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        r.echo["parallel_tool_calls"] = r.chat.tools.parallel = ReadBool(value, path);
      });
  add("text", "format: what the answer must be, as in response_format of a chat.", OfType("object"),
      ReadText);
  add("reasoning", "effort: for the chat template; summary: the thinking comes as a summary.",
      OfType("object"), ReadReasoning);
  add("stream", "The answer comes as server-sent events.", OfType("boolean"),
      [](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        r.chat.stream = ReadBool(value, path);
      });
  add("metadata", "Comes back with the answer.", OfType("object"),
      [](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        CheckIsObject(value, path);
        r.echo["metadata"] = value;
      });
  add("user", "Comes back with the answer.", OfType("string"),
      [](const OrderedJson& value, const std::string& path, ResponsesRequest& r) {
        r.echo["user"] = ReadString(value, path);
      });
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    add(name, "Not supported: this server keeps no responses.",
        OrderedJson{{"not", OrderedJson::object()}}, RefuseState);
  }
  add("background", "Not supported, but for false.", OrderedJson{{"enum", {false}}},
      RefuseBackground);
  for (const char* name : {"model", "store", "include", "truncation", "service_tier",
                           "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                           "stream_options", "max_tool_calls", "top_logprobs", "client_metadata"}) {
    add(name, "Accepted and not used.", OrderedJson::object(), ReadNothing);
  }
  AddSharedFields(parser, kResponses, fields);
  return fields;
}

}  // namespace

ResponsesParser::ResponsesParser(const WireParser& parser)
    : limits_(parser.limits()), fields_(ResponsesFields(parser)) {}

ResponsesRequest ResponsesParser::Read(std::string_view body) const {
  const OrderedJson json = ParseOrderedBody(body);
  ResponsesRequest request;
  request.echo = EchoDefaults();
  CompletionRequest& chat = request.chat;
  chat.endpoint = kChat;
  chat.messages_field = "input";
  chat.clamp_max_tokens = true;
  chat.reasoning = ReasoningFormat::kReasoningContent;
  ReadOrderedFields(json, kResponses, fields_, limits_, request);
  for (const char* name : {"temperature", "top_p"}) {
    if (json.contains(name)) request.echo[name] = json[name];
  }
  if (Member(json, "input").is_null()) Refuse("input", "input is missing.");
  CheckToolChoice(chat.tools, "tool_choice.name");
  ChatForm form;
  if (request.echo["instructions"].is_string())
    form.System(request.echo["instructions"].get<std::string>());
  ItemReader reader{limits_, chat.ignored, form};
  reader.Input(json["input"], "input");
  if (form.empty()) Refuse("input", "input has nothing that could be read.");
  chat.messages = form.Take();
  TakeSchema(body, chat);
  return request;
}

}  // namespace loopspec::serve

#include "serve/messages/parse.h"

#include <limits>

#include "serve/messages/conversation.h"
#include "serve/openai/chat_form.h"
#include "serve/openai/error.h"
#include "serve/openai/grammar_fields.h"
#include "serve/openai/members.h"
#include "serve/openai/shared_fields.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

using MessagesField = Field<MessagesRequest, OrderedJson>;

constexpr unsigned kBoth = kMessages | kCountTokens;

// {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}
void ReadMessagesToolChoice(const OrderedJson& value, const std::string& path,
                            MessagesRequest& request) {
  CheckIsObject(value, path);
  ToolUse& tools = request.chat.tools;
  const std::string type =
      ReadChoice(Member(value, "type"), path + ".type", {"auto", "any", "tool", "none"});
  tools.choice = type == "auto"   ? ToolChoice::kAuto
                 : type == "any"  ? ToolChoice::kRequired
                 : type == "tool" ? ToolChoice::kNamed
                                  : ToolChoice::kNone;
  if (type == "tool") tools.named = ReadString(Member(value, "name"), path + ".name");
  const OrderedJson& alone = Member(value, "disable_parallel_tool_use");
  if (!alone.is_null()) tools.parallel = !ReadBool(alone, path + ".disable_parallel_tool_use");
}

// {"type": "enabled", "budget_tokens"}, {"type": "adaptive"} or {"type": "disabled"}
void ReadThinking(const OrderedJson& value, const std::string& path, MessagesRequest& request) {
  CheckIsObject(value, path);
  const std::string type =
      ReadChoice(Member(value, "type"), path + ".type", {"enabled", "adaptive", "disabled"});
  request.chat.template_arguments["enable_thinking"] = type != "disabled";
  const OrderedJson& budget = Member(value, "budget_tokens");
  if (type != "enabled" || budget.is_null()) return;
  request.chat.asked.max_thinking_tokens = static_cast<int>(
      ReadInt(budget, path + ".budget_tokens", 1, std::numeric_limits<int32_t>::max()));
}

// {"type": "json_schema", "schema": {...}}
void ReadOutputFormat(const OrderedJson& value, const std::string& path, MessagesRequest& request) {
  CheckIsObject(value, path);
  ReadChoice(Member(value, "type"), path + ".type", {"json_schema"});
  const OrderedJson& schema = Member(value, "schema");
  CheckIsObject(schema, path + ".schema");
  AskForGrammar(path, {GrammarKind::kJsonSchema, schema.dump(), true}, request.chat);
}

void ReadOutputConfig(const OrderedJson& value, const std::string& path, MessagesRequest& request) {
  CheckIsObject(value, path);
  const OrderedJson& format = Member(value, "format");
  if (!format.is_null()) ReadOutputFormat(format, path + ".format", request);
}

OrderedJson TypedSchema(const char* type) {
  return {{"type", type}};
}

OrderedJson StringOrBlocks() {
  return {
      {"anyOf", {TypedSchema("string"), {{"type", "array"}, {"items", TypedSchema("object")}}}}};
}

OrderedJson ConversationSchema() {
  return {{"type", "array"},
          {"minItems", 1},
          {"items",
           {{"type", "object"},
            {"properties",
             {{"role", {{"type", "string"}, {"enum", {"user", "assistant", "system"}}}},
              {"content", StringOrBlocks()}}},
            {"required", {"role", "content"}}}}};
}

// For fields that have no reader here: they are ignored, or read later in a certain order.
void ReadElsewhere(const OrderedJson&, const std::string&, MessagesRequest&) {}

std::vector<MessagesField> MessagesFields(const WireParser& parser) {
  const WireLimits limits = parser.limits();
  constexpr int kMost = std::numeric_limits<int32_t>::max();
  std::vector<MessagesField> fields;
  const auto add = [&](const char* name, const char* description, OrderedJson schema, auto read,
                       unsigned endpoints = kBoth) {
    fields.push_back({name, endpoints, description, std::move(schema), read});
  };
  add("messages",
      "The conversation. Blocks of text, tool_use, tool_result and thinking are read; images of "
      "the last message are refused, and unknown blocks are left out and named in the "
      "header X-Loopspec-Ignored.",
      ConversationSchema(), ReadElsewhere);
  add("system", "What holds for the whole conversation: text, or blocks of text.", StringOrBlocks(),
      ReadElsewhere);
  add(
      "max_tokens", "Tokens of the answer at most; what the context does not hold is cut off.",
      OrderedJson{{"type", "integer"}, {"minimum", 1}, {"maximum", kMost}},
      [](const OrderedJson& value, const std::string& path, MessagesRequest& r) {
        r.chat.asked.max_tokens = static_cast<int>(ReadInt(value, path, 1, kMost));
      },
      kMessages);
  add("tools", "Tools that the answer may call. Those of Anthropic's own servers are left out.",
      OrderedJson{{"type", "array"}, {"items", TypedSchema("object")}},
      [limits](const OrderedJson& value, const std::string& path, MessagesRequest& r) {
        r.chat.tools.tools = ReadMessagesTools(value, path, limits, r.chat.ignored);
      });
  add("tool_choice", "Whether a tool may or must be called, and which.", TypedSchema("object"),
      ReadMessagesToolChoice);
  add("thinking", "Whether the model thinks before it answers, and how many tokens of it at most.",
      TypedSchema("object"), ReadThinking);
  add("output_config", "format: what the answer must be.", TypedSchema("object"), ReadOutputConfig);
  add("output_format", "What the answer must be.", TypedSchema("object"), ReadOutputFormat);
  add(
      "stop_sequences", "The text ends before the first of these strings.",
      OrderedJson{{"type", "array"}, {"items", TypedSchema("string")}},
      [limits](const OrderedJson& value, const std::string& path, MessagesRequest& r) {
        r.chat.asked.stop = ReadStops(value, path, limits);
      },
      kMessages);
  add(
      "stream", "The answer comes as server-sent events.", TypedSchema("boolean"),
      [](const OrderedJson& value, const std::string& path, MessagesRequest& r) {
        r.chat.stream = ReadBool(value, path);
      },
      kMessages);
  for (const char* name : {"model", "metadata", "service_tier", "container", "context_management",
                           "cache_control", "betas", "mcp_servers", "inference_geo", "speed"}) {
    add(name, "Accepted and not used.", OrderedJson::object(), ReadElsewhere);
  }
  AddSharedFields(parser, kBoth, fields);
  return fields;
}

}  // namespace

MessagesParser::MessagesParser(const WireParser& parser)
    : limits_(parser.limits()), fields_(MessagesFields(parser)) {}

CompletionRequest MessagesParser::Read(Endpoint endpoint, std::string_view body) const {
  const OrderedJson json = ParseOrderedBody(body);
  MessagesRequest request;
  CompletionRequest& chat = request.chat;
  chat.endpoint = kChat;
  chat.clamp_max_tokens = true;
  chat.reasoning = ReasoningFormat::kReasoningContent;
  ReadOrderedFields(json, endpoint, fields_, limits_, request);
  if (endpoint == kMessages && !chat.asked.max_tokens)
    Refuse("max_tokens", "max_tokens is missing.");
  if (Member(json, "messages").is_null()) Refuse("messages", "messages is missing.");
  CheckToolChoice(chat.tools, "tool_choice.name");
  ChatForm form;
  BlockReader reader{limits_, chat.ignored, form};
  reader.System(Member(json, "system"), "system");
  reader.Messages(json["messages"], "messages");
  if (form.empty()) Refuse("messages", "messages has nothing that could be read.");
  chat.messages = form.Take();
  TakeSchema(body, chat);
  return std::move(request.chat);
}

}  // namespace loopspec::serve

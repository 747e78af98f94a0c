#include "serve/messages/answer.h"

#include <utility>

#include "base/error.h"

namespace loopspec::serve {
namespace {

using Kind = AnswerPart::Kind;

// Clients send a thinking block back with its signature. It is not checked: a client may send any
// thinking.
constexpr const char* kSignature = "loopspec";

// A call that was cut off has arguments that are no JSON.
OrderedJson InputOf(const std::string& arguments) {
  try {
    OrderedJson input = ParseOrderedJson(arguments, "arguments");
    if (input.is_object()) return input;
  } catch (const Error&) {
  }
  return OrderedJson::object();
}

std::string BlockEvent(const char* type, size_t index, const char* key, OrderedJson value) {
  return NamedEvent({{"type", type}, {"index", index}, {key, std::move(value)}});
}

const char* ErrorTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

OrderedJson MessagesErrorJson(const ApiError& error) {
  // Clients that shorten a conversation by themselves look for these words.
  const bool too_long = error.code == "context_length_exceeded";
  return {{"type", "error"},
          {"error",
           {{"type", ErrorTypeOf(error.status)},
            {"message", (too_long ? "prompt is too long: " : "") + error.message}}}};
}

MessagesAnswer::MessagesAnswer(const CallContext& context, AnswerSetup setup)
    : PartAnswer(std::move(setup)), id_(context.id), model_(context.model) {}

OrderedJson MessagesAnswer::Head() const {
  return {{"id", "msg_" + id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

// As Anthropic counts: what was found computed is no part of input_tokens.
OrderedJson MessagesAnswer::UsageOfMessage() const {
  const Usage counts = usage();
  return {{"input_tokens", counts.prompt_tokens - counts.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", counts.cached_tokens},
          {"output_tokens", counts.completion_tokens}};
}

OrderedJson MessagesAnswer::BlockJson(size_t index, bool whole) const {
  const AnswerBlock& block = blocks()[index];
  const std::string text = whole ? block.text : "";
  if (block.kind == Kind::kText) return {{"type", "text"}, {"text", text}};
  if (block.kind == Kind::kReasoning) {
    return {{"type", "thinking"}, {"thinking", text}, {"signature", whole ? kSignature : ""}};
  }
  return {{"type", "tool_use"},
          {"id", fmt::format("toolu_{}_{}", id_, index)},
          {"name", block.name},
          {"input", InputOf(text)}};
}

std::string MessagesAnswer::StopReasonName() const {
  if (cut()) return "max_tokens";
  if (end()->stop_string) return "stop_sequence";
  return calls() && !call_cut() ? "tool_use" : "end_turn";
}

OrderedJson MessagesAnswer::StopSequence() const {
  return end()->stop_string ? OrderedJson(*end()->stop_string) : OrderedJson(nullptr);
}

std::string MessagesAnswer::Body(double) {
  OrderedJson body = Head();
  for (size_t i = 0; i < blocks().size(); ++i) body["content"].push_back(BlockJson(i, true));
  body["stop_reason"] = StopReasonName();
  body["stop_sequence"] = StopSequence();
  body["usage"] = UsageOfMessage();
  return Dump(body);
}

std::string MessagesAnswer::Begin() {
  OrderedJson message = Head();
  message["usage"] = UsageOfMessage();
  return NamedEvent({{"type", "message_start"}, {"message", std::move(message)}}) +
         NamedEvent({{"type", "ping"}});
}

std::string MessagesAnswer::Open(size_t block) {
  return BlockEvent("content_block_start", block, "content_block", BlockJson(block, false));
}

std::string MessagesAnswer::Delta(size_t block, std::string_view text) {
  OrderedJson delta;
  switch (blocks()[block].kind) {
    case Kind::kReasoning:
      delta = {{"type", "thinking_delta"}, {"thinking", text}};
      break;
    case Kind::kText:
      delta = {{"type", "text_delta"}, {"text", text}};
      break;
    default:
      delta = {{"type", "input_json_delta"}, {"partial_json", text}};
  }
  return BlockEvent("content_block_delta", block, "delta", std::move(delta));
}

std::string MessagesAnswer::Close(size_t block) {
  std::string out;
  if (blocks()[block].kind == Kind::kReasoning) {
    out = BlockEvent("content_block_delta", block, "delta",
                     {{"type", "signature_delta"}, {"signature", kSignature}});
  }
  return out + NamedEvent({{"type", "content_block_stop"}, {"index", block}});
}

std::string MessagesAnswer::End() {
  return NamedEvent(
             {{"type", "message_delta"},
              {"delta", {{"stop_reason", StopReasonName()}, {"stop_sequence", StopSequence()}}},
              {"usage", UsageOfMessage()}}) +
         NamedEvent({{"type", "message_stop"}});
}

std::string MessagesAnswer::ErrorEvents(const ApiError& error) const {
  return NamedEvent(MessagesErrorJson(error));
}

}  // namespace loopspec::serve

#include "serve/server/api_document.h"

#include "serve/openai/openapi.h"

namespace loopspec::serve {
namespace {

OrderedJson TypeNamed(const char* type) {
  return {{"type", type}};
}

OrderedJson ListOfObjects() {
  return {{"type", "array"}, {"items", TypeNamed("object")}};
}

OrderedJson MessagesError() {
  return OpenApiObject({{"type", TypeNamed("string")},
                        {"error", OpenApiObject({{"type", TypeNamed("string")},
                                                 {"message", TypeNamed("string")}})}});
}

}  // namespace

OrderedJson ApiDocument(const ServiceCore& core) {
  const bool closed = core.parser.limits().strict;
  const OrderedJson response = OpenApiObject({{"id", TypeNamed("string")},
                                              {"object", TypeNamed("string")},
                                              {"created_at", TypeNamed("integer")},
                                              {"status", TypeNamed("string")},
                                              {"model", TypeNamed("string")},
                                              {"output", ListOfObjects()},
                                              {"usage", TypeNamed("object")}});
  const OrderedJson message = OpenApiObject({{"id", TypeNamed("string")},
                                             {"type", TypeNamed("string")},
                                             {"role", TypeNamed("string")},
                                             {"model", TypeNamed("string")},
                                             {"content", ListOfObjects()},
                                             {"stop_reason", TypeNamed("string")},
                                             {"usage", TypeNamed("object")}});
  const auto& messages = core.messages.fields();
  return OpenApi(
      core.parser, core.options.version,
      {{"/v1/responses", "Answers a conversation, in the form of OpenAI's Responses.",
        BodySchema(core.responses.fields(), kResponses, {"input"}, closed), response,
        OpenApiError(), true},
       {"/v1/messages", "Answers a conversation, in the form of Anthropic's Messages.",
        BodySchema(messages, kMessages, {"messages", "max_tokens"}, closed), message,
        MessagesError(), true},
       {"/v1/messages/count_tokens", "Tokens of the prompt that /v1/messages would make.",
        BodySchema(messages, kCountTokens, {"messages"}, closed),
        OpenApiObject({{"input_tokens", TypeNamed("integer")}}), MessagesError(), false}});
}

}  // namespace loopspec::serve

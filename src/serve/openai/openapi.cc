#include "serve/openai/openapi.h"

namespace loopspec::serve {
namespace {

OrderedJson WithSchema(const char* description, OrderedJson schema) {
  return {{"description", description},
          {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
}

OrderedJson Json200(const char* description, const char* schema) {
  return WithSchema(description, {{"$ref", std::string("#/components/schemas/") + schema}});
}

OrderedJson ErrorReference() {
  return {{"$ref", "#/components/schemas/Error"}};
}

OrderedJson Operation(const std::string& summary, OrderedJson success, const OrderedJson& error,
                      bool needs_key) {
  OrderedJson responses = {{"200", std::move(success)}};
  for (const char* status :
       {"400", "401", "404", "405", "408", "413", "415", "429", "431", "503"}) {
    responses[status] = WithSchema("An error that names the field or the limit.", error);
  }
  OrderedJson operation = {{"summary", summary}, {"responses", std::move(responses)}};
  if (needs_key) operation["security"] = OrderedJson::array({{{"bearer", OrderedJson::array()}}});
  return operation;
}

OrderedJson PostTo(const std::string& summary, OrderedJson body, OrderedJson success,
                   const OrderedJson& error, bool streams) {
  if (streams) {
    // Readers of this document differ in whether a schema is meant for the stream or for an event.
    success["content"]["text/event-stream"] = {{"schema", OrderedJson::object()}};
  }
  OrderedJson operation = Operation(summary, std::move(success), error, true);
  operation["requestBody"] = {{"required", true},
                              {"content", {{"application/json", {{"schema", std::move(body)}}}}}};
  return {{"post", std::move(operation)}};
}

OrderedJson Post(const char* summary, OrderedJson body, const char* answer, bool streams) {
  return PostTo(summary, std::move(body), Json200("The answer.", answer), ErrorReference(),
                streams);
}

OrderedJson Get(const char* summary, OrderedJson success, bool needs_key) {
  return {{"get", Operation(summary, std::move(success), ErrorReference(), needs_key)}};
}

OrderedJson Type(const char* type) {
  return {{"type", type}};
}

OrderedJson ListOf(OrderedJson items) {
  return {{"type", "array"}, {"items", std::move(items)}};
}

OrderedJson NullOr(const char* type) {
  return {{"type", OrderedJson::array({type, "null"})}};
}

OrderedJson Schemas() {
  const OrderedJson usage = OpenApiObject({{"prompt_tokens", Type("integer")},
                                           {"completion_tokens", Type("integer")},
                                           {"total_tokens", Type("integer")}});
  const OrderedJson loopspec = OpenApiObject({{"accepted", ListOf(Type("integer"))},
                                              {"gamma", Type("number")},
                                              {"tokens_per_pass", Type("number")},
                                              {"tokens_per_second", Type("number")},
                                              {"cached_tokens", Type("integer")},
                                              {"seed", Type("integer")}});
  const auto completion = [&](OrderedJson choice) {
    choice["index"] = Type("integer");
    choice["finish_reason"] = NullOr("string");
    return OpenApiObject({{"id", Type("string")},
                          {"object", Type("string")},
                          {"created", Type("integer")},
                          {"model", Type("string")},
                          {"choices", ListOf(OpenApiObject(std::move(choice)))},
                          {"usage", usage},
                          {"loopspec", loopspec}});
  };
  const OrderedJson generated = OpenApiObject({{"text", Type("string")},
                                               {"output_ids", ListOf(Type("integer"))},
                                               {"meta_info", Type("object")}});
  const OrderedJson model = OpenApiObject({{"id", Type("string")},
                                           {"object", Type("string")},
                                           {"created", Type("integer")},
                                           {"owned_by", Type("string")},
                                           {"max_model_len", Type("integer")}});
  return {
      {"Error", OpenApiError()},
      {"Completion", completion({{"text", Type("string")}})},
      {"ChatCompletion", completion({{"message", OpenApiObject({{"role", Type("string")},
                                                                {"content", NullOr("string")}})}})},
      {"Generated", {{"anyOf", OrderedJson::array({generated, ListOf(generated)})}}},
      {"Model", model},
      {"Models", OpenApiObject({{"object", Type("string")}, {"data", ListOf(model)}})},
      {"Tokens", OpenApiObject({{"count", Type("integer")},
                                {"max_model_len", Type("integer")},
                                {"tokens", ListOf(Type("integer"))}})},
      {"Text", OpenApiObject({{"prompt", Type("string")}})},
      {"Object", Type("object")}};
}

}  // namespace

OrderedJson OpenApiObject(OrderedJson properties) {
  OrderedJson required = OrderedJson::array();
  for (const auto& [name, schema] : properties.items()) required.push_back(name);
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", required}};
}

OrderedJson OpenApiError() {
  return OpenApiObject({{"error", OpenApiObject({{"message", Type("string")},
                                                 {"type", Type("string")},
                                                 {"param", NullOr("string")},
                                                 {"code", NullOr("string")}})}});
}

OrderedJson OpenApi(const WireParser& parser, const std::string& version,
                    const std::vector<OpenApiRoute>& others) {
  const auto& fields = parser.completion_fields();
  const bool closed = parser.limits().strict;
  const OrderedJson detokenize = {{"type", "object"},
                                  {"properties",
                                   {{"tokens", ListOf({{"type", "integer"}, {"minimum", 0}})},
                                    {"model", OrderedJson::object()}}},
                                  {"required", {"tokens"}},
                                  {"additionalProperties", !closed}};
  const OrderedJson text = {{"description", "Prometheus' text format."},
                            {"content", {{"text/plain", {{"schema", Type("string")}}}}}};
  OrderedJson paths;
  paths["/v1/completions"] =
      Post("Continues a text.", BodySchema(fields, kCompletions, {"prompt"}, closed), "Completion",
           true);
  paths["/v1/chat/completions"] =
      Post("Answers a conversation.", BodySchema(fields, kChat, {"messages"}, closed),
           "ChatCompletion", true);
  paths["/generate"] = Post("Continues a text, in SGLang's form.",
                            BodySchema(fields, kGenerate, {}, closed), "Generated", true);
  for (const OpenApiRoute& other : others) {
    paths[other.path] = PostTo(other.summary, other.body, WithSchema("The answer.", other.answer),
                               other.error, other.streams);
  }
  paths["/tokenize"] =
      Post("Text or a conversation as token ids.",
           BodySchema(parser.tokenize_fields(), kTokenize, {}, closed), "Tokens", false);
  paths["/detokenize"] = Post("Token ids as text.", detokenize, "Text", false);
  paths["/v1/models"] = Get("The model.", Json200("A list of one.", "Models"), true);
  paths["/tokenizer_info"] = Get("The tokenizer's special tokens and the chat template.",
                                 Json200("Facts.", "Object"), true);
  paths["/version"] = Get("The server's version.", Json200("Facts.", "Object"), false);
  for (const char* path : {"/model_info", "/get_model_info"}) {
    paths[path] = Get("The model, in SGLang's words.", Json200("Facts.", "Object"), true);
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    paths[path] = Get("The server, in SGLang's words.", Json200("Facts.", "Object"), true);
  }
  paths["/v1/loads"] = Get("How much runs and waits.", Json200("Counts.", "Object"), true);
  paths["/health"] = Get("200 when requests can be served; 503 while loading or draining.",
                         Json200("Ready.", "Object"), false);
  paths["/metrics"] = Get("Counts and timings for Prometheus.", text, false);
  paths["/openapi.json"] = Get("This document.", Json200("OpenAPI.", "Object"), false);
  return {{"openapi", "3.1.0"},
          {"info",
           {{"title", "loopspec"},
            {"version", version},
            {"description",
             "An OpenAI-compatible server for looped transformers, decoded by LoopSpec."}}},
          {"paths", std::move(paths)},
          {"components",
           {{"schemas", Schemas()},
            {"securitySchemes", {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

}  // namespace loopspec::serve

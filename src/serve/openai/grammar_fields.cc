#include "serve/openai/grammar_fields.h"

#include <algorithm>
#include <utility>

#include "fields/grammar_fields.h"
#include "serve/openai/error.h"
#include "serve/openai/members.h"
#include "serve/openai/values.h"

namespace loopspec::serve {
namespace {

constexpr size_t kMostChoices = 1000;

// "a.b" as the JSON pointer "/a/b".
std::string PointerTo(const std::string& path) {
  std::string pointer = "/" + path;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return pointer;
}

// A schema as JSON, or as a string that holds it.
void AskForSchema(const Json& value, const std::string& path, bool strict,
                  CompletionRequest& request) {
  GrammarSource source{GrammarKind::kJsonSchema, "", strict};
  if (value.is_string()) {
    source.text = value.get<std::string>();
  } else if (value.is_object() || value.is_boolean()) {
    request.schema_at = PointerTo(path);
  } else {
    Refuse(path, "{} is {}, expected a JSON schema.", path, Shown(value));
  }
  AskForGrammar(path, std::move(source), request);
}

void AskForText(const Json& value, const std::string& path, GrammarKind kind,
                CompletionRequest& request) {
  GrammarSource source{kind, ReadString(value, path)};
  if (source.text.empty()) return;  // llama.cpp's clients send "" for none
  AskForGrammar(path, std::move(source), request);
}

void AskForChoice(const Json& value, const std::string& path, CompletionRequest& request) {
  if (!value.is_array() || value.empty() || value.size() > kMostChoices) {
    Refuse(path, "{} is {}, expected a list of 1 to {} texts.", path, Shown(value), kMostChoices);
  }
  std::vector<std::string> choices;
  for (size_t i = 0; i < value.size(); ++i)
    choices.push_back(ReadString(value[i], ElementOf(path, i)));
  AskForGrammar(path, ChoiceGrammar(choices), request);
}

void AskForObject(const Json& value, const std::string& path, CompletionRequest& request) {
  if (ReadBool(value, path)) AskForGrammar(path, JsonObjectGrammar(), request);
}

// OpenAI's: {"type": "text"}, {"type": "json_object"} or
// {"type": "json_schema", "json_schema": {"name": ..., "schema": ..., "strict": ...}}.
void ReadResponseFormat(const Json& value, const std::string& path, CompletionRequest& request) {
  CheckIsObject(value, path);
  const std::string type = ReadChoice(value.value("type", Json()), path + ".type",
                                      {"text", "json_object", "json_schema"});
  if (type == "json_object") return AskForGrammar(path, JsonObjectGrammar(), request);
  if (type == "text") return;
  const std::string inner = path + ".json_schema";
  const Json format = value.value("json_schema", Json());
  CheckIsObject(format, inner);
  for (const auto& [key, entry] : format.items()) {
    if (key != "name" && key != "description" && key != "schema" && key != "strict")
      Refuse(inner + "." + key, "{}.{} is not a field that this server knows.", inner, key);
  }
  const Json strict = format.value("strict", Json());
  AskForSchema(format.value("schema", Json()), inner + ".schema",
               strict.is_null() || ReadBool(strict, inner + ".strict"), request);
}

// vLLM's: one of json, regex, choice, grammar and json_object.
void ReadStructuredOutputs(const Json& value, const std::string& path, CompletionRequest& request) {
  CheckIsObject(value, path);
  for (const auto& [key, entry] : value.items()) {
    const std::string where = path + "." + key;
    if (entry.is_null()) continue;
    if (key == "json") {
      AskForSchema(entry, where, true, request);
    } else if (key == "regex") {
      AskForText(entry, where, GrammarKind::kRegex, request);
    } else if (key == "grammar") {
      AskForText(entry, where, GrammarKind::kGbnf, request);
    } else if (key == "choice") {
      AskForChoice(entry, where, request);
    } else if (key == "json_object") {
      AskForObject(entry, where, request);
    } else if (entry != false) {  // disable_fallback and the like, at their defaults
      Refuse(where, "{} is not supported by this server.", where);
    }
  }
}

OrderedJson SchemaSchema() {
  return {{"anyOf", {{{"type", "object"}}, {{"type", "boolean"}}, {{"type", "string"}}}}};
}

CompletionField Schema(std::string name, unsigned endpoints) {
  return {std::move(name), endpoints,
          std::string(GrammarFieldOf(GrammarKind::kJsonSchema).help) + ".", SchemaSchema(),
          [](const Json& value, const std::string& path, CompletionRequest& request) {
            AskForSchema(value, path, true, request);
          }};
}

CompletionField Text(std::string name, unsigned endpoints, GrammarKind kind) {
  return {std::move(name), endpoints, std::string(GrammarFieldOf(kind).help) + ".",
          OrderedJson{{"type", "string"}},
          [kind](const Json& value, const std::string& path, CompletionRequest& request) {
            AskForText(value, path, kind, request);
          }};
}

OrderedJson ChoiceSchema() {
  return {{"type", "array"},
          {"minItems", 1},
          {"maxItems", kMostChoices},
          {"items", {{"type", "string"}}}};
}

OrderedJson ResponseFormatSchema() {
  const OrderedJson format = {{"type", "object"},
                              {"properties",
                               {{"name", {{"type", "string"}}},
                                {"description", {{"type", "string"}}},
                                {"schema", SchemaSchema()},
                                {"strict", {{"type", "boolean"}}}}},
                              {"required", {"schema"}},
                              {"additionalProperties", false}};
  return {{"type", "object"},
          {"properties",
           {{"type", {{"type", "string"}, {"enum", {"text", "json_object", "json_schema"}}}},
            {"json_schema", format}}},
          {"required", {"type"}}};
}

OrderedJson StructuredOutputsSchema() {
  return {{"type", "object"},
          {"properties",
           {{"json", SchemaSchema()},
            {"regex", {{"type", "string"}}},
            {"grammar", {{"type", "string"}}},
            {"choice", ChoiceSchema()},
            {"json_object", {{"type", "boolean"}}}}}};
}

}  // namespace

void AskForGrammar(const std::string& path, GrammarSource source, CompletionRequest& request) {
  if (!request.grammar_field.empty()) {
    Refuse(path, "{} is a second grammar beside {}: an answer has one.", path,
           request.grammar_field);
  }
  request.grammar_field = path;
  request.asked.grammar = std::move(source);
}

void AddGrammarFields(unsigned endpoints, std::vector<CompletionField>& fields) {
  fields.push_back({"response_format", endpoints,
                    "The answer is any text, any JSON object, or JSON that is valid by a schema. A "
                    "keyword that cannot be enforced is refused; with strict: false it is ignored, "
                    "and named in the header X-Loopspec-Ignored-Keywords.",
                    ResponseFormatSchema(), ReadResponseFormat});
  fields.push_back({"structured_outputs", endpoints,
                    "What the answer must be: one of json (a schema), regex, choice, grammar and "
                    "json_object.",
                    StructuredOutputsSchema(), ReadStructuredOutputs});
  fields.push_back(Schema("guided_json", endpoints));
  fields.push_back(Text("guided_regex", endpoints, GrammarKind::kRegex));
  fields.push_back(Text("guided_grammar", endpoints, GrammarKind::kGbnf));
  fields.push_back({"guided_choice", endpoints, "The answer is one of these texts.", ChoiceSchema(),
                    AskForChoice});
  fields.push_back(Schema("json_schema", endpoints));
  fields.push_back(Text("regex", endpoints, GrammarKind::kRegex));
  fields.push_back(Text("grammar", endpoints, GrammarKind::kGbnf));
  fields.push_back(Text("ebnf", endpoints, GrammarKind::kGbnf));
}

void AddGrammarParams(unsigned endpoint, std::vector<CompletionField>& fields) {
  fields.push_back(Schema("json_schema", endpoint));
  fields.push_back(Text("regex", endpoint, GrammarKind::kRegex));
  fields.push_back(Text("ebnf", endpoint, GrammarKind::kGbnf));
}

void TakeSchema(std::string_view body, CompletionRequest& request) {
  if (request.schema_at.empty()) return;
  const OrderedJson json = ParseOrderedJson(body, "the request's body");
  request.asked.grammar.text = json.at(OrderedJson::json_pointer(request.schema_at)).dump();
}

}  // namespace loopspec::serve

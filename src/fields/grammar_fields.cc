#include "fields/grammar_fields.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/check.h"

namespace loopspec {
namespace {

constexpr GrammarField kGrammarFields[] = {
    {"json_schema", GrammarKind::kJsonSchema,
     "The answer is JSON that is valid by this schema, with its properties in the schema's order"},
    {"regex", GrammarKind::kRegex, "The whole answer matches this regular expression"},
    {"grammar", GrammarKind::kGbnf,
     "The answer is one that this grammar allows, which has llama.cpp's GBNF form"},
};

// The text as a regular expression that matches it alone.
std::string Quoted(std::string_view text) {
  constexpr std::string_view kSpecial = R"(^$\.*+?()[]{}|/)";
  std::string out;
  for (const char c : text) {
    if (kSpecial.find(c) != kSpecial.npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::span<const GrammarField> GrammarFields() {
  return kGrammarFields;
}

const GrammarField& GrammarFieldOf(GrammarKind kind) {
  const auto found = std::find_if(std::begin(kGrammarFields), std::end(kGrammarFields),
                                  [&](const GrammarField& field) { return field.kind == kind; });
  LOOPSPEC_CHECK(found != std::end(kGrammarFields));
  return *found;
}

GrammarSource JsonObjectGrammar() {
  return {GrammarKind::kJsonSchema, R"({"type": "object"})"};
}

GrammarSource ChoiceGrammar(std::span<const std::string> choices) {
  GrammarSource source{GrammarKind::kRegex};
  for (const std::string& choice : choices)
    source.text += (source.text.empty() ? "(?:" : "|") + Quoted(choice);
  source.text += ")";
  return source;
}

}  // namespace loopspec

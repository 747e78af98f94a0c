#include "tools/answer_grammar.h"

#include <fmt/format.h>

#include "base/error.h"
#include "fields/grammar_fields.h"
#include "fields/request_fields.h"
#include "tools/input_file.h"

namespace loopspec::tools {

namespace {

// As other programs take it: the schema or the rules instead of a file's name.
bool IsSource(GrammarKind kind, const std::string& given) {
  if (kind == GrammarKind::kRegex) return true;
  if (kind == GrammarKind::kGbnf) return given.find("::=") != std::string::npos;
  const size_t first = given.find_first_not_of(" \t\r\n");
  return first != std::string::npos && given[first] == '{';
}

}  // namespace

void AnswerGrammar::AddTo(Command command) {
  given.resize(GrammarFields().size());
  for (size_t i = 0; i < given.size(); ++i) {
    const GrammarField& field = GrammarFields()[i];
    const bool file = field.kind != GrammarKind::kRegex;
    command
        .AddOption(OptionOf(field.name), given[i],
                   fmt::format("{}{}", field.help,
                               file ? "; a file, the text itself, or - for standard input" : ""))
        .TypeName(file ? "FILE" : "EXPRESSION")
        .Group("Grammar");
  }
}

GrammarSource AnswerGrammar::Get() const {
  GrammarSource source;
  const GrammarField* first = nullptr;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].empty()) continue;
    const GrammarField& field = GrammarFields()[i];
    if (first != nullptr)
      Fail("{} and {} exclude each other", OptionOf(first->name), OptionOf(field.name));
    first = &field;
    source.kind = field.kind;
    source.text = IsSource(field.kind, given[i]) ? given[i] : ReadInput(given[i]);
  }
  return source;
}

}  // namespace loopspec::tools

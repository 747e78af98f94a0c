#include "tools/answer_grammar.h"

#include <fmt/format.h>

#include "base/error.h"
#include "fields/grammar_fields.h"
#include "fields/request_fields.h"
#include "tools/input_file.h"

namespace loopspec::tools {

void AnswerGrammar::AddTo(Command command) {
  given.resize(GrammarFields().size());
  for (size_t i = 0; i < given.size(); ++i) {
    const GrammarField& field = GrammarFields()[i];
    const bool file = field.kind != GrammarKind::kRegex;
    command
        .AddOption(OptionOf(field.name), given[i],
                   fmt::format("{}{}", field.help, file ? "; - is standard input" : ""))
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
    source.text = field.kind == GrammarKind::kRegex ? given[i] : ReadInput(given[i]);
  }
  return source;
}

}  // namespace loopspec::tools

// What an answer with tools must be, as rules of a grammar: calls have the names of tools alone and
// arguments by each tool's schema.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "text/tool_format.h"

namespace loopspec {

struct ToolGrammarOptions {
  bool required = false;    // the answer is a call; else any text, or a call
  bool parallel = true;     // as many calls as it likes; else one. Llama 3's form has one
  std::string schema = {};  // where it is not required: what text must be, as a JSON schema
};

struct ToolGrammar {
  std::string rules;                 // GBNF, with the elements of docs/grammars.md
  std::string after;                 // the mark that the rules hold after; empty: from the start
  std::vector<std::string> ignored;  // keywords of the schemas that the rules leave out
};

// Throws Error where a tool cannot be called in this form.
ToolGrammar GrammarOfTools(ToolFormat format, std::span<const Tool> tools,
                           const ToolGrammarOptions& options);

}  // namespace loopspec

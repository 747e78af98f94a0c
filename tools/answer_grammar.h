// What an answer must be, as commands take it: --json-schema FILE, --regex EXPRESSION, --grammar
// FILE.
#pragma once

#include <string>
#include <vector>

#include "loopspec/request.h"
#include "tools/command_line.h"

namespace loopspec::tools {

struct AnswerGrammar {
  std::vector<std::string> given;  // by GrammarFields(); empty: not given

  void AddTo(Command command);
  // Throws Error where several are given or a file cannot be read.
  GrammarSource Get() const;
};

}  // namespace loopspec::tools

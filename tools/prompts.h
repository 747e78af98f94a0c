// Files of prompts: plain text, one per line, or JSONL with `prompt`, `question` or `text` (and
// perhaps `answer`).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace loopspec::tools {

struct PromptEntry {
  std::string prompt;
  std::string where;  // "prompts.txt, line 3"
  std::optional<std::string> answer;
};

// Throws Error for a file without a prompt. `limit` > 0 keeps the first ones; "-" is standard
// input.
std::vector<PromptEntry> ReadPrompts(const std::string& path, int limit);

// The same as texts: each prompt, and its answer on the next line where it has one.
std::vector<std::string> ReadTexts(const std::string& file);

}  // namespace loopspec::tools

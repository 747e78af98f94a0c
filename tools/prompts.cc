#include "tools/prompts.h"

#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/trimmed.h"
#include "tools/input_file.h"

namespace loopspec::tools {
namespace {

PromptEntry FromJsonLine(const std::string& line, const std::string& where) {
  const Json json = ParseJson(line, where);
  if (!json.is_object()) Fail("{}: expected a JSON object", where);
  for (const char* key : {"prompt", "question", "text"}) {
    if (auto text = FindString(json, key, where))
      return {*text, where, FindString(json, "answer", where)};
  }
  Fail("{}: no prompt, question or text", where);
}

}  // namespace

std::vector<PromptEntry> ReadPrompts(const std::string& path, int limit) {
  const std::string file = ReadInput(path);
  std::vector<PromptEntry> prompts;
  size_t begin = 0;
  for (int number = 1; begin < file.size(); ++number) {
    size_t end = file.find('\n', begin);
    if (end == std::string::npos) end = file.size();
    const std::string line(Trimmed(std::string_view(file).substr(begin, end - begin)));
    begin = end + 1;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}, line {}", NameOfInput(path), number);
    prompts.push_back(line[0] == '{' ? FromJsonLine(line, where) : PromptEntry{line, where, {}});
    if (limit > 0 && static_cast<int>(prompts.size()) == limit) break;
  }
  if (prompts.empty()) Fail("{} holds no prompt", NameOfInput(path));
  return prompts;
}

std::vector<std::string> ReadTexts(const std::string& file) {
  std::vector<std::string> texts;
  for (const PromptEntry& entry : ReadPrompts(file, 0))
    texts.push_back(entry.answer ? entry.prompt + "\n" + *entry.answer : entry.prompt);
  return texts;
}

}  // namespace loopspec::tools

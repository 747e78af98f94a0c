#include "base/error.h"
#include "experiments/tasks/families.h"

namespace loopspec::experiments {

void SetPrompt(TaskItem& item, const PromptLayout& layout, std::span<const Example> examples,
               const std::string& question, bool chat) {
  if (chat) {
    if (!layout.description.empty()) item.messages.push_back({"system", layout.description});
    for (const Example& example : examples) {
      item.messages.push_back({"user", example.question});
      item.messages.push_back({"assistant", example.answer});
    }
    item.messages.push_back({"user", question});
    return;
  }
  item.prompt = layout.description;
  for (const Example& example : examples) {
    item.prompt += example.question + layout.answer_delimiter + example.answer + "\n\n";
  }
  item.prompt += question;
}

std::span<const Example> TakeExamples(std::span<const Example> examples, std::optional<int> wanted,
                                      int usual, const std::string& task) {
  const int shots = wanted.value_or(usual);
  if (shots < 0 || static_cast<size_t>(shots) > examples.size()) {
    Fail("task {}: {} shots asked for, expected 0 to {}", task, shots, examples.size());
  }
  return examples.first(static_cast<size_t>(shots));
}

}  // namespace loopspec::experiments

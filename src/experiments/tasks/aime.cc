// AIME 2024 and 2025: lm-evaluation-harness's aime24 and aime25.
#include "base/error.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"

namespace loopspec::experiments {

Task MakeAime(const std::string& name, const TaskOptions& options) {
  Task task;
  task.name = name;
  task.stop = {"Question:", "</s>", "<|im_end|>", "<|eot_id|>"};
  task.max_tokens = 16384;
  task.max_length = 32768;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", name);
  const auto path = options.data / (name == "aime24" ? "aime2024" : "aime2025") / "test.jsonl";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    const std::string id = fmt::format("{}/{}", name, task.items.size());
    const auto problem = FindString(entry, "problem", id);
    TaskItem item{.id = id};
    const std::string question = problem ? *problem : NeedString(entry, "question", id);
    SetPrompt(item, {}, {}, "Question: " + question + "\nAnswer:", options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace loopspec::experiments

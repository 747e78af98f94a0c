// MATH-500 with the four examples of Minerva: lm-evaluation-harness's minerva_math500.
#include "base/error.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"

namespace loopspec::experiments {
namespace {

std::string AskMath(const std::string& problem) {
  return "Problem:\n" + problem + "\n\nSolution:";
}

}  // namespace

Task MakeMinervaMath500(const TaskOptions& options) {
  Task task;
  task.name = "minerva_math500";
  task.stop = {"Problem:"};
  task.max_tokens = options.chat ? 8192 : 2048;
  task.max_length = options.chat ? 16384 : 4096;

  std::vector<Example> all = MinervaMathExamples();
  for (Example& example : all) example.question = AskMath(example.question);
  const auto examples = TakeExamples(all, options.shots, 4, task.name);
  task.shots = static_cast<int>(examples.size());

  const auto path = options.data / "math500" / "test.jsonl";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    const std::string id = fmt::format("math500/{}", task.items.size());
    TaskItem item{.id = id};
    SetPrompt(item, {}, examples, AskMath(NeedString(entry, "problem", id)), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace loopspec::experiments

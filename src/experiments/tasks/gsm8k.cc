// GSM8K with chain-of-thought examples: lm-evaluation-harness's gsm8k_cot.
#include "base/error.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"

namespace loopspec::experiments {
namespace {

std::string AskGsm8k(const std::string& question) {
  return "Q: " + question + "\nA:";
}

}  // namespace

Task MakeGsm8kCot(const TaskOptions& options) {
  Task task;
  task.name = "gsm8k_cot";
  task.stop = {"Q:", "</s>", "<|im_end|>"};
  task.max_tokens = options.chat ? 4096 : 512;
  task.max_length = options.chat ? 8192 : 2048;

  std::vector<Example> all = Gsm8kCotExamples();
  for (Example& example : all) example.question = AskGsm8k(example.question);
  const auto examples = TakeExamples(all, options.shots, 8, task.name);
  task.shots = static_cast<int>(examples.size());

  const auto path = options.data / "gsm8k" / "test.jsonl";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    const std::string id = fmt::format("gsm8k/{}", task.items.size());
    TaskItem item{.id = id};
    SetPrompt(item, {}, examples, AskGsm8k(NeedString(entry, "question", id)), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace loopspec::experiments

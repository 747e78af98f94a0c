// The families of tasks, one file each; MakeTask chooses.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/tasks/tasks.h"

namespace loopspec::experiments {

// A worked example: the question as it is asked, the answer as it is given.
struct Example {
  std::string question, answer;
};

// Examples that belong to the prompts of the field and are in no benchmark file.
std::vector<Example> Gsm8kCotExamples();     // Wei et al. (2022), 8
std::vector<Example> MinervaMathExamples();  // Lewkowycz et al. (2022), 4

// What stands around examples and questions, as lm-evaluation-harness puts them together.
struct PromptLayout {
  std::string description;             // before everything; the system turn in chat form
  std::string answer_delimiter = " ";  // between a question and its answer, plain form
};

// Sets the item's prompt, or its messages in chat form.
void SetPrompt(TaskItem& item, const PromptLayout& layout, std::span<const Example> examples,
               const std::string& question, bool chat);

// The first `wanted` examples, or all without a wish. Throws Error when there are fewer.
std::span<const Example> TakeExamples(std::span<const Example> examples, std::optional<int> wanted,
                                      int usual, const std::string& task);

Task MakeGsm8kCot(const TaskOptions& options);
Task MakeMinervaMath500(const TaskOptions& options);
Task MakeBbh(const std::string& name, const TaskOptions& options);  // all parts, or one
std::vector<std::string> BbhParts();
Task MakeAime(const std::string& name, const TaskOptions& options);
Task MakeHumanEval(const TaskOptions& options);      // completion, as lm-evaluation-harness
Task MakeHumanEvalPlus(const TaskOptions& options);  // the paper's form
Task MakeMbpp(const TaskOptions& options);           // 3-shot, as lm-evaluation-harness
Task MakeMbppPlus(const TaskOptions& options);       // the paper's form
Task MakeHeldoutProblems(const TaskOptions& options);
Task MakeStories(const TaskOptions& options);

}  // namespace loopspec::experiments

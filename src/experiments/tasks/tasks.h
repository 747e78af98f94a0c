// Benchmark tasks from local files: prompts, stop strings and token budgets.
// gsm8k_cot, minerva_math500 and bbh_cot_fewshot have the prompts of lm-evaluation-harness byte
// for byte.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec::experiments {

struct TaskMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  bool operator==(const TaskMessage&) const = default;
};

struct TaskItem {
  std::string id = {};
  std::string prompt = {};                 // plain form; empty in chat form
  std::vector<TaskMessage> messages = {};  // chat form; empty in plain form
  // Chat form: what the assistant's turn already begins with, after the template's own opening.
  std::string answer_prefix = {};
  // The expected number after the last "####", where the task marks its answers so; other tasks'
  // answers are judged by the field's own scorers (python -m loopspec.evaluate).
  std::optional<std::string> answer = {};
};

struct Task {
  std::string name;
  int shots = 0;
  std::vector<std::string> stop;  // the model's end-of-text tokens stop too
  int max_tokens = 0;             // new tokens
  int max_length = 0;             // prompt and new tokens; longer prompts lose their beginning
  std::string note = {};          // what reports must say about its prompts; usually nothing
  std::vector<TaskItem> items;
};

struct TaskOptions {
  std::filesystem::path data = {};   // folder with gsm8k/, math500/, bbh/, ...
  std::optional<int> shots = {};     // else the task's own number
  bool chat = false;                 // few-shot examples as turns, the budgets of thinking models
  std::optional<size_t> limit = {};  // only the first items
};

// Names that MakeTask knows, bbh_cot_fewshot's parts included.
std::vector<std::string> TaskNames();

// Throws Error when the name is unknown, a file is missing or an entry lacks what the task needs.
Task MakeTask(const std::string& name, const TaskOptions& options);

// What stands behind the last "####" of a text up to the end of that line, as answers of GSM8K end;
// nothing when there is none.
std::optional<std::string> FinalAnswer(std::string_view text);

}  // namespace loopspec::experiments

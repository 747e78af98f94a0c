// HumanEval, HumanEval+, MBPP and MBPP+.
//
// humaneval and mbpp are lm-evaluation-harness's tasks. humaneval_plus and mbpp_plus are zero-shot
// as in the paper: the prompt asks for a self-contained script in a markdown code block and opens
// that block. The authors' wording is EvalPlus's and comes as data, evalplus_prompt.json in the
// folder of benchmarks; without that file the wording is ours, and reports say so.
#include "base/error.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"
#include "experiments/tasks/strings.h"

namespace loopspec::experiments {
namespace {

constexpr const char* kWordingFile = "evalplus_prompt.json";

// How a script is asked for, and what the answer begins with before its code block.
struct Wording {
  std::string instruction =
      "Write a self-contained Python script that solves the following problem. Give it in one "
      "markdown code block.";
  std::string opening = "Solution:";
};

// Sets the task's note where the wording is ours.
Wording ReadWording(const std::filesystem::path& folder, Task& task) {
  const std::filesystem::path file = folder / kWordingFile;
  Wording wording;
  if (!std::filesystem::exists(file)) {
    task.note = fmt::format(
        "Prompts of {} are in our own wording: {} is not in the folder of benchmarks "
        "(scripts/fetch-benchmarks.py fetches it).",
        task.name, kWordingFile);
    return wording;
  }
  const Json json = ReadJsonFile(file);
  wording.instruction = NeedString(json, "instruction", file.string());
  wording.opening = NeedString(json, "answer_opening", file.string());
  return wording;
}

void AskForScript(const Wording& wording, TaskItem& item, std::string_view problem, bool chat) {
  const std::string request =
      fmt::format("{}\n```\n{}\n```\n", wording.instruction, Strip(problem));
  const std::string opening = fmt::format("{}\n```python\n", wording.opening);
  if (chat) {
    item.messages = {{"user", request}};
    item.answer_prefix = opening;
  } else {
    item.prompt = request + opening;
  }
}

// A task whose answers are scripts in a code block; `file` has the problems.
Task MakeCodeBlockTask(const std::string& name, const std::filesystem::path& file,
                       const TaskOptions& options) {
  Task task;
  task.name = name;
  task.stop = {"<|endoftext|>", "<|endofmask|>", "</s>",      "\nif __name__", "\ndef main(",
               "\nprint(",      "\n# Test",      "\nassert ", "\n```"};
  task.max_tokens = 1024;
  task.max_length = 2048;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", name);
  const Wording wording = ReadWording(options.data, task);
  const auto path = options.data / file;
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    TaskItem item{.id = NeedString(entry, "task_id", path.string())};
    AskForScript(wording, item, NeedString(entry, "prompt", item.id), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

int NeedTaskNumber(const Json& entry, const std::string& where) {
  const auto number = FindInt(entry, "task_id", where, 0, 1'000'000);
  if (!number) Fail("{}: no \"task_id\"", where);
  return static_cast<int>(*number);
}

struct MbppProblem {
  int number = 0;
  std::string text, code;
  std::vector<std::string> tests;
};

MbppProblem ReadMbpp(const Json& entry, const std::string& where) {
  MbppProblem problem{NeedTaskNumber(entry, where),
                      NeedString(entry, "text", where),
                      NeedString(entry, "code", where),
                      {}};
  if (!entry.contains("test_list") || !entry["test_list"].is_array()) {
    Fail("{}: no list \"test_list\"", where);
  }
  for (const Json& test : entry["test_list"]) {
    if (!test.is_string()) Fail("{}: \"test_list\" must hold strings", where);
    problem.tests.push_back(test.get<std::string>());
  }
  if (problem.tests.size() < 3) Fail("{}: fewer than 3 tests", where);
  return problem;
}

std::string AskMbpp(const MbppProblem& problem) {
  return fmt::format(
      "You are an expert Python programmer, and here is your task: {} Your code should pass these "
      "tests:\n\n{}\n{}\n{}\n[BEGIN]\n",
      problem.text, problem.tests[0], problem.tests[1], problem.tests[2]);
}

}  // namespace

Task MakeHumanEval(const TaskOptions& options) {
  Task task;
  task.name = "humaneval";
  task.stop = {"\nclass", "\ndef", "\n#", "\nif", "\nprint"};
  task.max_tokens = 1024;
  task.max_length = 2048;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", task.name);
  const auto path = options.data / "humaneval" / "HumanEval.jsonl.gz";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    TaskItem item{.id = NeedString(entry, "task_id", path.string())};
    SetPrompt(item, {}, {}, NeedString(entry, "prompt", item.id), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

Task MakeHumanEvalPlus(const TaskOptions& options) {
  return MakeCodeBlockTask("humaneval_plus", "humanevalplus/HumanEvalPlus.jsonl.gz", options);
}

Task MakeMbpp(const TaskOptions& options) {
  Task task;
  task.name = "mbpp";
  task.stop = {"[DONE]"};
  task.max_tokens = 1024;
  task.max_length = 2048;
  std::vector<Example> all;
  std::vector<MbppProblem> problems;
  for (const Json& entry : ReadJsonLines(options.data / "mbpp" / "mbpp.jsonl")) {
    MbppProblem problem = ReadMbpp(entry, fmt::format("mbpp entry {}", problems.size()));
    // Problems 2 to 4 are the prompt's examples, 11 to 510 the test set (Austin et al., 2021).
    if (problem.number >= 2 && problem.number <= 4) {
      all.push_back({AskMbpp(problem), problem.code + "\n[DONE]"});
    }
    if (problem.number >= 11 && problem.number <= 510) problems.push_back(std::move(problem));
  }
  const auto examples = TakeExamples(all, options.shots, 3, task.name);
  task.shots = static_cast<int>(examples.size());
  for (const MbppProblem& problem : problems) {
    if (options.limit && task.items.size() == *options.limit) break;
    TaskItem item{.id = fmt::format("Mbpp/{}", problem.number)};
    SetPrompt(item, {"", ""}, examples, AskMbpp(problem), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

Task MakeMbppPlus(const TaskOptions& options) {
  return MakeCodeBlockTask("mbpp_plus", "mbppplus/MbppPlus.jsonl.gz", options);
}

}  // namespace loopspec::experiments

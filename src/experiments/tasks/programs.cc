// HumanEval, HumanEval+, MBPP and MBPP+.
//
// humaneval and mbpp are lm-evaluation-harness's tasks. humaneval_plus and mbpp_plus are zero-shot
// as in the paper: the prompt asks for a self-contained script in a markdown code block and opens
// that block. The authors' wording is EvalPlus's and comes as data, evalplus_prompt.json in the
// folder of benchmarks; without that file the wording is ours, and reports say so.
#include <array>
#include <map>

#include "base/error.h"
#include "experiments/scoring/strings.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"

namespace loopspec::measure {
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

Task MakeCodeBlockTask(const std::string& name, const TaskOptions& options) {
  Task task;
  task.name = name;
  task.chat = options.chat;
  task.scoring = Scoring::kProgram;
  task.stop = {"<|endoftext|>", "<|endofmask|>", "</s>",      "\nif __name__", "\ndef main(",
               "\nprint(",      "\n# Test",      "\nassert ", "\n```"};
  task.max_tokens = 1024;
  task.max_length = 2048;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", name);
  return task;
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

// The released tests of HumanEval/32 hand the inputs of find_zero to the wrong function: the
// benchmark's own evaluator checks that the polynomial is near zero at the result. Those of three
// problems of MBPP+ whose results may be a match or None compare, and assert nothing. Nine problems
// compute what is expected from the inputs after the program had them: it gets a copy, as the
// benchmark's own evaluator gives it, so that it cannot change what is expected.
std::string RepairTests(std::string_view released) {
  constexpr std::string_view kCompared = "        exact_match = exp == (out is not None)\n";
  constexpr std::string_view kCopy = "(*__import__('copy').deepcopy(inp))";
  std::string tests(released);
  const auto replace = [&tests](std::string_view from, const std::string& to) {
    tests = ReplaceAll(tests, from, to);
  };
  replace("_poly(*candidate(*inp), inp)", fmt::format("abs(_poly(*inp, candidate{}))", kCopy));
  replace("(*inp), ref_func(*inp)", fmt::format("{}, ref_func(*inp)", kCopy));
  replace(kCompared, std::string(kCompared) + "    assert exact_match\n");
  return tests;
}

// polar_rect (Mbpp/590) is judged by equality of floating-point numbers, whose last bits depend on
// the mathematical library: its expected results come from the reference solution here, as the
// benchmark's own evaluator does it for every problem.
std::string ExpectFromReference(std::string_view tests, const std::string& entry_point,
                                const std::string& reference) {
  const size_t begin = tests.find("\nresults = ");
  const size_t end = begin == std::string_view::npos ? begin : tests.find('\n', begin + 1);
  if (end == std::string_view::npos) Fail("the tests of {} have no line of results", entry_point);
  return fmt::format(
      "{}\nreference = {{}}\nexec({}, reference)\nresults = [reference[\"{}\"](*i) for i in "
      "inputs]{}",
      tests.substr(0, begin), Json(reference).dump(), entry_point, tests.substr(end));
}

// Tests of HumanEval's form: a function `check` of the function asked for.
ProgramTests CheckTests(const std::string& tests, const std::string& entry_point) {
  return {tests + "\ncheck(candidate)\n", entry_point};
}

// The functions and classes that a program defines; tests may call one that is named as a builtin.
std::vector<std::string> DefinedNames(std::string_view code) {
  std::vector<std::string> names;
  for (const std::string_view line : Split(code, "\n")) {
    for (const std::string_view keyword : {"def ", "class "}) {
      if (!line.starts_with(keyword)) continue;
      const std::string_view rest = Strip(line.substr(keyword.size()));
      names.emplace_back(Strip(rest.substr(0, rest.find_first_of("(: "))));
    }
  }
  return names;
}

int NeedTaskNumber(const Json& entry, const std::string& where) {
  const auto number = FindInt(entry, "task_id", where, 0, 1'000'000);
  if (!number) Fail("{}: no \"task_id\"", where);
  return static_cast<int>(*number);
}

struct MbppProblem {
  int number = 0;
  std::string text, code, setup;
  std::vector<std::string> tests;
};

MbppProblem ReadMbpp(const Json& entry, const std::string& where) {
  MbppProblem problem{NeedTaskNumber(entry, where),
                      NeedString(entry, "text", where),
                      NeedString(entry, "code", where),
                      FindString(entry, "test_setup_code", where).value_or(""),
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
  task.chat = options.chat;
  task.scoring = Scoring::kProgram;
  task.stop = {"\nclass", "\ndef", "\n#", "\nif", "\nprint"};
  task.max_tokens = 1024;
  task.max_length = 2048;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", task.name);
  const auto path = options.data / "humaneval" / "HumanEval.jsonl.gz";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    TaskItem item{.id = NeedString(entry, "task_id", path.string())};
    const std::string prompt = NeedString(entry, "prompt", item.id);
    item.program.prefix = prompt;
    // Three prompts have helpers that the tests call: the tests get them from the prompt, not from
    // the program.
    const std::string entry_point = NeedString(entry, "entry_point", item.id);
    item.program.tests = CheckTests(fmt::format("{}    pass\n\n{} = candidate\n{}", prompt,
                                                entry_point, NeedString(entry, "test", item.id)),
                                    entry_point);
    item.reference = NeedString(entry, "canonical_solution", item.id);
    SetPrompt(item, {}, {}, prompt, options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

Task MakeHumanEvalPlus(const TaskOptions& options) {
  Task task = MakeCodeBlockTask("humaneval_plus", options);
  const Wording wording = ReadWording(options.data, task);
  const auto path = options.data / "humanevalplus" / "HumanEvalPlus-OriginFmt.jsonl.gz";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    TaskItem item{.id = NeedString(entry, "task_id", path.string())};
    const std::string prompt = NeedString(entry, "prompt", item.id);
    item.program.tests = CheckTests(RepairTests(NeedString(entry, "test", item.id)),
                                    NeedString(entry, "entry_point", item.id));
    item.reference = prompt + NeedString(entry, "canonical_solution", item.id);
    AskForScript(wording, item, prompt, options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

Task MakeMbpp(const TaskOptions& options) {
  Task task;
  task.name = "mbpp";
  task.chat = options.chat;
  task.scoring = Scoring::kProgram;
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
    TaskItem item{.id = fmt::format("Mbpp/{}", problem.number), .reference = problem.code};
    item.program.tests = {problem.setup + "\n", "", DefinedNames(problem.code)};
    for (const std::string& test : problem.tests) item.program.tests.code += test + "\n";
    SetPrompt(item, {"", ""}, examples, AskMbpp(problem), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

Task MakeMbppPlus(const TaskOptions& options) {
  Task task = MakeCodeBlockTask("mbpp_plus", options);
  const Wording wording = ReadWording(options.data, task);
  const auto folder = options.data / "mbppplus";
  const auto tests_path = folder / "MbppPlus-OriginFmt.jsonl.gz";
  std::map<std::string, std::string> tests;
  for (const Json& entry : ReadJsonLines(tests_path)) {
    const int number = NeedTaskNumber(entry, tests_path.string());
    const std::string id = fmt::format("Mbpp/{}", number);
    tests[id] = NeedString(entry, "test", id);
  }
  const auto path = folder / "MbppPlus.jsonl.gz";
  for (const Json& entry : ReadJsonLines(path, options.limit)) {
    TaskItem item{.id = NeedString(entry, "task_id", path.string())};
    if (!tests.contains(item.id)) Fail("{}: no tests in {}", item.id, tests_path.string());
    const std::string entry_point = NeedString(entry, "entry_point", item.id);
    item.program.tests = {RepairTests(tests[item.id]), entry_point, {entry_point}};
    item.reference = NeedString(entry, "canonical_solution", item.id);
    if (entry_point == "polar_rect") {
      item.program.tests.code =
          ExpectFromReference(item.program.tests.code, entry_point, item.reference);
    }
    AskForScript(wording, item, NeedString(entry, "prompt", item.id), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace loopspec::measure

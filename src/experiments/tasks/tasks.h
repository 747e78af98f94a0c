// Benchmark tasks from local files: prompts, stop strings, token budgets, references and scores.
// gsm8k_cot, minerva_math500 and bbh_cot_fewshot have the prompts of lm-evaluation-harness byte
// for byte.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/scoring/sandbox.h"

namespace loopspec::measure {

struct TaskMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  bool operator==(const TaskMessage&) const = default;
};

// How an answer is judged.
enum class Scoring {
  kNone,     // text for speed only
  kGsm8k,    // number, as gsm8k_cot's two filters and by equivalence; the flexible one counts
  kMath,     // LaTeX answer, as minerva_math's filter and by equivalence
  kAime,     // the last \boxed{...}, or what stands in dollar signs, or all, as aime24 and aime25
  kBbh,      // exact match of what follows "the answer is "
  kProgram,  // run with tests
  kMarked,   // number after the last "#### "
};

// What a program is tested with.
struct ProgramTest {
  std::string prefix;  // stands before the answer when it only continues a function
  ProgramTests tests;
};

struct TaskItem {
  std::string id = {};
  std::string prompt = {};                 // plain form; empty in chat form
  std::vector<TaskMessage> messages = {};  // chat form; empty in plain form
  // Chat form: what the assistant's turn already begins with, after the template's own opening.
  std::string answer_prefix = {};
  std::string reference = {};
  ProgramTest program = {};
};

struct Task {
  std::string name;
  int shots = 0;
  bool chat = false;
  Scoring scoring = Scoring::kNone;
  std::vector<std::string> stop;  // the model's end-of-text tokens stop too
  int max_tokens = 0;             // new tokens
  int max_length = 0;             // prompt and new tokens; longer prompts lose their beginning
  Isolation isolation = Isolation::kSandbox;  // of programs
  std::string note = {};  // what reports must say about its prompts; usually nothing
  std::vector<TaskItem> items;
};

struct TaskOptions {
  std::filesystem::path data = {};   // folder with gsm8k/, math500/, bbh/, ...
  std::optional<int> shots = {};     // else the task's own number
  bool chat = false;                 // few-shot examples as turns, the budgets of thinking models
  std::optional<size_t> limit = {};  // only the first items
  bool allow_unsandboxed_code = false;  // programs run without a sandbox
};

// Names that MakeTask knows, bbh_cot_fewshot's parts included.
std::vector<std::string> TaskNames();

// Throws Error when the name is unknown, a file is missing or an entry lacks what the task needs,
// and when programs are to be run in a sandbox that cannot be had.
Task MakeTask(const std::string& name, const TaskOptions& options);

// `metrics` has every judgement by its name; `correct` is the one that counts.
struct TaskScore {
  bool correct = false;
  std::string extracted;  // the answer as it was understood
  std::map<std::string, bool> metrics;
  std::string reason;  // of a program that failed
};

// `answer` is what the model wrote, cut at the first stop string; in chat form, thoughts up to
// "</think>" do not count. Runs Python for kProgram.
TaskScore ScoreAnswer(const Task& task, const TaskItem& item, std::string_view answer);

// `text` up to the first of the stop strings; all of it when there is none.
std::string_view CutAtStop(std::string_view text, const std::vector<std::string>& stop);

}  // namespace loopspec::measure

// BIG-Bench Hard with chain-of-thought examples: lm-evaluation-harness's bbh_cot_fewshot.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/mapped_file.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"
#include "experiments/tasks/strings.h"

namespace loopspec::experiments {
namespace {

constexpr std::string_view kGroup = "bbh_cot_fewshot";
constexpr std::string_view kThink = "\nA: Let's think step by step.";

constexpr std::array<std::string_view, 27> kParts = {"boolean_expressions",
                                                     "causal_judgement",
                                                     "date_understanding",
                                                     "disambiguation_qa",
                                                     "dyck_languages",
                                                     "formal_fallacies",
                                                     "geometric_shapes",
                                                     "hyperbaton",
                                                     "logical_deduction_five_objects",
                                                     "logical_deduction_seven_objects",
                                                     "logical_deduction_three_objects",
                                                     "movie_recommendation",
                                                     "multistep_arithmetic_two",
                                                     "navigate",
                                                     "object_counting",
                                                     "penguins_in_a_table",
                                                     "reasoning_about_colored_objects",
                                                     "ruin_names",
                                                     "salient_translation_error_detection",
                                                     "snarks",
                                                     "sports_understanding",
                                                     "temporal_sequences",
                                                     "tracking_shuffled_objects_five_objects",
                                                     "tracking_shuffled_objects_seven_objects",
                                                     "tracking_shuffled_objects_three_objects",
                                                     "web_of_lies",
                                                     "word_sorting"};

std::string AskBbh(std::string_view input) {
  return fmt::format("Q: {}{}\n", input, kThink);
}

struct BbhPrompt {
  std::string description;
  std::vector<Example> examples;
};

// A prompt file: a warning, a line of dashes, the description, then examples that begin with "Q: "
// after a blank line.
BbhPrompt ReadPrompt(const std::filesystem::path& path) {
  const std::string text = ReadFile(path);
  constexpr std::string_view kDashes = "-----\n";
  const size_t dashes = text.find(kDashes);
  if (dashes == std::string::npos) Fail("{}: no line of dashes", path.string());
  const auto parts = Split(std::string_view(text).substr(dashes + kDashes.size()), "\n\nQ: ");
  BbhPrompt prompt{fmt::format("{}\n\n", parts[0]), {}};
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t think = parts[i].find(kThink);
    const size_t answer = think + kThink.size() + 1;  // a line break or a space follows
    if (think == std::string_view::npos || answer > parts[i].size()) {
      Fail("{}: example {} does not think step by step", path.string(), i);
    }
    prompt.examples.push_back(
        {AskBbh(parts[i].substr(0, think)), std::string(parts[i].substr(answer))});
  }
  return prompt;
}

void AddPart(Task& task, std::string_view part, const TaskOptions& options) {
  const auto folder = options.data / "bbh";
  const BbhPrompt prompt = ReadPrompt(folder / "cot-prompts" / fmt::format("{}.txt", part));
  const auto examples = TakeExamples(prompt.examples, options.shots, 3, task.name);
  task.shots = static_cast<int>(examples.size());
  const PromptLayout layout{prompt.description, ""};
  const auto path = folder / "bbh" / fmt::format("{}.json", part);
  const Json file = ReadJsonFile(path);
  if (!file.is_object() || !file.contains("examples") || !file["examples"].is_array()) {
    Fail("{}: no list \"examples\"", path.string());
  }
  size_t number = 0;
  for (const Json& entry : file["examples"]) {
    if (options.limit && number == *options.limit) break;
    const std::string id = fmt::format("bbh/{}/{}", part, number++);
    if (!entry.is_object()) Fail("{}: expected an object", id);
    TaskItem item{.id = id};
    SetPrompt(item, layout, examples, AskBbh(NeedString(entry, "input", id)), options.chat);
    task.items.push_back(std::move(item));
  }
}

}  // namespace

std::vector<std::string> BbhParts() {
  std::vector<std::string> names;
  for (const std::string_view part : kParts) names.push_back(fmt::format("{}_{}", kGroup, part));
  return names;
}

Task MakeBbh(const std::string& name, const TaskOptions& options) {
  Task task;
  task.name = name;
  task.stop = {"</s>", "Q", "\n\n"};
  task.max_tokens = 1024;
  task.max_length = 4096;
  if (name != kGroup) {
    AddPart(task, std::string_view(name).substr(kGroup.size() + 1), options);
    return task;
  }
  // A limited run takes the same number of items from every part, as far as it goes.
  TaskOptions part_options = options;
  if (options.limit) part_options.limit = (*options.limit + kParts.size() - 1) / kParts.size();
  for (const std::string_view part : kParts) AddPart(task, part, part_options);
  if (options.limit && task.items.size() > *options.limit) task.items.resize(*options.limit);
  return task;
}

}  // namespace loopspec::experiments

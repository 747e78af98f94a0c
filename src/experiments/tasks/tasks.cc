#include "experiments/tasks/tasks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "experiments/tasks/families.h"

namespace loopspec::measure {
namespace {

using Maker = std::function<Task(const TaskOptions&)>;

std::vector<std::pair<std::string, Maker>> Makers() {
  std::vector<std::pair<std::string, Maker>> makers = {
      {"gsm8k_cot", MakeGsm8kCot},
      {"minerva_math500", MakeMinervaMath500},
      {"humaneval", MakeHumanEval},
      {"humaneval_plus", MakeHumanEvalPlus},
      {"mbpp", MakeMbpp},
      {"mbpp_plus", MakeMbppPlus},
      {"heldout_problems", MakeHeldoutProblems},
      {"stories", MakeStories},
  };
  std::vector<std::string> bbh = BbhParts();
  bbh.insert(bbh.begin(), "bbh_cot_fewshot");
  for (const std::string& name : bbh) {
    makers.emplace_back(name, [name](const TaskOptions& o) { return MakeBbh(name, o); });
  }
  for (const std::string name : {"aime24", "aime25"}) {
    makers.emplace_back(name, [name](const TaskOptions& o) { return MakeAime(name, o); });
  }
  return makers;
}

}  // namespace

std::vector<std::string> TaskNames() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : Makers()) names.push_back(name);
  return names;
}

Task MakeTask(const std::string& name, const TaskOptions& options) {
  for (const auto& [known, maker] : Makers()) {
    if (known != name) continue;
    Task task = maker(options);
    if (options.allow_unsandboxed_code) task.isolation = Isolation::kNone;
    // Now, and not after hours of decoding.
    if (task.scoring == Scoring::kProgram && task.isolation == Isolation::kSandbox) NeedSandbox();
    return task;
  }
  std::vector<std::string> names = TaskNames();
  std::erase_if(names, [](const std::string& n) { return n.starts_with("bbh_cot_fewshot_"); });
  Fail(
      "task \"{}\" is unknown; expected one of {}, or a part such as "
      "bbh_cot_fewshot_word_sorting",
      name, fmt::join(names, ", "));
}

std::string_view CutAtStop(std::string_view text, const std::vector<std::string>& stop) {
  size_t end = text.size();
  for (const std::string& s : stop) {
    if (!s.empty()) end = std::min(end, text.find(s));
  }
  return text.substr(0, end);
}

}  // namespace loopspec::measure

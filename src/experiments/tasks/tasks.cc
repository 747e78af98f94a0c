#include "experiments/tasks/tasks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/strings.h"

namespace loopspec::experiments {
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
    if (known == name) return maker(options);
  }
  std::vector<std::string> names = TaskNames();
  std::erase_if(names, [](const std::string& n) { return n.starts_with("bbh_cot_fewshot_"); });
  Fail(
      "task \"{}\" is unknown; expected one of {}, or a part such as "
      "bbh_cot_fewshot_word_sorting",
      name, fmt::join(names, ", "));
}

std::optional<std::string> FinalAnswer(std::string_view text) {
  constexpr std::string_view kMark = "####";
  const size_t mark = text.rfind(kMark);
  if (mark == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(mark + kMark.size());
  return std::string(Strip(rest.substr(0, rest.find('\n'))));
}

}  // namespace loopspec::experiments

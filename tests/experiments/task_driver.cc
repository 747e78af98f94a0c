// Tasks and scores for the comparisons with Python libraries. Reads one JSON request per line and
// writes one JSON answer per line.
#include <chrono>
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "experiments/scoring/lm_eval.h"
#include "experiments/scoring/math_answer.h"
#include "experiments/scoring/sandbox.h"
#include "experiments/tasks/tasks.h"

namespace loopspec::measure {
namespace {

TaskOptions OptionsOf(const Json& request) {
  TaskOptions options{.data = request.at("data").get<std::string>()};
  if (request.contains("shots")) options.shots = request["shots"].get<int>();
  if (request.contains("limit")) options.limit = request["limit"].get<size_t>();
  options.chat = request.value("chat", false);
  return options;
}

Json DescribeItem(const TaskItem& item) {
  Json messages = Json::array();
  for (const TaskMessage& message : item.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return {{"id", item.id},
          {"prompt", item.prompt},
          {"messages", messages},
          {"reference", item.reference},
          {"entry_point", item.program.tests.entry_point}};
}

// {"task": name, "data": folder}: the task. With "answers": item number -> text, their scores.
Json AnswerTask(const Json& request) {
  const Task task = MakeTask(request.at("task").get<std::string>(), OptionsOf(request));
  Json answer = {{"stop", task.stop},
                 {"max_tokens", task.max_tokens},
                 {"max_length", task.max_length},
                 {"shots", task.shots}};
  if (!request.contains("answers")) {
    answer["items"] = Json::array();
    for (const TaskItem& item : task.items) answer["items"].push_back(DescribeItem(item));
    return answer;
  }
  answer["scores"] = Json::array();
  for (const Json& given : request["answers"]) {
    const auto start = std::chrono::steady_clock::now();
    const TaskScore score =
        ScoreAnswer(task, task.items.at(given[0].get<size_t>()), given[1].get<std::string>());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    answer["scores"].push_back({{"correct", score.correct},
                                {"seconds", seconds.count()},
                                {"extracted", score.extracted},
                                {"metrics", score.metrics},
                                {"reason", score.reason}});
  }
  return answer;
}

Json Answer(const Json& request) {
  if (request.contains("task")) return AnswerTask(request);
  if (request.contains("gold")) {
    const std::string gold = request["gold"].get<std::string>();
    const std::string text = request["answer"].get<std::string>();
    const auto extracted = ExtractMathAnswer(text);
    return {{"extracted", extracted.value_or("")},
            {"equal", extracted && MathEquivalent(gold, *extracted)}};
  }
  if (request.contains("minerva")) {
    const std::string text = request["minerva"].get<std::string>();
    return {{"unnormalized", MinervaUnnormalizedAnswer(text)},
            {"normalized", MinervaNormalize(text)}};
  }
  if (request.contains("program")) {
    const ProgramResult result =
        RunProgram(request["program"].get<std::string>(), {request["tests"].get<std::string>()});
    return {{"passed", result.outcome == ProgramOutcome::kPassed},
            {"timeout", result.outcome == ProgramOutcome::kTimeout},
            {"reason", result.reason},
            {"isolation", Describe(Isolation::kSandbox)}};
  }
  Fail("a request needs \"task\", \"gold\", \"minerva\" or \"program\"");
}

}  // namespace
}  // namespace loopspec::measure

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    loopspec::Json answer;
    try {
      answer = loopspec::measure::Answer(loopspec::ParseJson(line, "the request"));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << "\n" << std::flush;
  }
}

// The prompts of tasks for the comparison with lm-evaluation-harness. Reads one JSON request per
// line and writes one JSON answer per line.
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "experiments/tasks/tasks.h"

namespace loopspec::experiments {
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
  return {{"id", item.id}, {"prompt", item.prompt}, {"messages", messages}};
}

// {"task": name, "data": folder}: the task and its prompts.
Json Answer(const Json& request) {
  const Task task = MakeTask(request.at("task").get<std::string>(), OptionsOf(request));
  Json answer = {{"stop", task.stop},
                 {"max_tokens", task.max_tokens},
                 {"max_length", task.max_length},
                 {"shots", task.shots},
                 {"items", Json::array()}};
  for (const TaskItem& item : task.items) answer["items"].push_back(DescribeItem(item));
  return answer;
}

}  // namespace
}  // namespace loopspec::experiments

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    loopspec::Json answer;
    try {
      answer = loopspec::experiments::Answer(loopspec::ParseJson(line, "the request"));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << "\n" << std::flush;
  }
}

// What the demo models were trained for: arithmetic word problems that neither has seen, and the
// openings of stories.
#include <array>

#include "base/error.h"
#include "experiments/tasks/families.h"
#include "experiments/tasks/jsonl.h"

namespace loopspec::experiments {
namespace {

struct StoryOpening {
  std::string_view plain;  // continued
  std::string_view chat;   // answered
};

constexpr std::array<StoryOpening, 8> kStories = {{
    {"Once upon a time there was a cat who", "Tell me a story about a cat."},
    {"Tom and his sister went to the river to", "Tell me a story about a river."},
    {"The little bear could not sleep because", "Tell me a story about a little bear."},
    {"One morning the old farmer found a red box", "Tell me a story about a red box."},
    {"Lily had a small boat made of paper.", "Tell me a story about a paper boat."},
    {"In the middle of the forest stood a tall tree", "Tell me a story about a tall tree."},
    {"The rain began to fall and the birds", "Tell me a story about the rain."},
    {"Ben wanted to build a house for his dog.", "Tell me a story about a dog."},
}};

}  // namespace

Task MakeHeldoutProblems(const TaskOptions& options) {
  Task task;
  task.name = "heldout_problems";
  task.stop = {"Question:"};
  task.max_tokens = 128;
  task.max_length = 512;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", task.name);
  for (const Json& entry : ReadJsonLines(options.data / "heldout_problems.jsonl", options.limit)) {
    const std::string id = fmt::format("heldout/{}", task.items.size());
    const std::string question = NeedString(entry, "question", id);
    TaskItem item{.id = id, .answer = FinalAnswer(NeedString(entry, "answer", id))};
    const std::string plain = "Question: " + question + "\nAnswer:";
    SetPrompt(item, {}, {}, options.chat ? question : plain, options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

Task MakeStories(const TaskOptions& options) {
  Task task;
  task.name = "stories";
  task.max_tokens = 200;
  task.max_length = 512;
  if (options.shots.value_or(0) != 0) Fail("task {}: has no few-shot examples", task.name);
  for (const StoryOpening& story : kStories) {
    if (options.limit && task.items.size() == *options.limit) break;
    TaskItem item{.id = fmt::format("stories/{}", task.items.size())};
    SetPrompt(item, {}, {}, std::string(options.chat ? story.chat : story.plain), options.chat);
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace loopspec::experiments

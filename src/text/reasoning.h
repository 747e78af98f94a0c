// What a model thinks before it answers, apart from the answer.
#pragma once

#include <string>
#include <string_view>

namespace loopspec {

// Divides an answer "<think> reasoning </think> content". White space around the tags belongs to
// neither. The result does not depend on how the text is cut into pieces.
class ReasoningSplitter {
 public:
  struct Parts {
    std::string reasoning, content;
  };
  // `open`: the prompt ended with <think>, so the answer begins inside. `mark`: what ends the
  // reasoning too, and is content itself; empty: nothing.
  explicit ReasoningSplitter(bool open, std::string_view mark = {})
      : mark_(mark), state_(open ? State::kOpened : State::kStart) {}

  Parts Push(std::string_view text);
  Parts Finish();

 private:
  enum class State {
    kStart,      // before <think>, if there is one
    kOpened,     // white space after it
    kReasoning,  // until </think>
    kClosed,     // white space after it
    kContent,
  };
  void Advance(bool last, Parts& parts);

  const std::string mark_;
  State state_;
  std::string held_;
};

// How many bytes at the end of `text` are the beginning of `tag`, but not all of it.
size_t BegunTag(std::string_view text, std::string_view tag);

// Whether a prompt leaves the answer inside <think>.
bool EndsInThink(std::string_view prompt);

// Whether the answer may begin with a <think> of its own: the chat template knows thinking, and the
// prompt ends neither in <think> nor in </think>, which is how templates switch thinking off.
bool MayOpenThink(std::string_view chat_template, std::string_view prompt);

}  // namespace loopspec

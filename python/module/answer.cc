#include "answer.h"

namespace loopspec::python {

Answer::Answer(const Stream& stream)
    : prompt(stream.prompt()),
      seed(stream.seed()),
      depths(stream.depths()),
      choices(static_cast<size_t>(stream.choices())) {}

void Answer::Absorb(const Stream& stream, Stream::Status status, const Token& token) {
  if (status == Stream::Status::kPrompt) {
    prompt_logprobs = stream.prompt_logprobs();
  } else if (status == Stream::Status::kTrace) {
    if (token.choice == 0) trace.insert(trace.end(), stream.trace().begin(), stream.trace().end());
  } else if (status == Stream::Status::kToken) {
    Choice& choice = choices[static_cast<size_t>(token.choice)];
    choice.text += token.text;
    choice.tokens.push_back(token);
  } else if (status == Stream::Status::kEnd) {
    Choice& choice = choices[static_cast<size_t>(token.choice)];
    choice.text += token.text;
    choice.statistics = stream.statistics(token.choice);
    if (choice.statistics.finish_reason == FinishReason::kError && error.empty())
      error = choice.statistics.error;
  }
}

int64_t Answer::decoded_tokens() const {
  int64_t count = 0;
  for (const Choice& choice : choices) count += std::ssize(choice.tokens);
  return count;
}

}  // namespace loopspec::python

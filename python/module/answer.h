// What a request came to, filled from its stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loopspec/loopspec.h"

namespace loopspec::python {

struct Answer {
  std::vector<int32_t> prompt;  // ids
  uint64_t seed = 0;
  std::vector<int> depths;  // of its proposals
  std::vector<Choice> choices;
  std::vector<Token> prompt_logprobs;  // where asked for
  std::vector<TraceEvent> trace;       // where asked for

  // Of a list: why this one was refused, or what went wrong on the way. A refusal is the caller's
  // to mend.
  std::string error;
  bool refused = false;

  Answer() = default;
  explicit Answer(const Stream& stream);
  // Takes in what stream.Next gave. `token` is left as it was but for a token of a choice whose
  // text is kept.
  void Absorb(const Stream& stream, Stream::Status status, const Token& token);
  int64_t decoded_tokens() const;
};

}  // namespace loopspec::python

// One text from its first event to its end, read by the thread that wants it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "loopspec/engine.h"

namespace loopspec::tools {

struct Followed {
  std::string text;
  std::vector<Token> tokens;
  std::vector<TraceEvent> trace;  // where asked for
  Statistics statistics;
};

// Called for every token and while the prompt is read; return false to stop there. It is not called
// again then, and what was decided beyond that token is not part of the result.
using OnRead = std::function<bool(Stream::Status status, const Token& token)>;

// Reads to the end; `stream` has one choice. Throws Error when the request fails.
Followed Follow(Stream& stream, const OnRead& on_read = {});

}  // namespace loopspec::tools

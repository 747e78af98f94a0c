#include "tools/follow.h"

#include <utility>

#include "base/error.h"

namespace loopspec::tools {

Followed Follow(Stream& stream, const OnRead& on_read) {
  Followed out;
  bool stopped = false;  // by the callback
  bool dropped = false;  // tokens that came after that
  Token token;
  for (Stream::Status status; (status = stream.Next(token)) != Stream::Status::kDone;) {
    if (status == Stream::Status::kTrace) {
      out.trace.insert(out.trace.end(), stream.trace().begin(), stream.trace().end());
      continue;
    }
    if (status == Stream::Status::kEnd) out.statistics = stream.statistics();
    const bool is_token = status == Stream::Status::kToken;
    dropped = dropped || (is_token && stopped);
    if (dropped) continue;
    if ((is_token || status == Stream::Status::kProgress) && !stopped && on_read &&
        !on_read(status, token)) {
      stopped = true;
      stream.Cancel();
    }
    out.text += token.text;
    if (is_token) out.tokens.push_back(std::move(token));
  }
  if (out.statistics.finish_reason == FinishReason::kError) throw Error(out.statistics.error);
  out.statistics.decoded_tokens = std::ssize(out.tokens);
  return out;
}

}  // namespace loopspec::tools

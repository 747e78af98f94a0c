#include "decode/request.h"

namespace loopspec {

std::string NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "none";
}

std::string NameOf(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::kSpawn:
      return "spawn";
    case TraceEvent::Kind::kDraft:
      return "draft";
    case TraceEvent::Kind::kGateClosed:
      return "gate_closed";
    case TraceEvent::Kind::kAccept:
      return "accept";
    case TraceEvent::Kind::kFallback:
      return "fallback";
    case TraceEvent::Kind::kPrune:
      return "prune";
  }
  return "";
}

}  // namespace loopspec

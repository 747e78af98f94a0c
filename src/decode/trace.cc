#include "decode/trace.h"

namespace loopspec {

std::string NameOf(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::kSpawn:
      return "spawn";
    case TraceEvent::Kind::kAdvance:
      return "advance";
    case TraceEvent::Kind::kDraft:
      return "draft";
    case TraceEvent::Kind::kGateClosed:
      return "gate_closed";
    case TraceEvent::Kind::kAdopt:
      return "adopt";
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

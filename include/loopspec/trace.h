// What became of the branches of a text, from which the paper's Figure 1 can be drawn.
// Follows the decoder, and may change with it.
#pragma once

#include <cstdint>
#include <string>

namespace loopspec {

struct TraceEvent {
  enum class Kind {
    kSpawn,       // a branch begins
    kAdvance,     // it went through recurrences, up to `depth`
    kDraft,       // it drafted `token`
    kGateClosed,  // it passed a proposal depth without a draft
    kAdopt,       // its draft was the token of a child that had begun on a guess
    kAccept,      // it was verified: `token` was its draft
    kFallback,    // it was verified: `token` was none of its drafts
    kPrune,       // it ends unused
  };
  Kind kind;
  int64_t step;      // recurrences done when it happened; kAdvance: before it
  int32_t branch;    // number of the branch, in order of birth
  int32_t parent;    // kSpawn: the parent's number, -1 for the first
  int32_t token;     // the branch's own (kSpawn) or the one drafted or decided
  int32_t position;  // of that token
  int32_t depth;     // of the branch
  int32_t proposal;  // kSpawn, kDraft, kAccept: which, from 1; 0: none. kAdvance: recurrences done
};
// spawn, advance, draft, gate_closed, adopt, accept, fallback, prune
std::string NameOf(TraceEvent::Kind kind);

}  // namespace loopspec

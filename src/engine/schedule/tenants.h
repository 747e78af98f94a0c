// Who asks, as long as sequences of theirs are here: a key, or an address (Request::tenant).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/schedule.h"
#include "engine/schedule/sequence.h"

namespace loopspec {

struct Tenants {
  // A tenant keeps its place while it has sequences, and the next new one takes it then.
  std::vector<TenantView> views;

  TenantView& Of(const Sequence& sequence) { return views[static_cast<size_t>(sequence.tenant)]; }
  // A sequence comes, and learns its tenant's place. A tenant that comes, or comes back, has no
  // claim on what others got meanwhile.
  void Enter(Sequence& sequence);
  void Leave(const Sequence& sequence) { --Of(sequence).sequences; }
  // After a step: a tenant that decodes nothing has no claim on the tokens that others got in it;
  // and one that is ahead of the others owes them no more than kMostOwed.
  void SettleTokens(const Sequences& sequences);
};

}  // namespace loopspec

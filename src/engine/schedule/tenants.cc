#include "engine/schedule/tenants.h"

#include <algorithm>
#include <cmath>

#include "engine/schedule/turns.h"

namespace loopspec {

void Tenants::Enter(Sequence& sequence) {
  const uint64_t id = sequence.request->tenant;
  TenantView newcomer{.prefilled = INFINITY, .decoded = INFINITY, .id = id};
  bool alone = true;
  auto place = views.end(), free = views.end();
  for (auto tenant = views.begin(); tenant != views.end(); ++tenant) {
    if (tenant->sequences == 0) {
      free = tenant;
      continue;
    }
    if (tenant->id == id) place = tenant;
    newcomer.prefilled = std::min(newcomer.prefilled, tenant->prefilled);
    newcomer.decoded = std::min(newcomer.decoded, tenant->decoded);
    alone = false;
  }
  if (alone) newcomer.prefilled = newcomer.decoded = 0;
  if (place == views.end()) {
    place = free != views.end() ? free : views.insert(views.end(), TenantView{});
    *place = newcomer;
  }
  place->weight = sequence.request->weight;
  ++place->sequences;
  sequence.tenant = static_cast<int>(place - views.begin());
}

void Tenants::SettleTokens(const Sequences& sequences) {
  double least = INFINITY;
  for (const auto& sequence : sequences) {
    if (sequence->stage == Stage::kDecode) least = std::min(least, Of(*sequence).decoded);
  }
  if (least == INFINITY) return;
  for (const auto& sequence : sequences) {
    TenantView& tenant = Of(*sequence);
    if (sequence->stage == Stage::kDecode)
      tenant.decoded = std::min(tenant.decoded, least + kMostOwed / tenant.weight);
  }
  for (TenantView& tenant : views) tenant.decoded = std::max(tenant.decoded, least);
}

}  // namespace loopspec

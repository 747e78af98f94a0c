#include "kv/kept_planes.h"

#include <fmt/format.h>

#include <charconv>

#include "base/check.h"
#include "base/error.h"

namespace loopspec {

SpannedKeyPlan SpannedKeyPlan::Parse(const std::string& text, int recurrence) {
  const size_t at = std::min(text.find('@'), text.size());
  int span = kPageSize;
  if (at < text.size()) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + at + 1, end, span);
    if (error != std::errc() || stop != end || span < kPageSize || span % kPageSize != 0 ||
        span > kLongestSpan) {
      Fail("plan of keys {}: {} is no span, expected a multiple of {} positions up to {}", text,
           text.substr(at), kPageSize, kLongestSpan);
    }
  }
  return {KeyPlan::Parse(text.substr(0, at), recurrence), span};
}

std::string SpannedKeyPlan::text() const {
  return fmt::format("{}@{}", plan.text(), span);
}

KeptPlanes::KeptPlanes(const ModelSpec& spec, int readouts,
                       const std::optional<SpannedKeyPlan>& plan)
    : recurrence_(spec.recurrence), planes_(PlaneMap(spec, readouts).count()) {
  LOOPSPEC_CHECK(!plan || plan->plan.recurrence() == recurrence_);
  slots_.resize(static_cast<size_t>(recurrence_) * static_cast<size_t>(planes_));
  page_slots_ = planes_;
  for (int depth = 1; plan && depth < recurrence_; ++depth) {
    const KeyForm form = plan->plan.At(depth);
    if (form == kOwnKeys) continue;
    page_slots_ -= spec.core_calls();
    if (form.kind == KeyForm::Kind::kResidual)
      residual_bytes_ +=
          ResidualPageBytes(form.bits, spec.head_dim) * spec.kv_heads * spec.core_calls();
  }
  const int64_t slot_bytes = KeyBytes(kOwnKeys, spec.head_dim) * 2 * spec.kv_heads * kPageSize;
  turn_slots_ = page_slots_;
  if (residual_bytes_ > 0) turn_slots_ += static_cast<int>(residual_bytes_ / slot_bytes);
  for (int last = recurrence_; last >= 1; --last) PlaceTextsOf(last, spec, readouts, plan);
  if (!plan || window_slots_ == 0) return;
  span_ = plan->span;
  ring_ = 2 * span_ / kPageSize;
  pages_per_turn_ = (window_slots_ + turn_slots_ - 1) / turn_slots_;
}

// R comes first: texts of fewer loops use its slots.
void KeptPlanes::PlaceTextsOf(int last, const ModelSpec& spec, int readouts,
                              const std::optional<SpannedKeyPlan>& plan) {
  const PlaneMap planes(spec, readouts);
  const auto at = [&](int recurrences, int plane) -> PlaneSlots& {
    return slots_[static_cast<size_t>(recurrences - 1) * static_cast<size_t>(planes_) +
                  static_cast<size_t>(plane)];
  };
  const auto form = [&](int depth) {
    return plan && depth < recurrence_ ? plan->plan.At(depth) : kOwnKeys;
  };
  const int first_core = planes.Core(0, 1);
  const int core = spec.core_calls();
  int slot = 0, window = 0;
  int64_t residual = 0;
  for (int plane = 0; plane < planes_; ++plane) {
    PlaneSlots& slots = at(last, plane);
    const int depth = (plane - first_core) / core + 1;
    const bool of_core = plane >= first_core && depth <= recurrence_;
    if (!of_core || form(depth) == kOwnKeys) {
      slots.own = slots.far = slot++;
      continue;
    }
    const bool first_layer = (plane - first_core) % core == 0;
    const int left = turn_slots_ - window % turn_slots_;
    if (first_layer && left < core) window += left;
    slots.window = window++;
    if (form(depth).kind != KeyForm::Kind::kResidual) continue;
    slots.residual = residual;
    slots.bits = form(depth).bits;
    residual += spec.kv_heads * ResidualPageBytes(slots.bits, spec.head_dim);
  }
  LOOPSPEC_CHECK(slot == page_slots_ && residual == residual_bytes_);
  window_slots_ = window;
  for (int layer = 0; layer < core; ++layer) {
    const int final_slot = at(recurrence_, planes.Core(layer, recurrence_)).own;
    PlaneSlots& final_plane = at(last, planes.Core(layer, last));
    if (final_plane.own < 0) final_plane = {final_slot, -1, final_slot};
    for (int depth = 1; depth < last; ++depth) {
      PlaneSlots& slots = at(last, planes.Core(layer, depth));
      if (slots.own < 0) slots.far = final_plane.own;
      slots.last = planes.Core(layer, last);
    }
    // Such a text has nothing there, and what it has must not be overwritten.
    if (plan) {
      for (int depth = last + 1; depth <= recurrence_; ++depth)
        at(last, planes.Core(layer, depth)) = {};
    }
  }
}

}  // namespace loopspec

#include "calibrate/key_reader.h"

#include <algorithm>

#include "base/check.h"
#include "engine/load/device.h"
#include "kv/planes.h"

namespace loopspec {

KeyReader::KeyReader(const Model& model, BackendOptions options, int64_t positions) {
  LOOPSPEC_CHECK(model.spec.recurrence > 1);
  options.cells = 1;
  options.kv_positions = positions;
  options.compute = ComputeMode::kF32;
  options.round_keys = [this](std::span<float> head) {
    if (rounds_) RoundToInt8(head.data(), static_cast<int>(head.size()));
  };
  backend_ = MakeBackend(model, options, "cpu");
  ledger_ = std::make_unique<KvLedger>(backend_->pages(), 1);
  pages_ = std::make_unique<SequencePages>(*ledger_, positions);
}

void KeyReader::ReadExactly(std::span<const int32_t> text, const LogitsSink& sink) {
  rounds_ = false;
  backend_->Score({PlanOf(*pages_), 0, text}, sink);
}

void KeyReader::ReadByPlan(std::span<const int32_t> text, const KeyPlan& plan, int span, int chunk,
                           const LogitsSink& sink) {
  LOOPSPEC_CHECK(plan.recurrence() == spec().recurrence);
  LOOPSPEC_CHECK(span > 0 && chunk > 0 && span % chunk == 0);
  rounds_ = true;
  for (int64_t at = 0; at < std::ssize(text); at += chunk) {
    // The first query of span g: span g - 2 is read by the plan from now on.
    if (at % span == 0 && at >= 2 * span) Rewrite(plan, at - 2 * span, at - span);
    const auto count = static_cast<size_t>(std::min<int64_t>(chunk, std::ssize(text) - at));
    backend_->Score(
        {PlanOf(*pages_), static_cast<int32_t>(at), text.subspan(static_cast<size_t>(at), count)},
        sink);
  }
}

void KeyReader::Rewrite(const KeyPlan& plan, int64_t begin, int64_t end) {
  const PlaneMap planes(spec(), static_cast<int>(backend_->options().readout_depths.size()));
  const int d = spec().head_dim, depths = spec().recurrence;
  for (int64_t position = begin; position < end; ++position) {
    const int32_t page = pages()[static_cast<size_t>(position / kPageSize)];
    const int64_t at = position % kPageSize * d;
    for (int layer = 0; layer < spec().core_calls(); ++layer) {
      for (int head = 0; head < spec().kv_heads; ++head) {
        const Backend::FloatKeys last = backend_->KeysOf(page, planes.Core(layer, depths), head);
        for (int depth = 1; depth < depths; ++depth) {
          const Backend::FloatKeys own = backend_->KeysOf(page, planes.Core(layer, depth), head);
          RoundToForm(plan.At(depth), last.keys.data() + at, own.keys.data() + at, d);
          RoundToForm(plan.At(depth), last.values.data() + at, own.values.data() + at, d);
        }
      }
    }
  }
}

}  // namespace loopspec

#include "engine/memory_bound.h"

namespace loopspec {

double BytesRead(const Model& model, const BackendOptions& options, const Statistics& statistics) {
  const ModelSpec& spec = model.spec;
  const double kv_bytes =
      2.0 * spec.kv_heads * static_cast<double>(KvHeadBytes(options, spec.head_dim));
  const auto times = [](int64_t count, double bytes) { return static_cast<double>(count) * bytes; };
  return times(statistics.recurrences, static_cast<double>(model.weights.core_bytes())) +
         times(statistics.prelude_steps, static_cast<double>(model.weights.prelude_bytes())) +
         times(statistics.readout_steps, static_cast<double>(model.weights.coda_bytes())) +
         times(statistics.kv_positions, kv_bytes * spec.core_layers) +
         times(statistics.prelude_positions, kv_bytes * spec.prelude_layers) +
         times(statistics.readout_positions, kv_bytes * spec.coda_layers);
}

}  // namespace loopspec

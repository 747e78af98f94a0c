// Reads texts on the CPU in float32 with keys and values in a form of choice: exact, int8, or by a
// plan of keys.
//
// The rule by absolute positions: a text is cut into spans; a query in span g reads its own span
// and the one before it with every loop's own int8, and all earlier spans as the plan says. So what
// a query reads depends on positions alone, not on how the text was cut into chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backends/backend.h"
#include "kv/key_plan.h"

namespace loopspec {

class KeyReader {
 public:
  // `options`: readout depths, threads, state seed. The model has more than one loop. `positions`:
  // of the longest text.
  KeyReader(const Model& model, BackendOptions options, int64_t positions);
  KeyReader(const KeyReader&) = delete;
  KeyReader& operator=(const KeyReader&) = delete;

  Backend& backend() { return *backend_; }
  const ModelSpec& spec() const { return backend_->spec(); }

  // Where the positions of the last text lie.
  std::span<const int32_t> pages() const { return pages_->pages(); }

  // With keys as they are.
  void ReadExactly(std::span<const int32_t> text, const LogitsSink& sink);
  // `chunk`: positions at a time, which changes no bit; it divides the span.
  void ReadByPlan(std::span<const int32_t> text, const KeyPlan& plan, int span, int chunk,
                  const LogitsSink& sink);

 private:
  // Positions [begin, end) from every loop's own int8 to the plan's forms.
  void Rewrite(const KeyPlan& plan, int64_t begin, int64_t end);

  bool rounds_ = false;  // keys to int8 when they are stored
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<KvLedger> ledger_;
  std::unique_ptr<SequencePages> pages_;
};

}  // namespace loopspec

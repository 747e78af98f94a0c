// The "normalizer" of a tokenizer.json: how text is rewritten before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace loopspec {

// Text on its way through the normalizers.
struct NormalizedText {
  std::string text;
  // How many leading bytes stem from the first character of the whole input. Metaspace's "first"
  // scheme asks whether a piece begins there, so every rewriting has to carry it along.
  size_t zero = 0;
};

// One rewriting step.
class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual void Apply(NormalizedText& value) const = 0;
};

class Normalizer {
 public:
  Normalizer() = default;
  // Null, a normalizer or a Sequence of them; throws Error naming an unsupported type.
  static Normalizer FromJson(const Json& json, std::string_view what);

  bool empty() const { return steps_.empty(); }
  void Apply(NormalizedText& value) const {
    for (const auto& step : steps_) step->Apply(value);
  }

 private:
  void Add(const Json& json, std::string_view what);
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

}  // namespace loopspec

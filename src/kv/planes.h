// Which keys and values a token keeps: one plane per (role, layer, depth).
//
// The recurrence shares its weights over depths but not its keys and values: a token at depth r
// attends to the depth-r keys and values of earlier tokens. The coda keeps a plane for each depth
// it is read out at.
#pragma once

#include "base/check.h"
#include "model/model_spec.h"

namespace loopspec {

class PlaneMap {
 public:
  PlaneMap() = default;
  // `readouts`: how many depths C is applied at.
  PlaneMap(const ModelSpec& spec, int readouts)
      : prelude_(spec.prelude_layers),
        core_(spec.core_calls()),
        coda_(spec.coda_layers),
        recurrence_(spec.recurrence),
        readouts_(readouts) {}

  int Prelude(int layer) const { return layer; }
  // `depth` counts from 1: the plane that the depth-th recurrence writes and reads. `layer`: a call
  // of a block within it.
  int Core(int layer, int depth) const {
    LOOPSPEC_CHECK(depth >= 1 && depth <= recurrence_);
    return prelude_ + (depth - 1) * core_ + layer;
  }
  int Coda(int layer, int readout) const {
    LOOPSPEC_CHECK(readout >= 0 && readout < readouts_);
    return prelude_ + recurrence_ * core_ + readout * coda_ + layer;
  }
  int count() const { return prelude_ + recurrence_ * core_ + readouts_ * coda_; }

 private:
  int prelude_ = 0, core_ = 0, coda_ = 0, recurrence_ = 0, readouts_ = 0;
};

}  // namespace loopspec

// How often early depths choose the token that the last depth chooses, and synthetic twins scaled
// until they do so about as often as asked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "calibrate/synth.h"

namespace loopspec {

using BackendMaker =
    std::function<std::unique_ptr<Backend>(const Model& model, const BackendOptions& options)>;
// Called as positions are done; `round` counts from 1.
using AgreementProgress = std::function<void(int round, int done, int total)>;

// Reads `positions` random tokens (keyed by `seed`) as one text and compares the argmax at the
// default proposal depths with the one at depth R.
SynthAgreement MeasureAgreement(const Model& model, const BackendMaker& make_backend, int positions,
                                uint64_t seed, const std::function<void(int done)>& progress = {});

// The shift for an agreement, from measurements that are a few percent off by chance. Agreement
// falls as exp(-rate shift), in every family, down to about 0.4; below it falls faster. So every
// measurement tells the rate, and each counts by the positions that it was taken over.
class ShiftSearch {
 public:
  // `guess`: the shift to start with. It counts like a measurement over few positions.
  ShiftSearch(double asked, double guess);

  void Add(double shift, double agreement, int positions);
  // The agreement at a shift, and the shift to try next, going by all measurements; those at shifts
  // near the last one count most.
  double Expected(double shift) const;
  double Next() const;

 private:
  struct Measurement {
    double shift, agreement, positions;
  };
  double Rate() const;

  double asked_;
  std::vector<Measurement> measurements_;
};

// Where the depths have next to nothing left to differ by: no search goes below.
inline constexpr double kSmallestShift = 1e-4;

struct TwinReport {
  SynthAgreement agreement;  // of the checkpoint as it is left
  int rounds = 0;            // measurements taken
  bool reached = false;      // the first depth within the tolerance of what was asked
};

// Distance from the agreement asked that is good enough: 0.03, or one and a half standard
// deviations of the measurement where that is more.
double AgreementTolerance(double asked, int positions);

// Measures a twin that WriteSynthetic has just written, and changes its shift and measures again
// (on other tokens, so that nothing is fitted to what is reported) until the first proposal depth
// agrees as often as asked, a few times at most. Notes the outcome in the folder. Throws Error,
// also where depths disagree that cannot: then it is the backend that is wrong.
TwinReport CalibrateTwin(const SynthRequest& request, const SynthResult& written,
                         const BackendMaker& make_backend, int positions,
                         const AgreementProgress& progress = {});

}  // namespace loopspec

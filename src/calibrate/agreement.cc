#include "calibrate/agreement.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "calibrate/depth_readouts.h"
#include "decode/depths.h"

namespace loopspec {
namespace {

constexpr int kRounds = 6;
constexpr double kGuessPositions = 16;  // what a guess is worth beside a measurement

std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    const PhiloxBlock block = Philox4x32({{static_cast<uint32_t>(i), 0, 0, 0}}, seed);
    tokens.push_back(static_cast<int32_t>(block.v[0] % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

}  // namespace

// No agreement at all has no shift, nor has a full one.
ShiftSearch::ShiftSearch(double asked, double guess)
    : asked_(std::clamp(asked, 0.02, 0.98)),
      measurements_{{std::max(guess, kSmallestShift), asked_, kGuessPositions}} {}

void ShiftSearch::Add(double shift, double agreement, int positions) {
  measurements_.push_back(
      {std::max(shift, kSmallestShift), agreement, static_cast<double>(positions)});
}

double ShiftSearch::Expected(double shift) const {
  return std::exp(-Rate() * shift);
}

double ShiftSearch::Next() const {
  return std::max(-std::log(asked_) / Rate(), kSmallestShift);
}

// The rate under which what was measured is most likely, by bisection: the slope of the likelihood
// falls as the rate grows.
double ShiftSearch::Rate() const {
  const double last = measurements_.back().shift;
  double low = 1e-3, high = 1e6;
  for (int i = 0; i < 60; ++i) {
    const double rate = std::sqrt(low * high);
    double slope = 0;
    for (const Measurement& m : measurements_) {
      const double nearness = std::min(m.shift / last, last / m.shift);
      slope += nearness * m.positions * m.shift *
               ((1.0 - m.agreement) / std::expm1(rate * m.shift) - m.agreement);
    }
    (slope > 0 ? low : high) = rate;
  }
  return std::sqrt(low * high);
}

double AgreementTolerance(double asked, int positions) {
  return std::max(0.03, 1.5 * std::sqrt(asked * (1.0 - asked) / positions));
}

SynthAgreement MeasureAgreement(const Model& model, const BackendMaker& make_backend, int positions,
                                uint64_t seed, const std::function<void(int done)>& progress) {
  SynthAgreement result;
  const auto& own = model.spec.draft_depths;
  result.depths = own && !own->empty() && own->back() < model.spec.recurrence
                      ? *own
                      : DefaultDepths(model.spec.recurrence);
  result.positions = std::min(positions, model.spec.max_positions);
  BackendOptions options;
  options.readout_depths = ReadoutDepths(result.depths, model.spec.recurrence);
  options.cells = 1;
  options.kv_positions = result.positions;
  const std::unique_ptr<Backend> backend = make_backend(model, options);

  const std::vector<int32_t> tokens = RandomTokens(result.positions, model.spec.vocab, seed);
  std::vector<int> agreed(result.depths.size());
  ThreadPool alone(1);  // choices take no work
  ReadOutText(*backend, alone, tokens, 0, {},
              [&](size_t position, const PositionReadouts& readouts) {
                for (size_t d = 0; d < agreed.size(); ++d)
                  agreed[d] += readouts.choices[d] == readouts.choices.back() ? 1 : 0;
                if (progress) progress(static_cast<int>(position) + 1);
                return true;
              });
  for (const int count : agreed)
    result.shares.push_back(static_cast<double>(count) / result.positions);
  return result;
}

TwinReport CalibrateTwin(const SynthRequest& request, const SynthResult& written,
                         const BackendMaker& make_backend, int positions,
                         const AgreementProgress& progress) {
  TwinReport report;
  ShiftSearch search(request.agreement, written.shift);
  double shift = written.shift;
  while (true) {
    ++report.rounds;
    {
      // Unloaded again before the files change.
      const Model model = Model::Load(request.output);
      report.agreement = MeasureAgreement(model, make_backend, positions,
                                          static_cast<uint64_t>(report.rounds), [&](int done) {
                                            if (progress) progress(report.rounds, done, positions);
                                          });
    }
    const double first = report.agreement.shares.at(0);
    const int measured = report.agreement.positions;
    const double tolerance = AgreementTolerance(request.agreement, measured);
    report.reached = std::fabs(first - request.agreement) <= tolerance;
    // Rounding costs a few percent at most.
    if (shift <= kSmallestShift && first < std::min(request.agreement, 0.95) - tolerance) {
      Fail(
          "{}: depth {} agrees with the last at {:.1f} % of {} positions, expected nearly all of "
          "them with a shift of {}: the device that measures computes this model wrongly",
          request.output.string(), report.agreement.depths.at(0), 100 * first, measured, shift);
    }
    // A measurement may be near by chance: together they have to be nearer.
    search.Add(shift, first, measured);
    const bool sure = std::fabs(search.Expected(shift) - request.agreement) <= tolerance / 2;
    if ((report.reached && sure) || report.rounds == kRounds) break;
    shift = search.Next();
    RescaleSynthetic(request, shift);
  }
  NoteAgreement(request, report.agreement);
  return report;
}

}  // namespace loopspec

#include "engine/agreement.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "decode/depths.h"
#include "kv/ledger.h"

namespace loopspec {
namespace {

constexpr int kRounds = 6;
constexpr double kSmallestShift = 1e-4;

std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    const PhiloxBlock block = Philox4x32({{static_cast<uint32_t>(i), 0, 0, 0}}, seed);
    tokens.push_back(static_cast<int32_t>(block.v[0] % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Narrows in on the shift: agreement falls as it grows, misses about in proportion.
class ShiftSearch {
 public:
  explicit ShiftSearch(double asked) : misses_asked_(1.0 - asked) {}

  double Next(double shift, double agreement, int positions) {
    const double misses = 1.0 - agreement;
    (misses > misses_asked_ ? high_ : low_) = shift;
    const double floor = 0.5 / positions;  // none seen is not none
    double next =
        shift * std::clamp(std::max(misses_asked_, floor) / std::max(misses, floor), 0.125, 8.0);
    if (high_ > 0 && next >= high_) next = std::sqrt(std::max(low_, kSmallestShift) * high_);
    if (next <= low_) next = high_ > 0 ? std::sqrt(low_ * high_) : 2.0 * low_;
    return std::max(next, kSmallestShift);
  }

 private:
  double misses_asked_;
  double low_ = 0, high_ = 0;  // shifts known to agree too often and too rarely; 0: none yet
};

}  // namespace

double AgreementTolerance(double asked, int positions) {
  return std::max(0.03, 1.5 * std::sqrt(asked * (1.0 - asked) / positions));
}

SynthAgreement MeasureAgreement(const Model& model, const BackendMaker& make_backend, int positions,
                                uint64_t seed, const std::function<void(int done)>& progress) {
  SynthAgreement result;
  result.depths = DefaultDepths(model.spec.recurrence);
  result.positions = std::min(positions, model.spec.max_positions);
  BackendOptions options;
  options.readout_depths = result.depths;
  options.readout_depths.push_back(model.spec.recurrence);
  options.max_rows = 1;
  options.kv_positions = result.positions;
  const std::unique_ptr<Backend> backend = make_backend(model, options);

  const size_t readouts = options.readout_depths.size();
  const std::vector<int32_t> tokens = RandomTokens(result.positions, model.spec.vocab, seed);
  std::vector<int32_t> choices(readouts * tokens.size());
  size_t seen = 0;
  KvLedger ledger(backend->pages(), 1);
  const SequencePages pages(ledger, result.positions);
  backend->Score({{pages.pages().data()}, 0, tokens}, [&](int32_t position, int32_t readout,
                                                          std::span<const float> logits) {
    choices[static_cast<size_t>(position) * readouts + static_cast<size_t>(readout)] =
        ArgMax(logits);
    if (progress) progress(static_cast<int>(++seen / readouts));
  });
  for (size_t d = 0; d + 1 < readouts; ++d) {
    int agreed = 0;
    for (size_t t = 0; t < tokens.size(); ++t)
      agreed += choices[t * readouts + d] == choices[t * readouts + readouts - 1] ? 1 : 0;
    result.shares.push_back(static_cast<double>(agreed) / result.positions);
  }
  return result;
}

TwinReport CalibrateTwin(const SynthRequest& request, const SynthResult& written,
                         const BackendMaker& make_backend, int positions,
                         const AgreementProgress& progress) {
  TwinReport report;
  ShiftSearch search(request.agreement);
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
    report.reached = std::fabs(first - request.agreement) <=
                     AgreementTolerance(request.agreement, report.agreement.positions);
    if (report.reached || report.rounds == kRounds) break;
    shift = search.Next(shift, first, report.agreement.positions);
    RescaleSynthetic(request, shift);
  }
  NoteAgreement(request, report.agreement);
  return report;
}

}  // namespace loopspec

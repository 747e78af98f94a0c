// The search for the shift under which a twin's drafts agree as often as asked: on curves with
// chance in them, on a small twin, and on a device that computes wrongly.
#include "calibrate/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "engine/load/device.h"
#include "tests/support/temporary_folder.h"

namespace loopspec {
namespace {

constexpr int kPositions = 256;

SynthRequest SmallTwin(const char* like, const TemporaryFolder& folder) {
  SynthRequest request;
  request.like = like;
  request.agreement = 0.9;
  request.layers = 1;
  request.width = 256;
  request.vocab = 2000;
  request.output = folder.path();
  return request;
}

std::unique_ptr<Backend> OnCpu(const Model& model, const BackendOptions& options) {
  return MakeBackend(model, options, "cpu");
}

// A true agreement: exp(-rate shift) where the power is 1, otherwise that at a shift of 0.04 and
// another slope.
struct Curve {
  double rate, power;

  double operator()(double shift) const {
    return std::exp(-rate * 0.04 * std::pow(shift / 0.04, power));
  }
};

TEST(ShiftSearch, ComesNearWhateverTheCurve) {
  constexpr int kRuns = 200, kRounds = 6;
  std::mt19937_64 random(1);
  for (const double asked : {0.6, 0.75, 0.9, 0.95}) {
    for (const Curve curve : {Curve{0.3, 1}, Curve{1.6, 1}, Curve{3.2, 1}, Curve{10, 1},
                              Curve{1.6, 1.4}, Curve{3.2, 1.4}}) {
      int near = 0;
      double squares = 0;
      for (int run = 0; run < kRuns; ++run) {
        double shift = -std::log(asked) / 2.4;
        ShiftSearch search(asked, shift);
        for (int round = 0; round < kRounds; ++round) {
          if (round > 0) shift = search.Next();
          std::binomial_distribution<int> agreed(kPositions, curve(shift));
          search.Add(shift, agreed(random) / double{kPositions}, kPositions);
        }
        const double off = curve(search.Next()) - asked;
        near += std::fabs(off) <= 0.05 ? 1 : 0;
        squares += off * off;
      }
      EXPECT_GE(near, kRuns * 95 / 100)
          << asked << " at rate " << curve.rate << ", " << curve.power;
      // One measurement alone is off by sqrt(0.24 / 256) = 0.031 at 0.6.
      EXPECT_LT(std::sqrt(squares / kRuns), 0.025)
          << asked << " at rate " << curve.rate << ", " << curve.power;
    }
  }
}

TEST(ShiftSearch, GoesOnWhereNoneOrAllAgree) {
  ShiftSearch none(0.9, 0.04), all(0.9, 0.04);
  none.Add(0.04, 0.0, kPositions);
  EXPECT_LT(none.Next(), 0.02);
  EXPECT_GE(none.Next(), kSmallestShift);
  all.Add(0.04, 1.0, kPositions);
  EXPECT_GT(all.Next(), 0.08);
  EXPECT_LT(all.Next(), 40);
}

// Norms after the sublayers and on q and k, and weights that start far from what was asked.
TEST(CalibrateTwin, OlmoLayoutAgreesAsOftenAsAsked) {
  const TemporaryFolder folder;
  const SynthRequest request = SmallTwin("raven-olmo", folder);
  SynthResult written = WriteSynthetic(request);
  written.shift *= 6;
  RescaleSynthetic(request, written.shift);
  const TwinReport report = CalibrateTwin(request, written, OnCpu, kPositions);
  EXPECT_TRUE(report.reached);
  EXPECT_GE(report.rounds, 2);
  EXPECT_EQ(report.agreement.depths.at(0), 2);
  EXPECT_NEAR(report.agreement.shares.at(0), 0.9, 0.03);
  // Over tokens that the calibration did not see: 0.05, and what chance adds (0.019).
  const SynthAgreement other =
      MeasureAgreement(Model::Load(folder.path()), OnCpu, kPositions, 1000);
  EXPECT_NEAR(other.shares.at(0), 0.9, 0.05 + 0.03);
  EXPECT_GT(other.shares.at(1), other.shares.at(0));
}

// Scores the last depth rightly and the first one as if most positions' states had been mixed up.
class WrongScores : public Backend {
 public:
  explicit WrongScores(std::unique_ptr<Backend> right) : right_(std::move(right)) {}

  const ModelSpec& spec() const override { return right_->spec(); }
  const BackendOptions& options() const override { return right_->options(); }
  BackendLimits limits() const override { return right_->limits(); }
  std::string device() const override { return "wrong"; }
  int pages() const override { return right_->pages(); }
  int64_t page_bytes() const override { return right_->page_bytes(); }
  int64_t device_bytes() const override { return right_->device_bytes(); }
  int64_t weight_bytes() const override { return right_->weight_bytes(); }
  Ticket SubmitPrefill(std::span<const PrefillPlan> parts) override {
    return right_->SubmitPrefill(parts);
  }
  bool PrefillDone(Ticket ticket) override { return right_->PrefillDone(ticket); }
  void WaitPrefill(Ticket ticket) override { right_->WaitPrefill(ticket); }
  bool prefill_equals_decode() const override { return right_->prefill_equals_decode(); }
  void Score(const PrefillPlan& plan, const LogitsSink& sink) override {
    right_->Score(plan, [&](int32_t position, int32_t readout, std::span<const float> logits) {
      if (readout > 0 || position % 8 < 3) return sink(position, readout, logits);
      std::vector<float> mixed(logits.rbegin(), logits.rend());
      sink(position, readout, mixed);
    });
  }
  Ticket Submit(const StepPlan& plan) override { return right_->Submit(plan); }
  const StepResult& Wait(Ticket ticket) override { return right_->Wait(ticket); }
  void SavePages(std::span<const int32_t> pages, std::byte* to) override {
    right_->SavePages(pages, to);
  }
  void LoadPages(std::span<const int32_t> pages, const std::byte* from) override {
    right_->LoadPages(pages, from);
  }
  void CopyPage(int32_t from, int32_t to) override { right_->CopyPage(from, to); }
  void ReadLogits(int readout, std::span<float> out) override { right_->ReadLogits(readout, out); }

 private:
  std::unique_ptr<Backend> right_;
};

TEST(CalibrateTwin, NamesADeviceThatComputesWrongly) {
  const TemporaryFolder folder;
  const SynthRequest request = SmallTwin("ouro-1.4b", folder);
  const SynthResult written = WriteSynthetic(request);
  const auto wrong = [](const Model& model, const BackendOptions& options) {
    return std::make_unique<WrongScores>(OnCpu(model, options));
  };
  try {
    CalibrateTwin(request, written, wrong, kPositions);
    FAIL() << "no shift can make these depths agree";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("computes this model wrongly"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace loopspec

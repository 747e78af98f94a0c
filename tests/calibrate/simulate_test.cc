// The decoder on a backend that only counts, against figures of an independent simulation.
#include <gtest/gtest.h>

#include <tuple>

#include "calibrate/cost_pace.h"
#include "calibrate/simulate.h"
#include "decode/depths.h"

namespace loopspec {
namespace {

SimulationRequest Ouro() {
  SimulationRequest request;
  request.recurrence = 4;
  request.depths = {1, 2};
  request.assumed.rates = {0.90, 0.075};
  request.assumed.gate = 0.10;
  request.cost = CostOfReading({2.47e9, 0, 0.20e9, 196.6e3}, 1e12);
  return request;
}

SimulationRequest Raven() {
  SimulationRequest request = Ouro();
  request.recurrence = 32;
  request.depths = {2, 8};
  request.assumed.rates = {0.92, 0.075};
  request.assumed.gate = 0.20;
  request.cost = CostOfReading({0.75e9, 0.49e9, 1.01e9, 12.3e3}, 1e12);
  return request;
}

double Speedup(SimulationRequest request) {
  const double with = Simulate(request).seconds;
  request.depths.clear();
  request.assumed = {};
  request.group = 1;
  return Simulate(request).seconds / with;
}

// Bytes over autoregressive decoding, from a simulation that was written apart from the decoder
// (first come, first served; its own random numbers; 4,000 tokens).
TEST(Simulation, GivesTheFiguresOfAnIndependentOne) {
  const std::tuple<SimulationRequest, int64_t, double> cases[] = {
      {Ouro(), 1024, 2.75}, {Ouro(), 4096, 2.02}, {Ouro(), 8192, 1.63}, {Ouro(), 16384, 1.34},
      {Raven(), 1024, 6.0}, {Raven(), 4096, 4.7}, {Raven(), 8000, 3.7}};
  for (auto [request, context, expected] : cases) {
    request.context = context;
    EXPECT_NEAR(Speedup(request), expected, 0.06 * expected)
        << "R " << request.recurrence << ", context " << context;
  }
}

TEST(Simulation, CountsWhatAutoregressiveDecodingReads) {
  SimulationRequest request = Ouro();
  request.depths.clear();
  request.assumed = {};
  request.tokens = 100;
  const SimulationResult result = Simulate(request);
  EXPECT_DOUBLE_EQ(result.steps, 4);
  EXPECT_DOUBLE_EQ(result.readouts, 1);
  EXPECT_DOUBLE_EQ(result.rows, 1);
  EXPECT_DOUBLE_EQ(result.tokens_per_pass, 1);
  const double bytes = BytesPerToken(result, {2.47e9, 0, 0.20e9, 196.6e3}, 1024);
  EXPECT_NEAR(bytes, 4 * 2.47e9 + 0.20e9 + 4 * 1024 * 196.6e3, 1);
  EXPECT_NEAR(result.seconds, bytes / 1e12, 1e-9);  // reading is all that costs
}

TEST(Simulation, EveryDraftAcceptedIsOneTokenEachFirstDepth) {
  SimulationRequest request = Raven();
  request.assumed.rates = {1, 0};
  request.assumed.gate = 0;
  request.cost = CostOfReading({1, 0, 0, 0}, 1);
  const SimulationResult result = Simulate(request);
  EXPECT_NEAR(result.steps, 2, 0.02);  // but for the start
  EXPECT_NEAR(result.rows, 16, 0.5);
}

// Where d does not divide R and C is dear, the last readout waits for a draft's: C runs once every
// d recurrences, and a token whose draft fails takes the next multiple of d (docs/journal/ifm.md).
// By the bytes of IFM's P2 S and M.
TEST(Simulation, LastReadoutsThatWaitCostWhatTheClosedFormSays) {
  const ReadBytes small = {0.104, 0.057, 0.249, 0}, medium = {0.415, 0.226, 0.602, 0};
  for (const ReadBytes& bytes : {small, medium}) {
    for (const int d : {2, 3}) {
      for (const double a : {1.0, 0.9, 0.75}) {
        SimulationRequest request;
        request.recurrence = 5;
        request.depths = {d};
        request.assumed.rates = {a};
        request.assumed.gate = 0;
        request.cost = CostOfReading(bytes, 1);
        request.tokens = 8000;
        const double plain = 5 * bytes.recurrence + bytes.prelude + bytes.readout;
        const double recurrences = a * d + (1 - a) * d * ((5 + d - 1) / d);
        const double each = bytes.recurrence + (bytes.prelude + bytes.readout) / d;
        EXPECT_NEAR(Speedup(request), plain / (recurrences * each),
                    0.02 * plain / (recurrences * each))
            << "C " << bytes.readout << ", d " << d << ", a " << a;
      }
    }
  }
}

// Texts that begin and end anew: all R recurrences of the first token count, as the clock of a
// request does: N tokens take R + (N - 1) R / gamma of them.
TEST(Simulation, ShortTextsPayForTheirFirstToken) {
  SimulationRequest request = Raven();
  request.assumed.rates = {1, 0};
  request.assumed.gate = 0;
  request.cost = CostOfReading({1, 0, 0, 0}, 1);
  request.text_tokens = 20;
  request.tokens = 200;
  SimulationResult result = Simulate(request);
  EXPECT_NEAR(result.steps, (32 + 19 * 2) / 20.0, 1e-9);
  EXPECT_NEAR(result.seconds, (32 + 19 * 2) / 20.0, 1e-9);
  request.depths.clear();
  request.assumed = {};
  result = Simulate(request);
  EXPECT_NEAR(result.steps, 32, 1e-9);
  EXPECT_NEAR(result.readouts, 1, 1e-9);
  request = Raven();
  const double together = Simulate(request).tokens_per_pass;
  request.text_tokens = 60;
  const double expected = 60 * together / (together + 59);
  EXPECT_NEAR(Simulate(request).tokens_per_pass, expected, 0.1 * expected);
}

// The paper's schedule: every draft has a branch and every branch a row, so that a gate that always
// opens fills the pipeline to the paper's bound; ours leaves out what is hardly ever needed.
TEST(Simulation, ThePapersScheduleWithholdsNothing) {
  SimulationRequest request = Raven();
  request.depths = {2, 8};
  request.assumed = {};
  request.assumed.rates = {1, 0};
  request.assumed.gate = 1;
  request.group = 1;
  request.tokens = 200;
  request.cost = StepCost();
  request.cost.recurrence = {1, 2, 4, 8, 16, 32, 64, 128, 256};  // rows are far from free
  request.every_branch = true;
  EXPECT_EQ(Simulate(request).rows_peak, BranchBound(2, 8, 32));
  EXPECT_EQ(BranchBound(2, 8, 32), 249);
  request.every_branch = false;
  EXPECT_LT(Simulate(request).rows_peak, 100);
  request.cost = StepCost();  // even where rows are free
  EXPECT_LT(Simulate(request).rows_peak, 249);
}

// ---- Outcomes that are drawn

ReadoutPlan Readout(ReadoutPurpose purpose, int proposal, uint32_t position) {
  ReadoutPlan readout{};
  readout.purpose = purpose;
  readout.proposal = proposal;
  readout.draw = {1, 0, position};
  return readout;
}

TEST(AssumedOutcomes, ComeAtTheirRates) {
  constexpr int kLength = 20000, kTokens = 1000;
  const AssumedAcceptance assumed = {{0.7, 0.2}, 0.4};
  int accepted[3] = {0, 0, 0}, opened = 0;
  for (uint32_t position = 0; position < kLength; ++position) {
    StepPlan plan;
    plan.readouts = {Readout(ReadoutPurpose::kPropose, 0, position),
                     Readout(ReadoutPurpose::kPropose, 1, position)};
    std::vector<Decision> drafts(2);
    AssumeOutcomes(assumed, plan.readouts, kTokens, drafts);
    ASSERT_GE(drafts[0].token, 0);  // the first proposal is always there
    opened += drafts[1].gate_open ? 1 : 0;
    ASSERT_EQ(drafts[1].gate_open, drafts[1].token >= 0);
    plan.readouts = {Readout(ReadoutPurpose::kVerify, -1, position)};
    ReadoutPlan& verify = plan.readouts[0];
    for (int i = 0; i < 2; ++i) {
      if (drafts[static_cast<size_t>(i)].token < 0) continue;
      verify.recorded[verify.recorded_count++] = {i, drafts[static_cast<size_t>(i)].token};
    }
    std::vector<Decision> verdict(1);
    AssumeOutcomes(assumed, plan.readouts, kTokens, verdict);
    const int winner = verdict[0].accepted;
    ++accepted[winner < 0 ? 2 : verify.recorded[winner].proposal];
    ASSERT_TRUE(winner < 0 || verdict[0].token == verify.recorded[winner].token);
    for (int i = 0; i < verify.recorded_count && winner < 0; ++i)
      ASSERT_NE(verdict[0].token, verify.recorded[i].token);
  }
  EXPECT_NEAR(accepted[0], 0.7 * kLength, 0.01 * kLength);
  EXPECT_NEAR(accepted[1], 0.2 * kLength, 0.01 * kLength);
  EXPECT_NEAR(accepted[2], 0.1 * kLength, 0.01 * kLength);
  EXPECT_NEAR(opened, 0.4 * kLength, 0.01 * kLength);
}

TEST(AssumedOutcomes, AVerdictOverNoDraftsIsTheModelsOwn) {
  StepPlan plan;
  plan.readouts = {Readout(ReadoutPurpose::kVerify, -1, 7)};
  std::vector<Decision> verdict(1);
  verdict[0].token = 123;
  AssumeOutcomes({{0.9}, 0}, plan.readouts, 1000, verdict);
  EXPECT_EQ(verdict[0].token, 123);
  EXPECT_EQ(verdict[0].accepted, -1);
}

// ---- Costs as texts meet them

StepCost SomeCosts() {
  StepCost cost;
  cost.recurrence = {1.0, 1.1, 1.2, 1.5, 2.0, 3.5, 7.0, 14.0, 28.0};
  cost.prelude = 0.5;
  cost.readout = 2;
  cost.readout_row = 0.1;
  cost.row_position = 0.001;
  cost.step = 0.1;
  return cost;
}

StepPlan PlanOf(int rows, bool fresh, int readouts) {
  StepPlan plan;
  plan.recurrences = 2;
  for (int i = 0; i < rows; ++i) plan.rows.push_back({0, i, 0, 100, fresh ? 0 : 1, 0, 0});
  plan.readouts.resize(static_cast<size_t>(readouts));
  return plan;
}

TEST(CostPace, GivesTheTimeThatTextsTook) {
  const StepCost cost = SomeCosts();
  CostPace pace(cost);
  EXPECT_EQ(pace.Corrected().recurrence, cost.recurrence);  // nothing seen
  const StepPlan plans[] = {PlanOf(1, true, 0), PlanOf(1, false, 1), PlanOf(8, false, 3)};
  std::vector<char> seen;
  double inside = 0;
  for (int i = 0; i < 30; ++i) {
    const StepPlan& plan = plans[i % 3];
    const StepSeconds expected = SecondsOf(plan, cost, 100, seen);
    StepResult result;
    result.prelude_seconds = 3 * expected.prelude;
    result.recur_seconds = (plan.rows.size() == 1 ? 1.2 : 1.5) * expected.recur;
    result.readout_seconds = 2 * expected.readout;
    inside += result.prelude_seconds + result.recur_seconds + result.readout_seconds;
    pace.Observe(plan, result);
  }
  Statistics text;
  text.prefill_seconds = 7;
  text.first_token_seconds = 10;
  text.decode_seconds = inside + 30 * 0.25;  // a quarter of a second between steps
  pace.ObserveText(text);
  const StepCost corrected = pace.Corrected();
  EXPECT_NEAR(corrected.recurrence[0], 1.2 * cost.recurrence[0], 1e-9);
  EXPECT_NEAR(corrected.recurrence[3], 1.5 * cost.recurrence[3], 1e-9);
  EXPECT_NEAR(corrected.prelude, 3 * cost.prelude, 1e-9);
  EXPECT_NEAR(corrected.readout, 2 * cost.readout, 1e-9);
  EXPECT_NEAR(corrected.readout_row, 2 * cost.readout_row, 1e-9);
  EXPECT_NEAR(corrected.step, 0.25, 1e-9);
  // Row counts that were not seen follow the rest.
  EXPECT_GT(corrected.recurrence[6], 1.2 * cost.recurrence[6]);
  EXPECT_LT(corrected.recurrence[6], 1.5 * cost.recurrence[6]);
  double total = 0, taken = inside + 30 * 0.25;
  for (int i = 0; i < 30; ++i) total += SecondsOf(plans[i % 3], corrected, 100, seen).total();
  EXPECT_NEAR(total, taken, 0.02 * taken);
}

}  // namespace
}  // namespace loopspec

// The decoder on a backend that only counts, against figures of an independent simulation.
#include <gtest/gtest.h>

#include <tuple>

#include "measure/simulate.h"

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

}  // namespace
}  // namespace loopspec

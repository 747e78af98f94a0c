// The generator against its published vectors, its uniforms, and Raven's initial states.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/philox.h"
#include "model/initial_state.h"

namespace loopspec {
namespace {

void ExpectBlock(PhiloxBlock counter, uint64_t key, PhiloxBlock expected) {
  const PhiloxBlock out = Philox4x32(counter, key);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out.v[i], expected.v[i]);
}

// Known answers for philox4x32-10 as published with Random123.
TEST(Philox, KnownAnswers) {
  ExpectBlock({{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  ExpectBlock({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0},
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  ExpectBlock({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
              uint64_t{0x299f31d0} << 32 | 0xa4093822,
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, UniformsAreInRangeAndEven) {
  EXPECT_EQ(UniformFrom(0, 0), 0.0);
  EXPECT_LT(UniformFrom(~0u, ~0u), 1.0);
  std::array<int, 64> bins{};
  double sum = 0;
  constexpr int kDraws = 640000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = Uniform({42, 1, static_cast<uint32_t>(i)}, DraftPurpose(1));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * 64)];
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.002);
  double statistic = 0;
  for (const int count : bins) statistic += (count - 10000.0) * (count - 10000.0) / 10000.0;
  EXPECT_LT(statistic, 130.0);  // 63 degrees of freedom, about 1e-6
}

// Every part of the key matters, and no two purposes share a number.
TEST(Philox, KeysAndPurposesAreDistinct) {
  std::set<double> seen;
  for (uint64_t seed : {0ull, 1ull, 1ull << 32}) {
    for (uint32_t choice = 0; choice < 3; ++choice) {
      for (uint32_t position = 0; position < 3; ++position) {
        seen.insert(Uniform({seed, choice, position}, static_cast<uint32_t>(DrawPurpose::kSample)));
        for (int j = 0; j < 8; ++j) {
          seen.insert(Uniform({seed, choice, position}, DraftPurpose(j)));
          seen.insert(Uniform({seed, choice, position}, AcceptPurpose(j)));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 3 * 3 * 17);
}

TEST(InitialState, MomentsOfATruncatedNormal) {
  constexpr int kDraws = 1000000;
  double sum = 0, squares = 0, fourth = 0, largest = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double z =
        TruncatedNormal(5, static_cast<uint32_t>(i / 1000), static_cast<uint32_t>(i % 1000));
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    largest = std::max(largest, std::fabs(z));
  }
  // At three sigma: variance 1 - 6 phi(3) / (2 Phi(3) - 1), and the fourth moment 3 var - 54 phi(3)
  // / (2 Phi(3) - 1).
  const double phi = std::exp(-4.5) / std::sqrt(2 * M_PI), mass = std::erf(3 / std::sqrt(2.0));
  const double variance = 1 - 6 * phi / mass;
  EXPECT_NEAR(sum / kDraws, 0.0, 0.005);
  EXPECT_NEAR(squares / kDraws, variance, 0.006);
  EXPECT_NEAR(fourth / kDraws, 3 * variance - 54 * phi / mass, 0.03);
  EXPECT_LE(largest, 3.0);
  EXPECT_GT(largest, 2.95);
  EXPECT_EQ(InitialState(5, 1, 2, 0.0), 0.0f);
  EXPECT_EQ(InitialState(5, 1, 2, 0.5), static_cast<float>(0.5 * TruncatedNormal(5, 1, 2)));
}

}  // namespace
}  // namespace loopspec

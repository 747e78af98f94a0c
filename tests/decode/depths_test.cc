// The paper's formulas and the defaults a user gets.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "decode/depths.h"

namespace loopspec {
namespace {

TEST(Depths, BranchBoundOfThePaper) {
  EXPECT_EQ(BranchBound(2, 8, 32), 249);
  EXPECT_EQ(BranchBound(1, 2, 4), 7);  // s = 1, 1, 2, 3
  EXPECT_EQ(BranchBound(1, 4, 4), 4);  // the second proposal never spawns
}

TEST(Depths, OptimalDepthsOfThePaper) {
  const OptimalDepths llama = ComputeOptimalDepths(1.03, 0.175, 32);
  EXPECT_EQ(fmt::format("{:.2f} {:.2f}", llama.d1, llama.d2), "1.26 8.85");
  const OptimalDepths olmo = ComputeOptimalDepths(1.08, 0.207, 32);
  EXPECT_EQ(fmt::format("{:.2f} {:.2f}", olmo.d1, olmo.d2), "1.41 9.17");
}

// They are what they say: the bound of the proof has its minimum there.
TEST(Depths, OptimalDepthsMinimiseTheBound) {
  for (const auto& [alpha, beta, r] :
       {std::tuple{1.03, 0.175, 32}, {1.08, 0.207, 32}, {0.8, 0.3, 64}, {1.5, 0.4, 16}}) {
    const auto bound = [&](double d1, double d2) {
      return d1 + beta * std::pow(d1, -alpha) * d2 + 2 * beta * std::pow(d2, -alpha) * r;
    };
    const OptimalDepths best = ComputeOptimalDepths(alpha, beta, r);
    for (const double a : {0.99, 1.0, 1.01}) {
      for (const double b : {0.99, 1.0, 1.01}) {
        if (a != 1.0 || b != 1.0) {
          EXPECT_GT(bound(best.d1 * a, best.d2 * b), bound(best.d1, best.d2));
        }
      }
    }
  }
}

TEST(Depths, Gamma) {
  const std::vector<int> depths = {2, 8};
  // gamma = N R / (A1 d1 + A2 d2 + (N - A1 - A2) R), at most R / d1.
  EXPECT_DOUBLE_EQ(Gamma(std::vector<int64_t>{90, 8}, 2, depths, 32),
                   100.0 * 32 / (90 * 2 + 8 * 8 + 2 * 32));
  EXPECT_DOUBLE_EQ(Gamma(std::vector<int64_t>{100, 0}, 0, depths, 32), 16.0);
  EXPECT_DOUBLE_EQ(Gamma(std::vector<int64_t>{0, 0}, 7, depths, 32), 1.0);
  EXPECT_DOUBLE_EQ(Gamma({}, 7, {}, 4), 1.0);
  EXPECT_DOUBLE_EQ(Gamma(std::vector<int64_t>{0, 0}, 0, depths, 32), 0.0);
}

TEST(Depths, Defaults) {
  EXPECT_EQ(DefaultDepths(32), DefaultDepths(32, DeviceClass::kGpu));  // the paper's
  EXPECT_EQ(DefaultDepths(32, DeviceClass::kGpu), (std::vector{2, 8}));
  EXPECT_EQ(DefaultDepths(32, DeviceClass::kCpu), (std::vector{4, 8}));
  EXPECT_EQ(DefaultDepths(16, DeviceClass::kCpu), (std::vector{2, 4}));
  for (const DeviceClass device : {DeviceClass::kCpu, DeviceClass::kGpu}) {
    EXPECT_EQ(DefaultDepths(4, device), (std::vector{1, 2}));
    EXPECT_TRUE(DefaultDepths(1, device).empty());
    EXPECT_EQ(DefaultDepths(2, device), std::vector{1});
    for (int r = 1; r <= 256; ++r) {
      const std::vector<int> depths = DefaultDepths(r, device);
      EXPECT_NO_THROW(CheckDepths(depths, r)) << r;
      EXPECT_EQ(DepthsAdvice(depths, r), std::nullopt)
          << fmt::format("R {}: the default {} is advised against", r, depths);
      if (r < 3) continue;
      ASSERT_EQ(depths.size(), 2u) << r;
      EXPECT_LE(depths[1], std::max(2, r / 2)) << r;
      EXPECT_LE(depths[0], device == DeviceClass::kGpu ? std::max(1.0, 2 * std::cbrt(r / 4.0))
                                                       : std::max(1.0, r / 8.0 + 0.5))
          << r;
    }
  }
}

TEST(Depths, Parse) {
  EXPECT_EQ(ParseDepths("1,2"), (std::vector{1, 2}));
  EXPECT_EQ(ParseDepths("7"), std::vector{7});
  EXPECT_TRUE(ParseDepths("").empty());
  for (const char* bad :
       {",", "1,", ",1", "1,,2", "a", "1 2", "1;2", "99999999999", "1.5", "0x1"}) {
    EXPECT_THROW(ParseDepths(bad), Error) << bad;
  }
}

TEST(Depths, Check) {
  EXPECT_NO_THROW(CheckDepths(std::vector<int>{}, 1));
  EXPECT_NO_THROW(CheckDepths(std::vector{1, 2, 3}, 4));
  for (const auto& bad : {std::vector{0}, {4}, {1, 1}, {2, 1}, {-1}, {1, 5}})
    EXPECT_THROW(CheckDepths(bad, 4), Error);
  EXPECT_THROW(CheckDepths(std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9}, 32), Error);
}

TEST(Depths, Advice) {
  EXPECT_EQ(DepthsAdvice({}, 4), std::nullopt);
  EXPECT_EQ(DepthsAdvice(std::vector{2, 8}, 32), std::nullopt);
  EXPECT_NE(DepthsAdvice(std::vector{2, 3}, 32).value_or("").find("2 does not divide 3"),
            std::string::npos);
  EXPECT_NE(DepthsAdvice(std::vector{3}, 32).value_or("").find("3 does not divide 32"),
            std::string::npos);
  EXPECT_NE(DepthsAdvice(std::vector{3, 6}, 32).value_or("").find("3 does not divide 32"),
            std::string::npos);
}

TEST(ReadoutDepths, ProposalsInOrderAndTheLast) {
  EXPECT_EQ(ReadoutDepths({}, 4), (std::vector<int>{4}));
  EXPECT_EQ(ReadoutDepths(std::vector<int>{1, 2}, 4), (std::vector<int>{1, 2, 4}));
  // Of several ways of decoding, in any order; R may be among them.
  EXPECT_EQ(ReadoutDepths(std::vector<int>{2, 8, 1, 2, 32}, 32), (std::vector<int>{1, 2, 8, 32}));
}

}  // namespace
}  // namespace loopspec

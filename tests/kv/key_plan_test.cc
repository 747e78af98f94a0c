// Plans of keys: their text, their bytes, and what each form makes of numbers.
#include "kv/key_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace loopspec {
namespace {

TEST(KeyPlan, IsReadAndNamedByOneText) {
  EXPECT_EQ(KeyPlan::Parse("int8*8,r4*8,last", 32).text(), "int8*8,r4*8,last");
  EXPECT_EQ(KeyPlan::Parse("int8,r5,r4", 4).text(), "int8,r5,r4");
  // The same plan in other words.
  EXPECT_EQ(KeyPlan::Parse("int8,int8,last*1", 4).text(), "int8*2,last");
  EXPECT_EQ(KeyPlan::Parse("r4*3", 4).text(), "r4");
  EXPECT_EQ(KeyPlan::Parse("int8", 32), KeyPlan(std::vector<KeyForm>(31)));
  const KeyPlan plan = KeyPlan::Parse("int8*2,r4,last", 6);
  EXPECT_EQ(plan.recurrence(), 6);
  EXPECT_EQ(plan.At(2), kOwnKeys);
  EXPECT_EQ(plan.At(3), ResidualKeys(4));
  EXPECT_EQ(plan.At(4), kLastKeys);
  EXPECT_EQ(plan.At(5), kLastKeys);
  EXPECT_EQ(plan.At(6), kOwnKeys);
}

TEST(KeyPlan, WhatIsNoPlanIsSaidInOneSentence) {
  const auto expect = [](const std::string& text, const std::string& words) {
    try {
      KeyPlan::Parse(text, 4);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT_NE(said.find(words), std::string::npos) << said;
      EXPECT_NE(said.find("depths from 1 to 3"), std::string::npos) << said;
    }
  };
  expect("", "nothing is no form");
  expect("int8,", "nothing is no form");
  expect("int4", "int4 is no form");
  expect("r1", "r1 is no form");
  expect("r9", "r9 is no form");
  expect("r4x", "r4x is no form");
  expect("int8*0", "*0 is no count");
  expect("int8*", "* is no count");
  expect("int8*4", "more than 3 depths");
  expect("int8*3,last", "more than 3 depths");
  expect("int8*2147483648", "is no count");
}

ModelSpec SmallSpec() {
  ModelSpec spec;
  spec.head_dim = 64;
  spec.kv_heads = 2;
  spec.prelude_layers = 1;
  spec.core_layers = 3;
  spec.coda_layers = 1;
  spec.recurrence = 32;
  return spec;
}

TEST(KeyPlan, BytesAreThoseOfItsPlanesAndScales) {
  const ModelSpec spec = SmallSpec();
  EXPECT_EQ(KeyBytes(kOwnKeys, 64), 64 + 4);
  EXPECT_EQ(KeyBytes(ResidualKeys(4), 64), 32 + 2);
  EXPECT_EQ(KeyBytes(ResidualKeys(5), 64), 40 + 2);
  EXPECT_EQ(KeyBytes(ResidualKeys(3), 4), 2 + 2);
  EXPECT_EQ(KeyBytes(kLastKeys, 64), 0);
  // P, 32 loops of three layers, C at two depths: 1 + 96 + 2 planes of int8.
  EXPECT_EQ(KeyPlan::Parse("int8", 32).BytesPerPosition(spec, 2), 99 * 68 * 2 * 2);
  // Of the loops, eight and the last.
  EXPECT_EQ(KeyPlan::Parse("int8*8,last", 32).BytesPerPosition(spec, 2),
            (1 + 9 * 3 + 2) * 68 * 2 * 2);
  EXPECT_EQ(KeyPlan::Parse("int8*4,r4*4,last", 32).BytesPerPosition(spec, 2),
            ((1 + 5 * 3 + 2) * 68 + 4 * 3 * 34) * 2 * 2);
}

TEST(KeyForms, HoldWhatTheirBitsCan) {
  float x[] = {1.0f, -0.5f, 0.004f, -127.0f};
  RoundToInt8(x, 4);
  EXPECT_EQ(x[0], 1.0f);
  EXPECT_EQ(x[1], 0.0f);  // halves go to the even number
  EXPECT_EQ(x[2], 0.0f);
  EXPECT_EQ(x[3], -127.0f);
  const float last[] = {1.0f, 2.0f, 3.0f, 4.0f};
  // Three bits: seven levels, from -3 to 3 steps.
  float y[] = {1.0f + 3.0f, 2.0f - 1.4f, 3.0f + 1.6f, 4.0f - 3.0f};
  RoundToForm(ResidualKeys(3), last, y, 4);
  EXPECT_EQ(y[0], 4.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], 5.0f);
  EXPECT_EQ(y[3], 1.0f);
  float z[] = {7.0f, 7.0f, 7.0f, 7.0f}, own[] = {7.0f, 6.0f, 5.0f, 4.0f};
  RoundToForm(kLastKeys, last, z, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(z[i], last[i]);
  RoundToForm(kOwnKeys, last, own, 4);
  EXPECT_EQ(own[1], 6.0f);
}

TEST(KeyForms, ResidualsAreLevelsAndAScale) {
  const float last[] = {1.0f, -2.0f, 0.5f}, x[] = {1.0f + 6.0f, -2.0f - 1.5f, 0.5f - 6.0f};
  int8_t levels[3];
  EXPECT_EQ(RoundResidual(3, last, x, 3, levels), 2.0f);  // three levels on each side
  EXPECT_EQ(levels[0], 3);
  EXPECT_EQ(levels[1], -1);
  EXPECT_EQ(levels[2], -3);
  // A scale between two bf16 numbers is rounded, and no level leaves its range.
  const float zero[] = {0.0f, 0.0f}, y[] = {1.005f, -1.005f};
  EXPECT_EQ(RoundResidual(2, zero, y, 2, levels), 1.0078125f);
  EXPECT_EQ(levels[0], 1);
  EXPECT_EQ(levels[1], -1);
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), 1.0f};
  EXPECT_TRUE(std::isnan(RoundResidual(4, zero, bad, 2, levels)));
  EXPECT_EQ(levels[1], 0);
}

TEST(KeyForms, NothingAndNoNumber) {
  const float last[] = {1.0f, 2.0f};
  float zero[] = {0.0f, 0.0f}, same[] = {1.0f, 2.0f};
  RoundToInt8(zero, 2);
  EXPECT_EQ(zero[0], 0.0f);
  RoundToForm(ResidualKeys(2), last, same, 2);
  EXPECT_EQ(same[0], 1.0f);
  EXPECT_EQ(same[1], 2.0f);
  float broken[] = {1.0f, std::numeric_limits<float>::infinity()};
  RoundToInt8(broken, 2);
  EXPECT_TRUE(std::isnan(broken[0]));
}

}  // namespace
}  // namespace loopspec

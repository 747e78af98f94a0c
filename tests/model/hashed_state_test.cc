// IFM's hashed initial state: within 4e-6 of what the released code makes of it with a correctly
// rounded sine, its functions against the C library's, and its bits, which are the same on every
// machine.
#include "model/hashed_state.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/ifm_reference.h"
#include "tests/support/models.h"

namespace loopspec {
namespace {

float Scale(int64_t width) {
  return static_cast<float>(std::sqrt(2.0 / static_cast<double>(width)));
}

TEST(HashedState, AsReleased) {
  for (const char* name : {"ifm-p1-huginn-tiny", "ifm-p2-huginn-tiny", "ifm-p2-linear-tiny"}) {
    if (!HasGolden(name)) GTEST_SKIP() << kNoGolden;
    const Checkpoint file = Checkpoint::OpenFile(GoldenFolder() / name / "state.safetensors");
    const TensorView& state = file.tensors().at("state");
    const int64_t positions = state.shape[0], width = state.shape[1];
    double worst = 0;
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t c = 0; c < width; ++c) {
        const float ours =
            HashedState(static_cast<uint32_t>(p), static_cast<uint32_t>(c), Scale(width));
        const float released = LoadElement(state.data, state.dtype, p * width + c);
        worst = std::max(worst, static_cast<double>(std::fabs(ours - released)));
      }
    }
    EXPECT_LT(worst, 4e-6) << name;
  }
}

// The formulas in double precision, over all positions of a trained context.
TEST(HashedState, AgreesWithTheReference) {
  double worst = 0;
  for (uint32_t p = 0; p < 8192; p += 61) {
    for (uint32_t c = 0; c < 6144; c += 97) {
      const double expected = IfmReference::HashedState(p, c, 6144);
      worst = std::max(worst, std::fabs(HashedState(p, c, Scale(6144)) - expected));
    }
  }
  EXPECT_LT(worst, 4e-7 * 5 / std::sqrt(6144.0));
}

TEST(HashedState, FunctionsOfItsOwn) {
  for (double x = 0.1; x < 300.0; x += 0.00317)
    ASSERT_NEAR(rounded::Sine(x), std::sin(x), 4e-16) << x;
  for (double x = 1e-7; x < 1.0; x *= 1.0003)
    ASSERT_NEAR(rounded::Logarithm(x), std::log(x), 4e-16 * (1.0 - std::log(x))) << x;
  for (double t = -3.4; t < 3.4; t += 0.0007)
    ASSERT_NEAR(rounded::InverseErf(std::erf(t)), t, 4e-7 * std::fabs(t) + 1e-9) << t;
}

TEST(HashedState, SameBitsEverywhere) {
  struct Pinned {
    uint32_t position, channel, bits;
  };
  const Pinned pinned[] = {
      {0, 0, 0x3B358580u},       {0, 1, 0x3C0A1B50u},     {0, 6143, 0xBC789017u},
      {1, 0, 0xBC61AEF1u},       {7, 95, 0x3C942D1Bu},    {63, 1535, 0xBAB056A6u},
      {64, 0, 0x3BDEFD6Du},      {1000, 17, 0x3CFDDE3Cu}, {4095, 3071, 0xBC3C7CCAu},
      {8191, 6143, 0xBC987EC8u}, {8191, 0, 0xBCA05556u},  {123456, 4242, 0x3C70731Bu}};
  for (const Pinned& p : pinned)
    EXPECT_EQ(std::bit_cast<uint32_t>(HashedState(p.position, p.channel, Scale(6144))), p.bits)
        << p.position << " " << p.channel;
  uint64_t all = 0;  // of a whole position and more, in order
  for (uint32_t p = 0; p < 64; ++p) {
    for (uint32_t c = 0; c < 1536; ++c)
      all = all * 0x9E3779B97F4A7C15u + std::bit_cast<uint32_t>(HashedState(p, c, Scale(1536)));
  }
  EXPECT_EQ(all, 0xCCF3744AAF6706EFu);
}

}  // namespace
}  // namespace loopspec

// How sure a speedup is, and which weights were measured.
#include "experiments/speed_interval.h"

#include <gtest/gtest.h>

#include <fstream>

#include "experiments/checkpoint_hash.h"

namespace loopspec::experiments {
namespace {

std::string Hash(const std::string& text) {
  return Sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

TEST(SpeedIntervals, ReturnTheSpeedupWhereEveryTextHasIt) {
  TextTimes own, base;
  for (int text = 0; text < kTextsOfAnInterval; ++text) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      const double tokens = 100 + 10 * text;
      base[std::to_string(text)][repeat] = {tokens, tokens / 50};
      own[std::to_string(text)][repeat] = {tokens, tokens / 125};
    }
  }
  EXPECT_DOUBLE_EQ(SpeedupOf(own, base), 2.5);
  const auto interval = SpreadOf(own, base);
  ASSERT_TRUE(interval.has_value());
  EXPECT_TRUE(interval->is_interval());
  EXPECT_NEAR(interval->low, 2.5, 1e-12);
  EXPECT_NEAR(interval->high, 2.5, 1e-12);
}

// Pairing: texts of very different speeds widen nothing as long as the ratio is the same.
TEST(SpeedIntervals, ArePairedByText) {
  TextTimes own, base, uneven;
  for (int text = 0; text < 8; ++text) {
    const std::string name = std::to_string(text);
    const double seconds = 1 + text;
    base[name][0] = {100, seconds};
    own[name][0] = {100, seconds / 2};
    uneven[name][0] = {100, seconds / (text % 2 == 0 ? 1.5 : 3.0)};
  }
  const auto paired = SpreadOf(own, base);
  ASSERT_TRUE(paired.has_value());
  EXPECT_NEAR(paired->high - paired->low, 0, 1e-12);
  const auto spread = SpreadOf(uneven, base);
  ASSERT_TRUE(spread.has_value());
  EXPECT_LT(spread->low, SpeedupOf(uneven, base));
  EXPECT_GT(spread->high, SpeedupOf(uneven, base));
  EXPECT_GE(spread->low, 1.5);
  EXPECT_LE(spread->high, 3.0);
  // The same records, the same interval.
  EXPECT_EQ(SpreadOf(uneven, base)->low, spread->low);
}

// A run in which the machine was slow counts for as much as one in which it was not.
TEST(SpeedIntervals, ContainWhatRepeatsDifferBy) {
  TextTimes own, base;
  for (int text = 0; text < 8; ++text) {
    const std::string name = std::to_string(text);
    for (int repeat = 0; repeat < 3; ++repeat) {
      base[name][repeat] = {100, 1};
      own[name][repeat] = {100, repeat == 0 ? 1.25 : 0.5};
    }
  }
  const auto spread = SpreadOf(own, base);
  ASSERT_TRUE(spread.has_value());
  EXPECT_DOUBLE_EQ(SpeedupOf(own, base), 2);
  EXPECT_NEAR(spread->low, 0.8, 1e-12);
  EXPECT_NEAR(spread->high, 2, 1e-12);
  EXPECT_FALSE(spread->tells_apart());
}

// Two texts have no 95 % interval: what they were is given, and called that.
TEST(SpeedIntervals, FewTextsHaveARange) {
  TextTimes own, base;
  base["a"][0] = base["b"][0] = base["c"][0] = {100, 1};
  own["a"][0] = {100, 0.5};
  own["b"][0] = {100, 0.4};
  own["c"][0] = {100, 0.25};
  const auto range = SpreadOf(own, base);
  ASSERT_TRUE(range.has_value());
  EXPECT_FALSE(range->is_interval());
  EXPECT_FALSE(range->tells_apart());
  EXPECT_DOUBLE_EQ(range->low, 2);
  EXPECT_DOUBLE_EQ(range->high, 4);
  EXPECT_EQ(range->Words(), "2.00 to 4.00 (range of 3 texts)");
}

TEST(SpeedIntervals, NeedTwoTexts) {
  TextTimes own, base;
  own["a"][0] = base["a"][0] = {10, 1};
  own["b"][0] = {10, 1};  // the baseline did not run it
  EXPECT_FALSE(SpreadOf(own, base).has_value());
  EXPECT_EQ(SpeedupOf(own, {}), 0);
}

// Vectors of FIPS 180-2, and a length around every edge of a block.
TEST(Weights, HashesAreSha256) {
  EXPECT_EQ(Hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hash(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Weights, AreHashedAsSha256sumHashesThem) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "loopspec-hash";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(HashWeights(folder), "");
  std::ofstream(folder / "b.safetensors") << "abc";
  EXPECT_EQ(HashWeights(folder), Hash("abc"));
  std::ofstream(folder / "a.safetensors") << "x";
  EXPECT_EQ(HashWeights(folder),
            Hash(Hash("x") + "  a.safetensors\n" + Hash("abc") + "  b.safetensors\n"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace loopspec::experiments

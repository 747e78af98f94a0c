// loopspec synth from outside: twins of a small size that agree as often as asked, and say what
// they are.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tensor/safetensors.h"
#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

std::vector<std::string> Small(const std::string& like, const std::string& output,
                               const std::vector<std::string>& more = {}) {
  const bool nanbeige = like.starts_with("nanbeige"), huginn = like.starts_with("huginn");
  const bool ifm = like.starts_with("ifm");
  std::vector<std::string> all = {"synth",
                                  "--like",
                                  like,
                                  "--layers",
                                  "1",
                                  "--width",
                                  nanbeige ? "384"
                                  : huginn ? "288"
                                  : ifm    ? "768"
                                           : "256",
                                  "--vocab",
                                  "2000",
                                  "--output",
                                  output,
                                  "--device",
                                  "cpu"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Case {
  const char* like;
  const char* agreement;
  int depth;  // of the first drafts
};

// The same measurement by another way: the logits of every depth, over tokens of our own.
double AgreementByLogits(const std::string& model, int depth, int last, const Scratch& scratch) {
  constexpr int kTokens = 400;
  std::vector<int> tokens;
  uint32_t random = 12345;
  for (int i = 0; i < kTokens; ++i) {
    random = random * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int>((random >> 8) % 2000));
  }
  const std::string file = scratch / "logits.safetensors";
  const RunResult run = Call({"logits", "--model", model, "--device", "cpu", "--tokens",
                              fmt::format("{}", fmt::join(tokens, ",")), "--depths",
                              fmt::format("{},{}", depth, last), "--output", file},
                             Patient());
  EXPECT_EQ(run.code, 0) << run.err;
  const Checkpoint checkpoint = Checkpoint::OpenFile(file);
  const TensorView& logits = checkpoint.tensors().at("logits");
  const auto* values = reinterpret_cast<const float*>(logits.data);
  const int64_t vocab = logits.shape[2];
  int agreed = 0;
  for (int t = 0; t < kTokens; ++t) {
    const float* early = values + t * vocab;
    const float* late = values + (kTokens + t) * vocab;
    agreed += std::max_element(early, early + vocab) - early ==
                      std::max_element(late, late + vocab) - late
                  ? 1
                  : 0;
  }
  return static_cast<double>(agreed) / kTokens;
}

class SynthAgreementTest : public testing::TestWithParam<Case> {};

TEST_P(SynthAgreementTest, IsNearWhatWasAsked) {
  const Case& c = GetParam();
  const double asked = std::stod(c.agreement);
  const Scratch scratch;
  const std::string twin = scratch / "twin";
  const RunResult run = Call(Small(c.like, twin, {"--agreement", c.agreement}), Patient());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("SYNTHETIC"), std::string::npos) << run.out;

  const size_t sentence = run.out.find(fmt::format("depth {} agrees with the last at ", c.depth));
  ASSERT_NE(sentence, std::string::npos) << run.out;
  double printed = 0, repeated = 0;
  int length = 0;  // stays 0 unless the text matches to its end
  std::sscanf(run.out.c_str() + sentence,
              "depth %*d agrees with the last at %lf %% of 256 positions (asked: %lf %%)%n",
              &printed, &repeated, &length);
  ASSERT_GT(length, 0) << run.out;
  printed /= 100;
  EXPECT_NEAR(repeated / 100, asked, 1e-3);
  // What the command promises: 0.03, or one and a half standard deviations of 256 positions.
  const double tolerance = std::max(0.03, 1.5 * std::sqrt(asked * (1 - asked) / 256));
  EXPECT_NEAR(printed, asked, tolerance + 1e-3);

  const Json config = ReadJsonFile(twin + "/config.json");
  EXPECT_EQ(config.at("loopspec_synthetic"), true);
  EXPECT_NEAR(config.at("loopspec_agreement").at("measured").at(0).get<double>(), printed, 1e-3);
  const std::string readme = Slurp(twin + "/README.md");
  EXPECT_NE(readme.find("SYNTHETIC"), std::string::npos);
  EXPECT_NE(readme.find(fmt::format("{:.1f} % at depth {}", 100 * printed, c.depth)),
            std::string::npos)
      << readme;

  // Over tokens that the command never saw, within what sampling noise adds.
  const std::string type = config.value("model_type", "");
  const int last = type.empty()         ? config.at("model").at("loop_times").get<int>()
                   : type == "ouro"     ? 4
                   : type == "nanbeige" ? 2
                                        : 32;
  const double other = AgreementByLogits(twin, c.depth, last, scratch);
  EXPECT_NEAR(other, asked, tolerance + 4 * std::sqrt(asked * (1 - asked) / 400)) << run.out;
}

INSTANTIATE_TEST_SUITE_P(
    Families, SynthAgreementTest,
    testing::Values(Case{"ouro-1.4b", "0.9", 1}, Case{"ouro-2.6b", "0.6", 1},
                    Case{"raven-llama", "0.9", 2}, Case{"raven-olmo", "0.75", 2},
                    Case{"nanbeige4.2-3b", "0.8", 1}, Case{"huginn-0125", "0.75", 4},
                    Case{"ifm-p1-ouro", "0.8", 1}, Case{"ifm-p2-s", "0.75", 1}),
    [](const auto& tested) {
      std::string name = fmt::format("{}_{}", tested.param.like, tested.param.agreement);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(Synth, WithoutMeasuringSaysSo) {
  const Scratch scratch;
  const RunResult run = Call(Small("raven-llama", scratch / "twin", {"--no-measure"}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("not measured"), std::string::npos) << run.out;
  EXPECT_NE(Slurp(scratch / "twin/README.md").find("Not measured"), std::string::npos);
  EXPECT_EQ(Call({"inspect", "--model", scratch / "twin"}).code, 0);
}

TEST(Synth, TheSeedDecidesTheWeights) {
  const Scratch scratch;
  const auto bytes = [&](const std::string& name, const std::string& seed) {
    EXPECT_EQ(Call(Small("ouro-1.4b", scratch / name, {"--no-measure", "--seed", seed})).code, 0);
    return Slurp(scratch / (name + "/model.safetensors"));
  };
  const std::string first = bytes("a", "7");
  EXPECT_EQ(first, bytes("b", "7"));
  EXPECT_NE(first, bytes("c", "8"));
}

TEST(Synth, HelpNamesItsOptions) {
  const RunResult help = Call({"synth", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* option : {"--like", "--agreement", "--layers", "--width", "--vocab", "--seed",
                             "--output", "--device", "--positions", "--no-measure", "Example:"}) {
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  }
}

TEST(Synth, Refusals) {
  const Scratch scratch;
  const std::string there = scratch / "there";
  ASSERT_EQ(Call(Small("ouro-1.4b", there, {"--no-measure"})).code, 0);
  ExpectRefusal(Small("ouro-1.4b", there), {"there is not empty"});
  // What somebody else wrote stays as it is.
  const std::string others = scratch / "others";
  std::filesystem::create_directories(others);
  const std::string note = scratch.Write("others/README.md", "mine");
  ExpectRefusal(Small("ouro-1.4b", others), {"others is not empty"});
  EXPECT_EQ(Slurp(note), "mine");
  const std::string output = scratch / "new";
  ExpectRefusal(Small("gpt-2", output), {"gpt-2", "ouro-1.4b"});
  ExpectRefusal({"synth", "--like", "raven-llama", "--width", "100", "--output", output},
                {"width is 100", "multiple of 256"});
  ExpectRefusal({"synth", "--like", "raven-llama", "--vocab", "3", "--output", output},
                {"--vocab 3", "expected"});
  ExpectRefusal(Small("ouro-1.4b", output, {"--agreement", "1.5"}), {"agreement is 1.5"});
  EXPECT_FALSE(std::filesystem::exists(output));
}

}  // namespace
}  // namespace loopspec::test

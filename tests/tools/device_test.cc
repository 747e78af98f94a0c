// The command line on a machine with a GPU: what `--device auto` takes, and that the GPU's text
// does not depend on the decoder. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

class Device : public testing::Test {
 protected:
  void SetUp() override {
    const RunResult run = Generate({"--device", "cuda", "-n", "1"});
    if (run.code == 2) GTEST_SKIP() << "no GPU here: " << run.err;
    ASSERT_EQ(run.code, 0) << run.err;
  }

  // On a machine as it is.
  static RunResult Generate(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"generate", "--model",  OuroDemo(),
                                          "--prompt", "One day,", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    RunOptions options;
    options.gpu = true;
    return Call(arguments, options);
  }
};

TEST_F(Device, AutoTakesTheGpu) {
  const RunResult run = Generate({"-n", "8"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.json()["stats"]["device"], "cuda:0");
}

// The GPU computes in bf16: with float32 asked for, the CPU does it, and a line says so.
TEST_F(Device, AutoTakesADeviceThatComputesAsAsked) {
  const RunResult chosen = Generate({"-n", "24", "--compute", "f32"});
  EXPECT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_EQ(chosen.json()["stats"]["device"], "cpu");
  EXPECT_NE(chosen.err.find("compute f32 was asked for, which the GPU does not do"),
            std::string::npos)
      << chosen.err;
  const RunResult named = Generate({"-n", "24", "--compute", "f32", "--device", "cpu"});
  EXPECT_EQ(named.json()["token_ids"], chosen.json()["token_ids"]);
  EXPECT_EQ(named.err.find("which the GPU does not do"), std::string::npos) << named.err;
}

TEST_F(Device, TheGpuByNameRefusesFloat32) {
  const RunResult run = Generate({"-n", "4", "--compute", "f32", "--device", "cuda"});
  ExpectRefused(run, {"bf16", "float32 was asked for"});
}

TEST_F(Device, TheGpusTextIsTheSameWithDraftsAndWithout) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{},
        {"--temperature", "1", "--seed", "5", "--sampler", "coupled"}}) {
    std::vector<std::string> arguments = {"--device", "cuda", "-n", "100", "--ignore-eos"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult drafted = Generate(arguments);
    arguments.insert(arguments.end(), {"--decode", "ar"});
    const RunResult plain = Generate(arguments);
    EXPECT_EQ(Ids(drafted.json()).size(), 100u) << drafted.err;
    EXPECT_EQ(drafted.json()["token_ids"], plain.json()["token_ids"]);
  }
}

}  // namespace
}  // namespace loopspec::test

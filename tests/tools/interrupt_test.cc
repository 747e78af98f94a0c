// Ctrl-C in commands whose work is worth nothing in part: exit code 130, one sentence, and no file
// that is not whole.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

namespace fs = std::filesystem;

// The sentence after "interrupted: ", of a command that said nothing else on standard error but how
// far it was.
std::string SentenceOf(const RunResult& result) {
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_EQ(result.signal, 0);
  const std::string begin = "loopspec: interrupted: ";
  const size_t at = result.err.find(begin);
  if (at == std::string::npos || !result.err.ends_with("\n")) {
    ADD_FAILURE() << result.err;
    return {};
  }
  const std::string sentence = result.err.substr(at + begin.size());
  EXPECT_EQ(sentence.find('\n'), sentence.size() - 1) << result.err;
  return sentence.substr(0, sentence.size() - 1);
}

RunOptions WhenThereIs(const fs::path& path) {
  RunOptions options;
  options.interrupt_when = [=] { return fs::exists(path); };
  return options;
}

TEST(Interrupt, DemoComparesNothing) {
  RunOptions at_first_words;
  at_first_words.signal_after_output = SIGINT;
  const RunResult stopped = Call({"demo", "--model", OuroDemo()}, at_first_words);
  EXPECT_EQ(SentenceOf(stopped), "the two decodings were not compared");
  EXPECT_EQ(stopped.out.find("speedup"), std::string::npos) << stopped.out;
}

TEST(Interrupt, SynthRemovesWhatItWrote) {
  const Scratch scratch;
  const std::vector<std::string> synth = {"synth",    "--like",         "ouro-1.4b",
                                          "--output", scratch / "twin", "--no-measure"};
  const RunResult stopped = Call(synth, WhenThereIs(scratch / "twin/model.safetensors"));
  EXPECT_EQ(SentenceOf(stopped), "nothing was kept in " + scratch / "twin");
  EXPECT_EQ(scratch.Names(), std::vector<std::string>());

  // A folder that was there stays, with what lay in it.
  fs::create_directories(scratch / "twin");
  scratch.Write("twin/own.txt", "mine");
  Call(synth, WhenThereIs(scratch / "twin/model.safetensors"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(scratch / "twin"))
    left.push_back(entry.path().filename().string());
  EXPECT_EQ(left, std::vector<std::string>{"own.txt"});
}

TEST(Interrupt, SynthSaysThatItDidNotMeasure) {
  const Scratch scratch;
  const std::string twin = scratch / "twin";
  const RunResult stopped =
      Call({"synth", "--like", "huginn-0125", "--layers", "1", "--width", "288", "--vocab", "2000",
            "--positions", "4096", "--output", twin, "--device", "cpu"},
           WhenThereIs(twin + "/README.md"));
  EXPECT_EQ(SentenceOf(stopped), twin + " is whole, its agreement was not measured");
  EXPECT_NE(Slurp(twin + "/README.md").find("Not measured"), std::string::npos);
  EXPECT_EQ(Call({"inspect", "--model", twin}).code, 0);
}

TEST(Interrupt, LogitsWritesAllOrNothing) {
  const Scratch scratch;
  std::vector<int> tokens(512);
  std::iota(tokens.begin(), tokens.end(), 1);
  RunOptions soon;
  soon.interrupt_after = 0.001;
  for (const std::string option : {"--output", "--lens"}) {
    const std::string file = scratch / "file.npz";
    const RunResult stopped =
        Call({"logits", "--model", OuroDemo(), "--recurrence", "50", "--depths", "1,50", "--tokens",
              fmt::format("{}", fmt::join(tokens, ",")), option, file},
             soon);
    EXPECT_EQ(SentenceOf(stopped), file + " was not written, the text was read in part");
    EXPECT_EQ(scratch.Names(), std::vector<std::string>()) << option;
  }
}

TEST(Interrupt, CalibrateKeysPrintsNothing) {
  RunOptions soon;
  soon.interrupt_after = 0.001;
  const RunResult stopped =
      Call({"calibrate", "--keys", "--model", OuroDemo(), "--span", "16"}, soon);
  EXPECT_EQ(SentenceOf(stopped), "nothing was measured to the end");
  EXPECT_EQ(stopped.out, "");
}

TEST(Interrupt, QuantizeGoesOnFromWhereItWas) {
  const Scratch scratch;
  const auto quantize = [&](const std::string& name, const RunOptions& options = {}) {
    return Call({"quantize", "--model", OuroDemo(), "--to", "int4", "--output", scratch / name,
                 "--max-tokens", "512"},
                options);
  };
  const RunResult stopped = quantize("a", WhenThereIs(scratch / "a/parts/run.json"));
  EXPECT_EQ(SentenceOf(stopped), "the same command goes on from here");
  EXPECT_FALSE(fs::exists(scratch / "a/config.json")) << "what is not whole is no model";

  const RunResult whole = quantize("a", WhenThereIs(scratch / "a/rounded/parts/run.json"));
  EXPECT_EQ(SentenceOf(whole),
            scratch / "a" + " is whole, comparing it with the source was not finished");
  EXPECT_FALSE(fs::exists(scratch / "a/rounded"));
  EXPECT_FALSE(fs::exists(scratch / "a/parts"));

  // The same weights as those of a run that nobody stopped.
  const RunResult alone = Call({"quantize", "--model", OuroDemo(), "--to", "int4", "--output",
                                scratch / "b", "--judge", "none", "--max-tokens", "512"});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_TRUE(Slurp(scratch / "a/model.safetensors") == Slurp(scratch / "b/model.safetensors"));
}

}  // namespace
}  // namespace loopspec::test

// loopspec generate from outside: what it prints, what it promises, and that the numbers agree with
// each other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "tensor/safetensors.h"
#include "tests/tools/cli.h"
#include "tests/tools/tiny_model.h"

namespace loopspec::test {
namespace {

std::vector<std::string> Demo(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--model", OuroDemo(), "--prompt", kStory, "--ignore-eos"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Every number that `stats` and the lists around it must agree on.
void CheckConsistent(const Json& result, int decoded) {
  const Json& stats = result.at("stats");
  const auto ids = Ids(result);
  const auto depths = stats.at("depths").get<std::vector<int>>();
  const auto accepted = stats.at("accepted").get<std::vector<int>>();
  const auto sources = stats.at("sources").get<std::vector<int>>();
  const int fallback = stats.at("fallback");
  const int recurrence = stats.at("recurrence");
  ASSERT_EQ(static_cast<int>(ids.size()), decoded);
  EXPECT_EQ(stats.at("decoded_tokens"), decoded);
  ASSERT_EQ(sources.size(), ids.size());
  const auto early = stats.at("early").get<std::vector<bool>>();
  ASSERT_EQ(early.size(), ids.size());
  EXPECT_EQ(std::count(early.begin(), early.end(), true), stats.at("early_tokens").get<int64_t>());
  EXPECT_LE(stats.at("early_tokens"), stats.at("guesses_adopted"));
  EXPECT_LE(stats.at("guesses_adopted"), stats.at("guesses"));
  ASSERT_EQ(accepted.size(), depths.size());
  int total = fallback;
  double cost = static_cast<double>(fallback) * recurrence;
  EXPECT_EQ(std::count(sources.begin(), sources.end(), 0), fallback);
  for (size_t j = 0; j < accepted.size(); ++j) {
    EXPECT_EQ(std::count(sources.begin(), sources.end(), static_cast<int>(j) + 1), accepted[j]);
    total += accepted[j];
    cost += static_cast<double>(accepted[j]) * depths[j];
  }
  EXPECT_EQ(total, decoded);
  EXPECT_NEAR(stats.at("gamma").get<double>(), decoded * recurrence / cost, 1e-9);
  EXPECT_LE(stats.at("gate_opened"), stats.at("gate_evaluated"));
  EXPECT_GE(stats.at("gate_opened"), 0);
  const double mean = stats.at("rows_mean");
  const int peak = stats.at("rows_peak"), steps = stats.at("steps");
  EXPECT_GE(mean, 1.0);
  EXPECT_LE(mean, peak);
  EXPECT_GE(steps, recurrence);
  EXPECT_LE(steps, decoded * recurrence);
  EXPECT_GE(stats.at("prefill_seconds").get<double>(), 0.0);
  const double seconds = stats.at("decode_seconds"), rate = stats.at("tokens_per_second");
  EXPECT_GE(seconds, 0.0);
  // Every token counts, and the time since the prompt was read, the first token's included.
  EXPECT_NEAR(rate * seconds, decoded, 1e-3 * decoded);
  EXPECT_GE(seconds, stats.at("first_token_seconds").get<double>() -
                         stats.at("prefill_seconds").get<double>());
}

TEST(GenerateJson, HasTheNamedFields) {
  const Json result = Generate(Demo({"-n", "12"}));
  std::set<std::string> names;
  for (const auto& [name, value] : result.items()) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"text", "token_ids", "prompt_tokens", "finish_reason",
                                          "stats"}));
  for (const char* name :
       {"decode",         "device",          "depths",         "recurrence",
        "decoded_tokens", "prefill_seconds", "decode_seconds", "tokens_per_second",
        "accepted",       "fallback",        "gamma",          "gate_evaluated",
        "gate_opened",    "steps",           "rows_mean",      "rows_peak",
        "sources",        "early",           "guesses",        "guesses_adopted",
        "early_tokens"}) {
    EXPECT_TRUE(result.at("stats").contains(name)) << name;
  }
  EXPECT_EQ(result.at("finish_reason"), "length");
  EXPECT_EQ(result.at("stats").at("decode"), "loopspec");
  EXPECT_EQ(result.at("stats").at("depths"), Json({1, 2}));
  EXPECT_EQ(result.at("stats").at("recurrence"), 4);
  CheckConsistent(result, 12);
}

TEST(GenerateJson, NumbersAgreeInEveryDecoding) {
  for (const auto& [arguments, decoded] : std::vector<std::pair<std::vector<std::string>, int>>{
           {{"-n", "1"}, 1},
           {{"-n", "2", "--depths", "3"}, 2},
           {{"-n", "9", "--decode", "ar"}, 9},
           {{"-n", "15", "--depths", "1,2,3"}, 15},
           {{"-n", "15", "--temperature", "1", "--seed", "3"}, 15},
           {{"-n", "15", "--temperature", "5", "--max-rows", "2"}, 15},
           {{"-n", "15", "--temperature", "1", "--sampler", "coupled"}, 15}}) {
    SCOPED_TRACE(Json(arguments).dump());
    const Json result = Generate(Demo(arguments));
    CheckConsistent(result, decoded);
    if (arguments.back() == "ar") {
      EXPECT_EQ(result.at("stats").at("decode"), "ar");
      EXPECT_EQ(result.at("stats").at("fallback"), 9);
      EXPECT_EQ(result.at("stats").at("gamma"), 1.0);
    }
    if (arguments.back() == "2") {
      EXPECT_LE(result.at("stats").at("rows_peak"), 2);
    }
  }
}

TEST(GenerateInput, TextFileStandardInputAndTokensAgree) {
  const Scratch scratch;
  const Json expected = Generate(Demo({"-n", "8"}));
  const std::string file = scratch.Write("prompt.txt", kStory);
  EXPECT_EQ(
      Ids(Generate({"--model", OuroDemo(), "--prompt-file", file, "--ignore-eos", "-n", "8"})),
      Ids(expected));
  RunOptions piped;
  piped.input = kStory;
  EXPECT_EQ(
      Ids(Call({"generate", "--model", OuroDemo(), "-f", "-", "--ignore-eos", "-n", "8", "--json"},
               piped)
              .json()),
      Ids(expected));
  std::string ids = Call({"tokenize", "--model", OuroDemo(), kStory}).out;
  EXPECT_EQ(static_cast<int64_t>(std::count(ids.begin(), ids.end(), ',')) + 1,
            expected.at("prompt_tokens").get<int64_t>());
  EXPECT_EQ(Ids(Generate({"--model", OuroDemo(), "--tokens", ids, "--ignore-eos", "-n", "8"})),
            Ids(expected));

  // Streamed, it is the same text and a newline.
  const RunResult streamed =
      Call({"generate", "--model", OuroDemo(), "--prompt", kStory, "--ignore-eos", "-n", "8"});
  EXPECT_EQ(streamed.code, 0);
  EXPECT_EQ(streamed.out, expected.at("text").get<std::string>() + "\n");
  EXPECT_EQ(streamed.err, "loopspec: the text was cut after 8 tokens (-n)\n");
  // And what detokenize makes of the ids.
  const std::string list = fmt::format("{}", fmt::join(Ids(expected), ","));
  EXPECT_EQ(Call({"detokenize", "--model", OuroDemo(), list}).out,
            expected.at("text").get<std::string>());
}

TEST(GenerateInput, ChatIsTheTemplateAndThenTheTokenizer) {
  const Scratch scratch;
  const std::string messages = scratch.Write(
      "m.json",
      R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 3?"}])");
  const RunResult rendered = Call({"template", "--model", OuroDemo(), "--messages", messages});
  ASSERT_EQ(rendered.code, 0) << rendered.err;
  RunOptions piped;
  piped.input = rendered.out;
  const std::string ids = Call({"tokenize", "--model", OuroDemo(), "--no-special", "-"}, piped).out;
  const Json by_hand = Generate({"--model", OuroDemo(), "--tokens", ids, "-n", "10"});
  const Json chat = Generate({"--model", OuroDemo(), "--chat", "--system", "Be brief.", "-p",
                              "What is 2 + 3?", "-n", "10"});
  EXPECT_EQ(Ids(chat), Ids(by_hand));
  EXPECT_EQ(chat.at("prompt_tokens"), by_hand.at("prompt_tokens"));
}

TEST(GenerateInput, OneTokenAndBytesThatAreNoText) {
  EXPECT_EQ(Generate({"--model", OuroDemo(), "--tokens", "5", "-n", "3", "--ignore-eos"})
                .at("prompt_tokens"),
            1);
  const Json result =
      Generate({"--model", OuroDemo(), "--prompt", "a\xff\xfe b\xc3", "-n", "3", "--ignore-eos"});
  EXPECT_EQ(Ids(result).size(), 3u);
}

TEST(GenerateGreedy, LoopspecIsAutoregressiveTokenForToken) {
  const auto expected = Ids(Generate(Demo({"-n", "16", "--decode", "ar"})));
  ASSERT_EQ(expected.size(), 16u);
  for (const char* depths : {"auto", "1", "3", "2,3", "1,2,3"}) {
    EXPECT_EQ(Ids(Generate(Demo({"-n", "16", "--depths", depths}))), expected) << depths;
  }
  for (const char* rows : {"1", "2", "5"}) {
    EXPECT_EQ(Ids(Generate(Demo({"-n", "16", "--max-rows", rows}))), expected) << rows;
  }
  for (const char* threads : {"2", "7"}) {
    EXPECT_EQ(Ids(Generate(Demo({"-n", "16", "--threads", threads}))), expected) << threads;
  }
  for (const char* second : {"residual", "non-residual"}) {
    EXPECT_EQ(Ids(Generate(Demo({"-n", "16", "--second-proposal", second}))), expected) << second;
  }
  EXPECT_EQ(Ids(Generate(Demo({"-n", "16", "--temperature", "5", "--top-k", "1", "--seed", "9"}))),
            expected);
}

// Small models of every layout, Raven with a random initial state too.
TEST(GenerateGreedy, EveryLayout) {
  for (const char* name : {"ouro-tiny-f32", "ouro-tiny-gqa-bf16-sharded", "raven-llama-tiny-f32",
                           "raven-olmo-tiny-bf16"}) {
    for (const char* compute : {"f32", "bf16"}) {
      std::vector<std::string> common = {"--model", Golden(name), "--tokens",  "7,8,9",
                                         "-n",      "20",         "--compute", compute};
      if (std::string(name).starts_with("raven"))
        common.insert(common.end(), {"--set", "init_values.std=0.1"});
      auto ar = common, speculative = common, other = common;
      ar.insert(ar.end(), {"--decode", "ar"});
      other.insert(other.end(), {"--depths", "2,3", "--max-rows", "3"});
      const auto expected = Ids(Generate(ar));
      EXPECT_EQ(Ids(Generate(speculative)), expected) << name << " " << compute;
      EXPECT_EQ(Ids(Generate(other)), expected) << name << " " << compute;
    }
  }
}

struct SamplingCase {
  const char* name;
  std::vector<std::string> arguments;
};

const std::vector<SamplingCase>& SamplingCases() {
  static const std::vector<SamplingCase> cases = {
      {"plain", {"--temperature", "1", "--seed", "1"}},
      {"cold", {"--temperature", "0.3", "--seed", "18446744073709551615"}},
      {"hot", {"--temperature", "5", "--seed", "2"}},
      {"top-k", {"--temperature", "1", "--top-k", "3", "--seed", "3"}},
      {"top-p", {"--temperature", "1", "--top-p", "0.7", "--seed", "4"}},
      {"min-p", {"--temperature", "1.5", "--min-p", "0.1", "--seed", "5"}},
      {"penalties",
       {"--temperature", "1", "--repetition-penalty", "1.3", "--presence-penalty", "0.5",
        "--frequency-penalty", "0.2", "--seed", "6"}},
      {"bias",
       {"--temperature", "0.8", "--logit-bias", "14=-5", "--logit-bias", "20=2", "--seed", "7"}}};
  return cases;
}

TEST(GenerateSampling, CoupledTextDoesNotDependOnTheDecoder) {
  for (const SamplingCase& which : SamplingCases()) {
    auto arguments = Demo({"-n", "16", "--sampler", "coupled"});
    arguments.insert(arguments.end(), which.arguments.begin(), which.arguments.end());
    auto ar = arguments, narrow = arguments;
    ar.insert(ar.end(), {"--decode", "ar"});
    narrow.insert(narrow.end(), {"--depths", "1,3", "--max-rows", "4"});
    const auto expected = Ids(Generate(ar));
    EXPECT_EQ(Ids(Generate(narrow)), expected) << which.name;
  }
}

TEST(GenerateSampling, CascadeTextDoesNotDependOnTheRowBudget) {
  const char *rows = "1", *next = "3";
  for (const SamplingCase& which : SamplingCases()) {
    auto arguments = Demo({"-n", "16"});
    arguments.insert(arguments.end(), which.arguments.begin(), which.arguments.end());
    const auto expected = Ids(Generate(arguments));
    arguments.insert(arguments.end(), {"--max-rows", rows});
    EXPECT_EQ(Ids(Generate(arguments)), expected) << which.name << ", rows " << rows;
    std::swap(rows, next);
  }
}

// A link to every file of the demo model, and a generation_config.json of its own.
std::string DemoThatAsksFor(const Scratch& scratch, const Json& config) {
  const std::filesystem::path folder = scratch.path() / "asking";
  std::filesystem::create_directory(folder);
  for (const auto& entry : std::filesystem::directory_iterator(OuroDemo()))
    std::filesystem::create_symlink(entry.path(), folder / entry.path().filename());
  scratch.Write("asking/generation_config.json", config.dump());
  return folder.string();
}

TEST(GenerateSampling, IsWhatTheModelAsksFor) {
  const Scratch scratch;
  const std::string model =
      DemoThatAsksFor(scratch, {{"do_sample", true}, {"temperature", 1.5}, {"top_k", 30}});
  const auto ids = [&](const std::string& folder, std::vector<std::string> more) {
    more.insert(more.begin(), {"-m", folder, "-p", kStory, "-n", "24", "--ignore-eos"});
    return Ids(Generate(more));
  };
  const auto greedy = ids(OuroDemo(), {});
  const auto asked = ids(OuroDemo(), {"--temperature", "1.5", "--top-k", "30"});
  EXPECT_NE(asked, greedy);
  EXPECT_EQ(ids(model, {}), asked);
  // What is said comes before what the model asks for, option by option.
  EXPECT_EQ(ids(model, {"--temperature", "0"}), greedy);
  EXPECT_EQ(ids(model, {"--top-k", "5"}),
            ids(OuroDemo(), {"--temperature", "1.5", "--top-k", "5"}));
}

TEST(GenerateSampling, SeedsRepeatAndDiffer) {
  std::set<std::vector<int>> seen;
  for (const char* seed : {"0", "1", "2"}) {
    const auto arguments = Demo({"-n", "12", "--temperature", "1", "--seed", seed});
    const auto first = Ids(Generate(arguments));
    EXPECT_EQ(Ids(Generate(arguments)), first);
    seen.insert(first);
  }
  EXPECT_GE(seen.size(), 2u);
}

TEST(GenerateSampling, GreedyPenaltiesAndBiasKeepDecodersEqual) {
  const std::vector<std::string> how = {
      "-n",           "24",     "--repetition-penalty", "1.2", "--frequency-penalty", "0.3",
      "--logit-bias", "16=-100"};
  auto ar = Demo(how);
  ar.insert(ar.end(), {"--decode", "ar"});
  const auto expected = Ids(Generate(ar));
  EXPECT_EQ(Ids(Generate(Demo(how))), expected);
  EXPECT_EQ(std::count(expected.begin(), expected.end(), 16), 0);
  EXPECT_NE(expected, Ids(Generate(Demo({"-n", "24"}))));
}

TEST(GenerateStop, TextEndsBeforeAStopString) {
  const std::string whole = Generate(Demo({"-n", "40"})).at("text");
  ASSERT_GE(whole.size(), 50u);
  // Stop strings that begin inside a token, span tokens, and overlap what comes before them.
  for (const auto& [begin, length] : std::vector<std::pair<size_t, size_t>>{{10, 3}, {30, 20}}) {
    const std::string stop = whole.substr(begin, length);
    const std::string expected = whole.substr(0, whole.find(stop));
    SCOPED_TRACE(stop);
    const Json result = Generate(Demo({"-n", "40", "--stop", stop}));
    EXPECT_EQ(result.at("text"), expected);
    EXPECT_EQ(result.at("finish_reason"), "stop");
    EXPECT_LT(Ids(result).size(), 40u);
    CheckConsistent(result, static_cast<int>(Ids(result).size()));
    const RunResult streamed = Call({"generate", "--model", OuroDemo(), "--prompt", kStory,
                                     "--ignore-eos", "-n", "40", "--stop", stop});
    EXPECT_EQ(streamed.out, expected + "\n");
  }
  // The first of several; and one that never comes changes nothing.
  const std::string early = whole.substr(8, 4), late = whole.substr(40, 4);
  EXPECT_EQ(
      Generate(Demo({"-n", "40", "--stop", late, "--stop", early, "--stop", "~never~"})).at("text"),
      whole.substr(0, std::min(whole.find(early), whole.find(late))));
  EXPECT_EQ(Generate(Demo({"-n", "40", "--stop", "~never~"})).at("text"), whole);
}

TEST(GenerateStop, StopTokensAndEndOfText) {
  const auto ids = Ids(Generate(Demo({"-n", "20"})));
  ASSERT_EQ(ids.size(), 20u);
  const int stop = ids[9];
  const auto first = std::find(ids.begin(), ids.end(), stop) - ids.begin();
  for (const char* decode : {"ar", "loopspec"}) {
    const Json result =
        Generate(Demo({"-n", "20", "--stop-token", std::to_string(stop), "--decode", decode}));
    EXPECT_EQ(Ids(result), std::vector<int>(ids.begin(), ids.begin() + first + 1));
    EXPECT_EQ(result.at("finish_reason"), "stop");
  }
  // A short answer ends by itself, unless told not to; the end token is hidden.
  const std::vector<std::string> question = {
      "--model",
      OuroDemo(),
      "--chat",
      "-n",
      "120",
      "-p",
      "Tom has 3 apples. He buys 4 more. How many apples does Tom have?"};
  const Json answer = Generate(question);
  EXPECT_EQ(answer.at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("text").get<std::string>().find("<|"), std::string::npos);
  auto special = question;
  special.push_back("--show-special");
  EXPECT_NE(Generate(special).at("text").get<std::string>().find("<|im_end|>"), std::string::npos);
  auto endless = question;
  endless.push_back("--ignore-eos");
  const Json longer = Generate(endless);
  EXPECT_EQ(longer.at("finish_reason"), "length");
  EXPECT_EQ(Ids(longer).size(), 120u);
}

TEST(GenerateLogprobs, AreTheLogSoftmaxOfTheLogitsCommand) {
  const Scratch scratch;
  for (const char* sampling : {"0", "1"}) {
    const Json result =
        Generate({"--model", Golden("ouro-tiny-f32"), "--compute", "f32", "--tokens", "3,1,4,1,5",
                  "-n", "8", "--temperature", sampling, "--top-k", "4", "--logprobs", "3"});
    std::vector<int> sequence = {3, 1, 4, 1, 5};
    for (const int id : Ids(result)) sequence.push_back(id);
    const std::string file = scratch / "logits.safetensors";
    const RunResult run =
        Call({"logits", "--model", Golden("ouro-tiny-f32"), "--compute", "f32", "--tokens",
              fmt::format("{}", fmt::join(sequence, ",")), "--depths", "4", "--output", file});
    ASSERT_EQ(run.code, 0) << run.err;
    const Checkpoint logits = Checkpoint::OpenFile(file);
    const TensorView& view = logits.tensors().at("logits");
    ASSERT_EQ(view.shape, (std::vector<int64_t>{1, 13, 288}));
    ASSERT_EQ(result.at("logprobs").size(), 8u);
    for (size_t i = 0; i < 8; ++i) {
      std::vector<float> row(288);
      std::memcpy(row.data(), view.data + (4 + i) * 288 * 4, 288 * 4);
      double sum = 0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      const Json& entry = result.at("logprobs")[i];
      const int id = entry.at("token");
      EXPECT_EQ(id, sequence[5 + i]);
      const double logprob = entry.at("logprob");
      EXPECT_LE(logprob, 0.0);
      EXPECT_NEAR(logprob, row[static_cast<size_t>(id)] - std::log(sum), 2e-4);
      ASSERT_EQ(entry.at("top").size(), 3u);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      EXPECT_EQ(entry.at("top")[0].at("token"), best);
      for (const Json& top : entry.at("top")) {
        EXPECT_NEAR(top.at("logprob").get<double>(),
                    row[top.at("token").get<size_t>()] - std::log(sum), 2e-4);
      }
    }
  }
}

TEST(GenerateTrace, IsWrittenAndDrawn) {
  const Scratch scratch;
  const std::string file = scratch / "trace.json", picture = scratch / "trace.svg";
  const Json result = Generate(Demo({"-n", "16", "--trace", file}));
  const Json trace = Json::parse(Slurp(file));
  EXPECT_EQ(trace.at("recurrence"), 4);
  EXPECT_EQ(trace.at("depths"), Json({1, 2}));
  EXPECT_EQ(trace.at("tokens"), result.at("token_ids"));
  size_t decided = 0;
  for (const Json& event : trace.at("events")) {
    decided += event.at("kind") == "accept" || event.at("kind") == "fallback" ? 1 : 0;
    EXPECT_LE(event.at("step"), result.at("stats").at("steps"));
  }
  EXPECT_EQ(decided, 16u);
  const RunResult drawn = Call({"trace", file, "--svg", picture});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  const std::string svg = Slurp(picture);
  EXPECT_TRUE(svg.starts_with("<svg "));
  // Well-formed: every tag closes, in order; no bare ampersands.
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    if (tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
  for (size_t at = svg.find('&'); at != std::string::npos; at = svg.find('&', at + 1)) {
    EXPECT_LT(svg.find(';', at), at + 7) << svg.substr(at, 20);
  }
  EXPECT_EQ(scratch.Names(), (std::vector<std::string>{"trace.json", "trace.svg"}));
}

TEST(GenerateColor, ColoursAreTheTextBySource) {
  const Json plain = Generate(Demo({"-n", "16"}));
  const RunResult coloured = Call({"generate", "--model", OuroDemo(), "--prompt", kStory,
                                   "--ignore-eos", "-n", "16", "--color"});
  std::string text = coloured.out;
  size_t escapes = 0;
  for (size_t at = text.find('\033'); at != std::string::npos; at = text.find('\033')) {
    text.erase(at, text.find('m', at) - at + 1);
    ++escapes;
  }
  EXPECT_GE(escapes, 16u);
  EXPECT_EQ(text, plain.at("text").get<std::string>() + "\n");
}

TEST(GenerateSmall, ThreeTokensInBothFamilies) {
  const Scratch scratch;
  const std::string ouro = TinyModel::Ouro().Save(scratch, "ouro"),
                    raven = TinyModel::Raven().Save(scratch, "raven");
  for (const std::string& model : {ouro, raven}) {
    for (const char* compute : {"f32", "bf16"}) {
      for (const char* temperature : {"0", "1", "5"}) {
        const std::vector<std::string> common = {
            "--model", model, "--compute", compute,   "--tokens",      "1",
            "-n",      "30",  "--sampler", "coupled", "--temperature", temperature};
        auto ar = common;
        ar.insert(ar.end(), {"--decode", "ar"});
        const auto expected = Ids(Generate(ar));
        ASSERT_EQ(expected.size(), 30u);
        EXPECT_TRUE(std::all_of(expected.begin(), expected.end(),
                                [](int id) { return id >= 0 && id < 3; }));
        EXPECT_EQ(Ids(Generate(common)), expected) << model << compute << temperature;
      }
    }
    // The whole context, to its last position.
    EXPECT_EQ(Ids(Generate({"--model", model, "--tokens", "1,2,0,1", "-n", "60"})).size(), 60u);
    // Without --max-tokens: as much as there is room for.
    EXPECT_EQ(Ids(Generate({"--model", model, "--tokens", "1,2,0,1"})).size(), 60u);
  }
}

TEST(GenerateRecurrence, OneTwoAndSixtyFour) {
  const Scratch scratch;
  const std::string raven = TinyModel::Raven().Save(scratch, "raven");
  for (const std::string& model :
       {Golden("ouro-tiny-f32"), Golden("raven-llama-tiny-f32"), raven}) {
    for (const char* recurrence : {"1", "2", "64"}) {
      const std::vector<std::string> common = {"--model", model, "--tokens",     "1,2",
                                               "-n",      "10",  "--recurrence", recurrence};
      auto ar = common;
      ar.insert(ar.end(), {"--decode", "ar"});
      const Json result = Generate(common);
      EXPECT_EQ(std::to_string(result.at("stats").at("recurrence").get<int>()), recurrence);
      EXPECT_EQ(Ids(result), Ids(Generate(ar)));
      CheckConsistent(result, 10);
    }
  }
}

TEST(GenerateSet, OverridesTheConfig) {
  const Json result = Generate(Demo({"-n", "4", "--set", "total_ut_steps=2"}));
  EXPECT_EQ(result.at("stats").at("recurrence"), 2);
  EXPECT_EQ(Ids(result), Ids(Generate(Demo({"-n", "4", "--recurrence", "2"}))));
  EXPECT_EQ(
      Generate({"--model", OuroDemo(), "--tokens", "1", "--set", "max_position_embeddings=12"})
          .at("finish_reason")
          .get<std::string>()
          .empty(),
      false);
}

// Mapped weights, keys and values, and less than 180 MB besides the program itself.
TEST(GenerateMemory, StaysNearTheWeights) {
  const std::vector<std::string> words = {"generate", "--model",  OuroDemo(), "--device",
                                          "cpu",      "--prompt", kStory,     "--ignore-eos",
                                          "-n",       "150",      "--json"};
  // A call that measures what steps cost takes more: the first one on a machine, and any after
  // steps on a busy machine took as long as no measurement says.
  size_t peak = SIZE_MAX;
  for (int call = 0; call < 4; ++call) {
    const RunResult result = Call(words);
    ASSERT_EQ(result.code, 0) << result.err;
    peak = std::min(peak, result.peak_bytes);
  }
  const size_t weights = std::filesystem::file_size(OuroDemo() + "/model.safetensors");
  const size_t kv = 160 * 2 * 24 * 384 * sizeof(float);
  EXPECT_LT(peak, weights + kv + 180'000'000 + BytesAtRest());
}

TEST(GenerateMemory, KeysAndValuesMayBeAShareOfWhatIsFree) {
  EXPECT_EQ(Ids(Generate(Demo({"-n", "8", "--kv-memory", "1%"}))),
            Ids(Generate(Demo({"-n", "8", "--kv-memory", "64M"}))));
}

// Work, not time, which depends on who else uses the machine; the best of three, since a core that
// is shared with others does less in a second.
TEST(GenerateSpeed, FirstTokensTakeASecondOfWork) {
  double best = 1e9;
  for (int i = 0; i < 3 && best > 0.5; ++i) {
    const RunResult result =
        Call({"generate", "--model", OuroDemo(), "--prompt", kStory, "-n", "2", "--threads", "1"});
    ASSERT_EQ(result.code, 0) << result.err;
    best = std::min(best, result.cpu_seconds);
  }
  EXPECT_LT(best, 1.0);
}

// ---- "-" for standard input and output

TEST(GenerateTrace, ThroughPipes) {
  const Scratch scratch;
  const std::string file = scratch / "trace.json";
  Generate(Demo({"-n", "6", "--trace", file}));
  const RunResult piped = Call({"generate", "--model", OuroDemo(), "--prompt", kStory,
                                "--ignore-eos", "-n", "6", "--trace", "-", "--threads", "1"});
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(piped.out, Slurp(file)) << "the timeline and nothing else";
  RunOptions input;
  input.input = piped.out;
  const RunResult drawn = Call({"trace", "-", "--svg", "-"}, input);
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_TRUE(drawn.out.starts_with("<svg ")) << drawn.out.substr(0, 80);
  EXPECT_TRUE(drawn.out.ends_with("</svg>\n"));
  ExpectRefusal({"generate", "--model", OuroDemo(), "-p", "a", "--json", "--trace", "-"},
                {"--trace", "--json"});
}

// ---- Ctrl-C

TEST(GenerateInterrupt, JsonAndTraceShowWhatIsDone) {
  const Scratch scratch;
  const std::string file = scratch / "t.json";
  std::vector<std::string> endless = {"generate", "--model",      OuroDemo(),  "--prompt",
                                      kStory,     "--ignore-eos", "-n",        "2000",
                                      "--decode", "ar",           "--threads", "1"};
  auto with_json = endless;
  with_json.insert(with_json.end(), {"--json", "--trace", file});
  // Nothing shows from outside when the first token has come: on a slow or busy machine it takes
  // longer.
  Json result;
  for (double seconds = 0.1; seconds < 100 && (result.empty() || Ids(result).empty());
       seconds *= 3) {
    RunOptions interrupt;
    interrupt.interrupt_after = seconds;
    const RunResult stopped = Call(with_json, interrupt);
    ASSERT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_EQ(stopped.err, "");
    result = stopped.json();
    EXPECT_EQ(result.at("finish_reason"), "cancelled");
  }
  const auto ids = Ids(result);
  EXPECT_GE(ids.size(), 1u);
  EXPECT_LT(ids.size(), 2000u);
  EXPECT_EQ(Json::parse(Slurp(file)).at("tokens"), result.at("token_ids"));
  // What came until then is what would have come.
  const auto expected = Ids(Generate(Demo({"-n", std::to_string(ids.size())})));
  EXPECT_EQ(ids, expected);
}

// ---- What is said on standard error

TEST(GenerateNotes, ATextThatWasCutSaysSo) {
  const RunResult cut =
      Call({"generate", "--model", OuroDemo(), "--prompt", kStory, "--ignore-eos", "-n", "3"});
  EXPECT_EQ(cut.err, "loopspec: the text was cut after 3 tokens (-n)\n");
  const RunResult json = Call(
      {"generate", "--model", OuroDemo(), "--prompt", kStory, "--ignore-eos", "-n", "3", "--json"});
  EXPECT_EQ(json.err, "");
  EXPECT_EQ(json.json().at("finish_reason"), "length");
  const RunResult ended =
      Call({"generate", "--model", OuroDemo(), "--chat", "-p",
            "Tom has 3 apples. He buys 4 more. How many apples does Tom have?", "-n", "120"});
  EXPECT_EQ(ended.err, "");
}

TEST(GenerateNotes, ADumbTerminalGetsNoEscapes) {
  const std::vector<std::string> arguments = {"generate", "--model",      OuroDemo(), "--prompt",
                                              kStory,     "--ignore-eos", "-n",       "3"};
  RunOptions terminal;
  terminal.error_terminal = true;
  terminal.environment = {{"TERM", "xterm"}};
  EXPECT_EQ(Call(arguments, terminal).err.find('\033'), std::string::npos) << "NO_COLOR";
  terminal.colour = true;
  EXPECT_NE(Call(arguments, terminal).err.find('\033'), std::string::npos) << "the summary is dim";
  terminal.environment = {{"TERM", "dumb"}};
  const RunResult dumb = Call(arguments, terminal);
  EXPECT_EQ(dumb.code, 0);
  EXPECT_EQ(dumb.err.find('\033'), std::string::npos) << dumb.err;
}

// A prompt that takes more than two seconds, by many recurrences; Ctrl-C ends it then.
TEST(GenerateNotes, ALongPromptShowsProgressOnATerminal) {
  RunOptions terminal;
  for (int i = 0; i < 500; ++i) terminal.input += "word ";
  terminal.error_terminal = true;
  terminal.environment = {{"TERM", "xterm"}};
  terminal.interrupt_after_error = true;
  terminal.timeout = 1000;  // ends a test that hangs, and none on a busy machine
  const RunResult shown =
      Call({"generate", "--model", OuroDemo(), "-f", "-", "-n", "1", "--recurrence", "200",
            "--threads", "1", "--decode", "ar", "--json"},
           terminal);
  EXPECT_EQ(shown.code, 130) << shown.err;
  EXPECT_NE(shown.err.find("\rreading the prompt: "), std::string::npos) << shown.err;
  EXPECT_TRUE(shown.err.ends_with("\r\033[K")) << "and takes it away again";
  EXPECT_EQ(shown.json().at("finish_reason"), "cancelled");
  EXPECT_TRUE(Ids(shown.json()).empty());
}

TEST(GenerateEnd, InterruptAndClosedPipe) {
  RunOptions interrupt;
  interrupt.signal_after_output = SIGINT;
  const std::vector<std::string> endless = {"generate", "--model",      OuroDemo(), "--prompt",
                                            kStory,     "--ignore-eos", "-n",       "2000"};
  const RunResult stopped = Call(endless, interrupt);
  EXPECT_FALSE(stopped.timed_out);
  EXPECT_TRUE(stopped.signal == SIGINT || stopped.code == 130)
      << stopped.signal << " " << stopped.code;
  EXPECT_EQ(stopped.err, "");

  RunOptions leave;
  leave.close_output_early = true;
  const RunResult left = Call(endless, leave);  // as `| head -c 10`: stops at once, and quietly
  EXPECT_FALSE(left.timed_out);
  EXPECT_EQ(left.signal, 0);
  EXPECT_EQ(left.code, 0);
  EXPECT_EQ(left.err, "");
}

// ---- Grammars

TEST(Grammar, HoldsForTheText) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    const std::string path = (folder.path() / name).string();
    std::ofstream(path) << text;
    return path;
  };
  const auto generate = [&](const std::vector<std::string>& more, const std::string& input = {}) {
    std::vector<std::string> arguments = {"generate", OuroDemo(), kStory, "-n", "60"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    RunOptions options;
    options.input = input;
    const RunResult result = Call(arguments, options);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string answer = generate({"--regex", "(big|small) (cat|dog)\\."});
  EXPECT_TRUE(answer == "big cat.\n" || answer == "big dog.\n" || answer == "small cat.\n" ||
              answer == "small dog.\n")
      << answer;
  const std::string schema = R"({"type": "object", "properties": {"n": {"enum": [1, 2]}},
                                 "required": ["n"], "additionalProperties": false})";
  for (const auto& [option, input] :
       {std::pair{write("schema.json", schema), std::string()}, std::pair{std::string("-"), schema},
        std::pair{schema, std::string()}}) {
    const Json json = Json::parse(generate({"--json-schema", option}, input));
    EXPECT_TRUE(json == Json({{"n", 1}}) || json == Json({{"n", 2}})) << json;
  }
  EXPECT_EQ(generate({"--grammar", write("list.gbnf", "root ::= \"x\" \"y\"\n")}), "xy\n");
  EXPECT_EQ(generate({"--grammar", "root ::= \"y\" \"x\""}), "yx\n");

  const auto refused = [&](const std::vector<std::string>& more,
                           const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {"generate", OuroDemo(), kStory};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ExpectRefusal(arguments, words);
  };
  refused({"--regex", "a", "--json-schema", "-"}, {"--json-schema", "--regex"});
  refused({"--regex", "a", "--ignore-eos"}, {"--ignore-eos"});
  refused({"--regex", "("}, {"("});
  refused({"--json-schema", write("hard.json", R"({"type": "object", "minProperties": 3})")},
          {"minProperties"});
  refused({"--json-schema", "nowhere.json"}, {"nowhere.json"});
  refused({"--json-schema", R"({"type": "objec"})"}, {"objec"});
}

}  // namespace
}  // namespace loopspec::test

// The other commands of loopspec from outside.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "tensor/safetensors.h"
#include "tests/tools/cli.h"
#include "tests/tools/tiny_model.h"

namespace loopspec::test {
namespace {

// ---- help

TEST(Help, EveryCommandNamesItsOptions) {
  const std::vector<std::string> model = {"--model",  "--recurrence", "--set",
                                          "--device", "--compute",    "--threads"};
  const std::vector<std::string> sampling = {"--temperature",
                                             "--top-k",
                                             "--top-p",
                                             "--min-p",
                                             "--repetition-penalty",
                                             "--presence-penalty",
                                             "--frequency-penalty",
                                             "--logit-bias",
                                             "--sampler",
                                             "--seed"};
  const auto join = [](std::vector<std::string> all, const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"generate",
       join(join(model, sampling),
            {"--prompt", "--prompt-file", "--tokens", "--chat", "--max-tokens", "--decode",
             "--depths", "--max-rows", "--stop", "--stop-token", "--ignore-eos", "--json",
             "--logprobs", "--color", "--trace", "Examples:"})},
      {"chat", join(join(model, sampling),
                    {"--decode", "--depths", "--max-rows", "--max-tokens", "--system"})},
      {"bench",
       join(join(model, sampling), {"--prompts", "--decode", "--max-tokens", "--repeat", "--json",
                                    "--assume-acceptance", "--concurrency", "--prompt-tokens",
                                    "--task", "--csv", "--html", "--records", "Examples:"})},
      {"batch", join(model, {"--input", "--output", "--order", "--chat", "--max-tokens", "--depths",
                             "Example"})},
      {"calibrate",
       join(model, {"--prompts", "--prompt-tokens", "--positions", "--prompt-positions",
                    "--measure-tokens", "--view", "--temperature", "--top-p", "--measure",
                    "--output", "--json", "Example"})},
      {"simulate",
       {"--rates", "--gate", "--context", "--cost", "--model", "--depths", "--json", "Example"}},
      {"experiment", {"list", "run", "report"}},
      {"inspect", join(model, {"--json"})},
      {"logits", join(model, {"--tokens", "--depths", "--output"})},
      {"tokenize", {"--model", "--file", "--no-special", "--json"}},
      {"detokenize", {"--model", "--file", "--skip-special", "--json"}},
      {"template", {"--model", "--messages", "--no-generation-prompt", "--template-arg"}},
      {"grammar", {"check", "mask"}},
      {"trace", {"--svg", "--from", "--steps"}}};
  const RunResult top = Call({"--help"});
  EXPECT_EQ(top.code, 0);
  for (const auto& [command, options] : commands) {
    EXPECT_NE(top.out.find("  " + command + " "), std::string::npos) << command;
    const RunResult help = Call({command, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    for (const std::string& option : options) {
      EXPECT_NE(help.out.find(option), std::string::npos) << command << " " << option;
    }
  }
  const std::string version = Call({"--version"}).out;
  EXPECT_TRUE(version.starts_with("loopspec 0.")) << version;
  EXPECT_NE(version.find("\nbackends: cpu ("), std::string::npos) << version;
  EXPECT_NE(version.find("\nparts: "), std::string::npos) << version;
}

// ---- inspect

TEST(Inspect, TheDemoModel) {
  const Json json = Call({"inspect", "--model", OuroDemo(), "--json"}).json();
  EXPECT_EQ(json.at("family"), "ouro");
  EXPECT_EQ(json.at("parameters"), 13772160);
  EXPECT_EQ(json.at("recurrence"), 4);
  EXPECT_EQ(json.at("vocab"), 8192);
  EXPECT_EQ(json.at("layers"), (Json{{"prelude", 0}, {"core", 6}, {"coda", 0}}));
  EXPECT_EQ(json.at("default_depths"), Json({1, 2}));
  // Six layers at four depths, 6 heads of 64, keys and values, two bytes.
  EXPECT_EQ(json.at("kv_bytes_per_token_bf16"), 6 * 4 * 6 * 64 * 2 * 2);
  // Norms 4 x 384 and matrices 4 x 384^2 + 3 x 384 x 1024 per layer, a norm after them; the head is
  // the embedding.
  EXPECT_EQ(json.at("bytes").at("core"),
            2 * (6 * (4 * 384 + 4 * 384 * 384 + 3 * 384 * 1024) + 384));
  EXPECT_EQ(json.at("bytes").at("coda"), 2 * 384 * 8192);
  EXPECT_EQ(json.at("gpu_weight_bytes"), 2 * (384 * 8192 + 6 * (4 * 384 * 384 + 3 * 384 * 1024)));
  const RunResult text = Call({"inspect", "--model", OuroDemo()});
  EXPECT_EQ(text.code, 0);
  for (const char* word : {"13.8 M parameters", "recurrences R", "P, prelude", "B, one recurrence",
                           "C, readout", "KV per token", "21.3 MB"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  EXPECT_EQ(
      Call({"inspect", "--model", OuroDemo(), "--recurrence", "32", "--device", "cpu", "--json"})
          .json()
          .at("default_depths"),
      Json({4, 8}));
}

TEST(Inspect, KeysByAPlan) {
  const Json json = Call({"inspect", "--model", OuroDemo(), "--kv-type", "loops:int8,r5,r4",
                          "--device", "cpu", "--json"})
                        .json();
  EXPECT_EQ(json.at("kv_type"), "loops:int8,r5,r4@64");
  // Six layers of six heads, keys and values: two loops with 64 bytes and a scale of 4, residuals
  // of 40 and of 32 bytes with scales of 2.
  const int64_t per_token = 6 * 6 * 2 * (2 * 68 + 42 + 34);
  EXPECT_EQ(json.at("kv_bytes_per_token"), per_token);
  // Two loops of int8 for two spans fit into a page each.
  EXPECT_EQ(json.at("kv_bytes_per_window"), 2 * 64 * per_token);
}

TEST(Inspect, TheDefaultPlanOfKeys) {
  const auto plan = [](const std::string& model) {
    return Call({"inspect", "--model", model, "--kv-type", "loops", "--device", "cpu", "--json"})
        .json()
        .at("kv_type");
  };
  EXPECT_EQ(plan(OuroDemo()), "loops:int8,r5,r4@64");
  EXPECT_EQ(plan(RavenDemo()), "loops:int8*8,last@64");
  RunOptions setting;
  setting.environment = {{"LOOPSPEC_KV_TYPE", "loops"}};
  const RunResult text = Call({"inspect", "--model", OuroDemo(), "--device", "cpu"}, setting);
  EXPECT_NE(text.out.find("int8,r5,r4@64: "), std::string::npos) << text.out;
  ExpectRefusal({"inspect", "--model", OuroDemo(), "--recurrence", "3", "--kv-type", "loops",
                 "--device", "cpu"},
                {"--kv-type", "loops:PLAN", "ouro models of 3 loops", "calibrate --keys"});
  ExpectRefusal({"inspect", "--model", OuroDemo(), "--recurrence", "1", "--kv-type", "loops"},
                {"--kv-type", "one loop"});
}

TEST(Inspect, AllLayouts) {
  for (const char* name : {"ouro-tiny-f32", "ouro-tiny-gqa-bf16-sharded", "raven-llama-tiny-f32",
                           "raven-olmo-tiny-bf16"}) {
    const Json json = Call({"inspect", "--model", Golden(name), "--json"}).json();
    EXPECT_EQ(json.at("hidden"), 64);
    EXPECT_EQ(json.at("family"), std::string(name).substr(0, std::string(name).find('-')));
  }
}

// ---- logits

TEST(Logits, MatchTheGoldens) {
  const Scratch scratch;
  for (const char* name : {"ouro-tiny-f32", "ouro-tiny-gqa-bf16-sharded", "raven-llama-tiny-f32",
                           "raven-olmo-tiny-bf16"}) {
    const Checkpoint golden = Checkpoint::OpenFile(Golden(name) + "/golden.safetensors");
    const TensorView& ids = golden.tensors().at("input_ids");
    const TensorView& expected = golden.tensors().at("logits");
    const int64_t depths = expected.shape[0], positions = expected.shape[1],
                  vocab = expected.shape[2];
    std::vector<int32_t> tokens(static_cast<size_t>(positions));
    std::memcpy(tokens.data(), ids.data, ids.bytes());
    const std::string list = fmt::format("{}", fmt::join(tokens, ","));
    std::vector<float> want(static_cast<size_t>(expected.elements()));
    std::memcpy(want.data(), expected.data, expected.bytes());
    float scale = 0;
    for (const float logit : want) scale = std::max(scale, std::fabs(logit));
    for (const bool subset : {false, true}) {
      const std::string file = scratch / "l.safetensors";
      const RunResult run =
          Call({"logits", "--model", Golden(name), "--compute", "f32", "--threads", "1", "--tokens",
                list, "--depths", subset ? "2,4" : "all", "-o", file});
      ASSERT_EQ(run.code, 0) << run.err;
      const Checkpoint ours = Checkpoint::OpenFile(file);
      const TensorView& got = ours.tensors().at("logits");
      ASSERT_EQ(got.shape, (std::vector<int64_t>{subset ? 2 : depths, positions, vocab}));
      double worst = 0;
      for (int64_t d = 0; d < got.shape[0]; ++d) {
        const int64_t depth = subset ? 2 * d + 1 : d;
        for (int64_t i = 0; i < positions * vocab; ++i) {
          float value = 0;
          std::memcpy(&value, got.data + (d * positions * vocab + i) * 4, 4);
          worst =
              std::max(worst, std::fabs(static_cast<double>(value) -
                                        want[static_cast<size_t>(depth * positions * vocab + i)]));
        }
      }
      EXPECT_LE(worst, 2e-4 * scale) << name;
    }
  }
  EXPECT_EQ(scratch.Names(), std::vector<std::string>{"l.safetensors"});
}

TEST(Logits, ToStandardOutput) {
  const Scratch scratch;
  const std::vector<std::string> arguments = {
      "logits", "--model", Golden("ouro-tiny-f32"), "--tokens", "1,2,3", "--threads", "1", "-o"};
  auto to_file = arguments, to_output = arguments;
  to_file.push_back(scratch / "l.safetensors");
  to_output.push_back("-");
  EXPECT_EQ(Call(to_file).code, 0);
  const RunResult piped = Call(to_output);
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(piped.out, Slurp(scratch / "l.safetensors"));
}

// ---- bench

TEST(Bench, ComparesWaysOfDecoding) {
  const Scratch scratch;
  const std::string prompts = scratch.Write(
      "p.txt", "Once upon a time\n\n{\"question\": \"What is 2 + 2?\", \"answer\": \"#### 4\"}\n");
  const std::vector<std::string> arguments = {
      "bench",    "--model",      OuroDemo(), "--prompts",      prompts, "--decode", "ar",
      "--decode", "loopspec:1,2", "--decode", "loopspec:1,2@2", "-n",    "10",       "--repeat",
      "2",        "--threads",    "1",        "--ignore-eos"};
  auto with_json = arguments;
  with_json.push_back("--json");
  const Json json = Call(with_json).json();
  EXPECT_EQ(json.at("prompts"), 2);
  EXPECT_FALSE(json.contains("timing_simulation"));
  ASSERT_EQ(json.at("results").size(), 3u);
  for (const Json& result : json.at("results")) {
    EXPECT_EQ(result.at("equal"), true);
    EXPECT_EQ(result.at("decoded_tokens"), 20);
    EXPECT_GT(result.at("tokens_per_second").at("median").get<double>(), 0);
    EXPECT_LE(result.at("tokens_per_second").at("min"), result.at("tokens_per_second").at("max"));
  }
  EXPECT_TRUE(json.at("results")[1].at("speedup").is_null());  // 20 tokens say nothing about it
  EXPECT_LE(json.at("results")[2].at("rows_peak"), 2);
  const RunResult table = Call(arguments);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* word : {"tokens/s", "speedup", "gamma", "loopspec:1,2@2", "yes"}) {
    EXPECT_NE(table.out.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(table.out.find("SIMULATION"), std::string::npos);

  // Assumed acceptance is a simulation, and says so in both forms.
  for (std::vector<std::string>* form :
       {&with_json, const_cast<std::vector<std::string>*>(&arguments)}) {
    auto simulated = *form;
    simulated.insert(simulated.end(),
                     {"--assume-acceptance", "0.9,0.075", "--limit", "1", "--repeat", "1"});
    simulated.erase(std::find(simulated.begin(), simulated.end(), "--repeat"),
                    std::find(simulated.begin(), simulated.end(), "--repeat") + 2);
    const RunResult run = Call(simulated);
    EXPECT_EQ(run.code, 0) << run.err;
    const bool json_form = form == &with_json;
    EXPECT_NE(run.out.find(json_form ? "timing_simulation" : "TIMING SIMULATION"),
              std::string::npos)
        << run.out;
    EXPECT_EQ(run.out.find("\"equal\""), std::string::npos);
  }
}

TEST(Bench, AnInterruptShowsTheRunsThatAreDone) {
  const Scratch scratch;
  std::string prompts;
  for (int i = 0; i < 400; ++i) prompts += "Once upon a time\n";
  RunOptions interrupt;
  interrupt.error_terminal = true;  // the first words there are of runs that are done
  interrupt.environment = {{"TERM", "xterm"}};
  interrupt.interrupt_after_error = true;
  interrupt.input = prompts;
  const std::vector<std::string> arguments = {
      "bench", "--model", OuroDemo(), "--prompts", "-",         "--decode", "ar",
      "-n",    "2",       "--repeat", "1000",      "--threads", "1",        "--ignore-eos"};
  const RunResult table = Call(arguments, interrupt);
  EXPECT_EQ(table.code, 130) << table.err;
  EXPECT_NE(table.out.find("INTERRUPTED"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\nar "), std::string::npos) << table.out;
  auto with_json = arguments;
  with_json.push_back("--json");
  const RunResult stopped = Call(with_json, interrupt);
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  const Json json = stopped.json();
  EXPECT_EQ(json.at("interrupted"), true);
  EXPECT_EQ(json.at("results").size(), 1u);
  for (const Json& result : json.at("results")) {
    EXPECT_EQ(result.at("equal"), true);
    EXPECT_GT(result.at("tokens_per_second").at("median").get<double>(), 0);
  }
}

// The tiny model fits into the nearest cache: faster than memory, and the table says why.
TEST(Bench, AFloorOverAHundredPercentIsExplained) {
  const Scratch scratch;
  const std::string prompts = scratch.Write("p.txt", "Once upon a time\n");
  const RunResult table =
      Call({"bench", "--model", OuroDemo(), "--prompts", prompts, "--decode", "ar", "--decode",
            "loopspec:1,2", "-n", "10", "--repeat", "1", "--threads", "1", "--ignore-eos"});
  ASSERT_EQ(table.code, 0) << table.err;
  // Whatever this machine reaches: the sentence stands there exactly when a share is over 100 %.
  bool over = false;
  for (size_t at = table.out.find(" %"); at != std::string::npos;
       at = table.out.find(" %", at + 1)) {
    const size_t begin = table.out.rfind(' ', at - 1) + 1;
    over = over || std::strtod(table.out.c_str() + begin, nullptr) > 100;
  }
  EXPECT_EQ(table.out.find("faster than memory") != std::string::npos, over) << table.out;
}

// ---- grammar

TEST(GrammarCommand, ChecksGrammarsAndTexts) {
  const Scratch scratch;
  const std::string schema = scratch.Write(
      "schema.json", R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  EXPECT_EQ(Call({"grammar", "check", "--schema", schema}).code, 0);
  const std::string good = scratch.Write("good", "{\"a\": 12}\n");
  EXPECT_EQ(Call({"grammar", "check", "--schema", schema, "--text", good}).out, "valid\n");
  const std::string bad = scratch.Write("bad", R"({"a": "x"})");
  const RunResult invalid = Call({"grammar", "check", "--schema", schema, "--text", bad});
  EXPECT_EQ(invalid.code, 2);
  EXPECT_NE(invalid.err.find("invalid at byte 6"), std::string::npos) << invalid.err;
  const std::string short_text = scratch.Write("short", R"({"a": 1)");
  EXPECT_NE(Call({"grammar", "check", "--schema", schema, "--text", short_text})
                .err.find("ends too early"),
            std::string::npos);
  const std::string hard = scratch.Write("hard.json", R"({"type":"object","minProperties":3})");
  const RunResult refused = Call({"grammar", "check", "--schema", hard});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("minProperties"), std::string::npos) << refused.err;
  const RunResult loose = Call({"grammar", "check", "--schema", hard, "--loose"});
  EXPECT_EQ(loose.code, 0);
  EXPECT_NE(loose.err.find("ignored: minProperties"), std::string::npos) << loose.err;
  EXPECT_EQ(Call({"grammar", "check"}).code, 2);
}

TEST(GrammarCommand, ListsTheTokensThatMayComeNext) {
  const Scratch scratch;
  const std::string text = scratch.Write("text", "ye");
  const Json next = Call({"grammar", "mask", "--model", OuroDemo(), "--regex", "yes|no", "--text",
                          text, "--json"})
                        .json();
  EXPECT_EQ(next.at("forced"), "s");
  EXPECT_EQ(next.at("may_end"), false);
  ASSERT_EQ(next.at("tokens").size(), 1u);
  const std::string id = std::to_string(next.at("tokens")[0].get<int>());
  EXPECT_EQ(Call({"detokenize", "--model", OuroDemo(), id}).out, "s");
}

// ---- tokenize, detokenize, template

TEST(Tokenize, RoundTripsEveryByte) {
  const Scratch scratch;
  for (const std::string& text :
       {std::string("Hello, world!\n"), std::string("  two  spaces\t\ttabs\r\n\n\n"),
        std::string("caf\xc3\xa9 \xf0\x9f\x98\x80"), std::string("x"), std::string("\n"),
        std::string("a\0b", 3)}) {
    SCOPED_TRACE(text);
    const std::string file = scratch.Write("text", text);
    const RunResult ids = Call({"tokenize", "--model", OuroDemo(), "--no-special", "--file", file});
    ASSERT_EQ(ids.code, 0) << ids.err;
    RunOptions piped;
    piped.input = text;
    EXPECT_EQ(Call({"tokenize", "--model", OuroDemo(), "--no-special", "-"}, piped).out, ids.out);
    const Json json =
        Call({"tokenize", "--model", OuroDemo(), "--no-special", "--file", file, "--json"}).json();
    ASSERT_EQ(json.size(), 1u);
    EXPECT_EQ(fmt::format("{}\n", fmt::join(json.at("tokens").get<std::vector<int>>(), ",")),
              ids.out);
    EXPECT_EQ(Call({"detokenize", "--model", OuroDemo(), ids.out}).out, text);
    piped.input = json.dump();
    EXPECT_EQ(Call({"detokenize", "--model", OuroDemo(), "-"}, piped).out, text);
    const std::string list = scratch.Write("ids", ids.out);
    EXPECT_EQ(
        Call({"detokenize", "--model", OuroDemo(), "--file", list, "--json"}).json().at("text"),
        text);
  }
}

TEST(Tokenize, StandardInputAsAFile) {
  RunOptions piped;
  piped.input = "Hello, world!";
  const RunResult ids = Call({"tokenize", "--model", OuroDemo(), "--file", "-"}, piped);
  EXPECT_EQ(ids.out, Call({"tokenize", "--model", OuroDemo(), "Hello, world!"}).out);
  piped.input = ids.out;
  EXPECT_EQ(Call({"detokenize", "--model", OuroDemo(), "--file", "-"}, piped).out, "Hello, world!");
}

TEST(Tokenize, NeedsNoWeights) {
  const Scratch scratch;
  std::filesystem::copy_file(OuroDemo() + "/tokenizer.json", scratch / "tokenizer.json");
  EXPECT_EQ(Call({"tokenize", "--model", scratch.path(), "Hello"}).out,
            Call({"tokenize", "--model", OuroDemo(), "Hello"}).out);
  // Special tokens in running text, shown and hidden.
  const std::string ids = Call({"tokenize", "--model", scratch.path(), "a<|im_end|>b"}).out;
  EXPECT_EQ(Call({"detokenize", "--model", scratch.path(), ids}).out, "a<|im_end|>b");
  EXPECT_EQ(Call({"detokenize", "--model", scratch.path(), "--skip-special", ids}).out, "ab");
}

TEST(Template, RendersAConversation) {
  const Scratch scratch;
  const std::string file = scratch.Write("m.json", R"([{"role": "user", "content": "Hi <b>"}])");
  EXPECT_EQ(Call({"template", "--model", OuroDemo(), "--messages", file}).out,
            "<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      Call({"template", "--model", OuroDemo(), "--messages", file, "--no-generation-prompt"}).out,
      "<|im_start|>user\nHi <b><|im_end|>\n");
  const std::string own =
      scratch.Write("own/tokenizer_config.json",
                    R"({"chat_template": "{{ flag }}/{{ word }}/{{ messages | length }}"})");
  EXPECT_EQ(Call({"template", "--model", std::filesystem::path(own).parent_path(), "--messages",
                  file, "--template-arg", "flag=[1, true]", "--template-arg", "word=a=b"})
                .out,
            "[1, True]/a=b/1");
}

// ---- chat

TEST(Chat, ThroughAPipe) {
  RunOptions piped;
  piped.input =
      "/stats\nTell me a story about a dog.\n/stats\n/help\n/bogus\n/clear\n\nTell me a story "
      "about a dog.\n/quit\nnever said\n";
  const RunResult result =
      Call({"chat", "--model", OuroDemo(), "-n", "12", "--threads", "1"}, piped);
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string cut = "loopspec: the text was cut after 12 tokens (-n)\n";
  EXPECT_EQ(result.err, cut + cut);
  const Json answer =
      Generate({"--model", OuroDemo(), "--chat", "-p", "Tell me a story about a dog.", "-n", "12"});
  const std::string text = answer.at("text").get<std::string>() + "\n";
  const size_t first = result.out.find(text);
  ASSERT_NE(first, std::string::npos) << result.out;
  EXPECT_NE(result.out.find(text, first + 1), std::string::npos)
      << "after /clear the same answer comes again: " << result.out;
  EXPECT_NE(result.out.find("nothing said yet"), std::string::npos);
  EXPECT_NE(result.out.find("12 tokens"), std::string::npos);
  EXPECT_NE(result.out.find("unknown command /bogus"), std::string::npos);
  EXPECT_NE(result.out.find("/clear   forget"), std::string::npos);
  EXPECT_EQ(result.out.find("> "), std::string::npos) << "no prompt when piped";

  // The conversation is kept: without /clear the second answer sees the first. And the end of input
  // is the end.
  piped.input = "Hello.\nTell me a story about a dog.\n";
  const RunResult kept = Call({"chat", "--model", OuroDemo(), "-n", "4", "--threads", "1"}, piped);
  EXPECT_EQ(kept.code, 0);
  EXPECT_EQ(std::count(kept.out.begin(), kept.out.end(), '\n') >= 2, true);
  piped.input = "";
  EXPECT_EQ(Call({"chat", "--model", OuroDemo()}, piped).out, "");
}

TEST(Chat, LinesThatEndWithCarriageReturns) {
  RunOptions piped, windows;
  piped.input = "Tell me a story about a dog.\n/stats\n";
  windows.input = "Tell me a story about a dog.\r\n\r\n/bogus\r\n/quit\r\nnever said\r\n";
  const std::vector<std::string> arguments = {"chat", "--model",   OuroDemo(), "-n",
                                              "8",    "--threads", "1"};
  const std::string answer = Call(arguments, piped).out;
  const RunResult result = Call(arguments, windows);
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string text = answer.substr(0, answer.find('\n') + 1);
  EXPECT_TRUE(result.out.starts_with(text + "unknown command /bogus\n")) << result.out;
}

// A terminal: Ctrl-C stops the answer, and at the prompt nothing; Ctrl-D leaves.
TEST(Chat, AtATerminal) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child < 0) GTEST_SKIP() << "no pseudo terminal to be had";
  if (child == 0) {
    const std::string binary = Binary(), model = OuroDemo();
    // Whoever runs the test has a home with an .editrc, and a locale.
    const char* environment[] = {"HOME=/dev/null/home", "LC_ALL=C.UTF-8", "TERM=dumb", nullptr};
    execle(binary.c_str(), binary.c_str(), "chat", "--model", model.c_str(), "-n", "1900",
           "--logit-bias", "0=-100", "--logit-bias", "1=-100", "--logit-bias", "2=-100",
           "--logit-bias", "3=-100", nullptr, environment);
    _exit(127);
  }
  std::string seen;
  const auto until = [&](const std::string& word, size_t from, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (seen.find(word, from) == std::string::npos && std::chrono::steady_clock::now() < end) {
      pollfd wait = {terminal, POLLIN, 0};
      if (poll(&wait, 1, 100) != 1) continue;
      char block[4096];
      const ssize_t count = read(terminal, block, sizeof(block));
      if (count <= 0) break;
      seen.append(block, static_cast<size_t>(count));
    }
    return seen.find(word, from) != std::string::npos;
  };
  const auto type = [&](const std::string& keys) {
    EXPECT_EQ(write(terminal, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  };
  EXPECT_TRUE(until("> ", 0, 120)) << seen;
  size_t mark = seen.size();
  type("half a line");
  EXPECT_TRUE(until("half a line", mark, 120)) << seen;
  usleep(300'000);  // as a person would: the program waits for keys again
  type("\x03");     // at the prompt: the line goes, the program stays
  EXPECT_TRUE(until("> ", mark, 120)) << seen;
  mark = seen.size();
  type("Tell me a story about a dog.\r");
  EXPECT_TRUE(until("Once", mark, 120)) << seen;
  mark = seen.size();
  type("\x03");  // during the answer: it ends, the prompt comes back
  EXPECT_TRUE(until("> ", mark, 120)) << seen;
  mark = seen.size();
  type("/stats\r");
  EXPECT_TRUE(until("tokens/s", mark, 120)) << seen;
  EXPECT_TRUE(until("> ", seen.find("tokens/s", mark), 120)) << seen;
  usleep(300'000);  // as a person would
  int status = 0;
  pid_t ended = 0;
  for (int i = 0; i < 400 && ended == 0; ++i) {
    // Between the prompt and the editor's taking over, the terminal makes something else of the
    // key, which then stands in the line: so the line is emptied (Ctrl-U) before the next try.
    if (i % 20 == 0) type(i == 0 ? "\x04" : "\x15\x04");
    until("~never~", 0, 0.05);
    ended = waitpid(child, &status, WNOHANG);
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << seen;
  close(terminal);
}

// ---- the Hugging Face cache

TEST(HuggingFaceCache, FindsSnapshotsBehindLinks) {
  const Scratch scratch;
  namespace fs = std::filesystem;
  const std::string stored = TinyModel::Ouro().Save(scratch, "stored");
  const fs::path repository = scratch.path() / "home/hub/models--org--tiny";
  const fs::path snapshot = repository / "snapshots/abc123";
  fs::create_directories(snapshot);
  fs::create_directories(repository / "blobs");
  fs::create_directories(repository / "snapshots/old");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(fs::path(stored) / name, repository / "blobs" / name);
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  scratch.Write("home/hub/models--org--tiny/refs/main", "abc123\n");
  const std::vector<std::string> arguments = {"generate", "--model", "org/tiny", "--tokens",
                                              "1",        "-n",      "3",        "--json"};
  RunOptions home, cache, absent;
  home.environment = {{"HF_HOME", scratch / "home"}};
  cache.environment = {{"HF_HUB_CACHE", scratch / "home/hub"}, {"HF_HOME", "/nonexistent"}};
  EXPECT_EQ(Ids(Call(arguments, home).json()).size(), 3u);
  EXPECT_EQ(Ids(Call(arguments, cache).json()).size(), 3u);
  absent.environment = {{"HF_HOME", scratch / "elsewhere"}};
  ExpectRefusal(arguments, {"org/tiny", "hf download org/tiny", scratch / "elsewhere"}, absent);
  fs::remove(repository /
             "blobs/model.safetensors");  // a dangling link: the download was not finished
  ExpectRefusal(arguments, {"model.safetensors"}, home);
}

}  // namespace
}  // namespace loopspec::test

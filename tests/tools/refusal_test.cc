// Everything a user can get wrong: one sentence that names it, exit code 2, nothing half-done left
// behind.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/tools/cli.h"
#include "tests/tools/tiny_model.h"

namespace loopspec::test {
namespace {

TEST(CommandLine, IsCheckedBeforeAnythingRuns) {
  const std::string model = OuroDemo();
  ExpectRefusal({}, {"no command", "generate", "--help"});
  ExpectRefusal({"bogus"}, {"bogus", "generate"});
  ExpectRefusal({"generate"}, {"--model", "generate --help"});
  ExpectRefusal({"generate", "--model", model}, {"--prompt", "--tokens"});
  ExpectRefusal({"generate", "--model", model, "-p", "a", "--tokens", "1"},
                {"--prompt", "--tokens"});
  ExpectRefusal({"generate", "--model", model, "-p", "a", "--bogus"}, {"--bogus"});
  ExpectRefusal({"generate", "--model", model, "-p", "a", "stray"}, {"needs one prompt"});
  ExpectRefusal({"generate", "--model", model, "--tokens", "1", "--chat"}, {"--tokens", "--chat"});
  ExpectRefusal({"generate", "--model", model, "-p", "a", "--system", "s"}, {"--system", "--chat"});
  ExpectRefusal({"generate", "--model", model, "-p", "a", "--logprobs", "2"},
                {"--logprobs", "--json"});
  ExpectRefusal({"generate", "--model", model, "-p", "a", "--json", "--color"},
                {"--json", "--color"});
  ExpectRefusal({"logits", "--model", model, "-o", "x"}, {"--tokens"});
  ExpectRefusal({"bench", "--model", model, "--prompts", "x"}, {"cannot open x"});
  ExpectRefusal({"tokenize", "--model", model}, {"text"});
  ExpectRefusal({"tokenize", "--model", model, "a", "--file", "b"}, {"one text"});
  ExpectRefusal({"trace", "x"}, {"cannot open x"});
  ExpectRefusal({"generate", "--model", "", "-p", "a"}, {"--model"});
  ExpectRefusal({"generate", "--model", "/no/such/folder", "-p", "a"}, {"/no/such/folder"});
  ExpectRefusal({"generate", "--model", model + "/config.json", "-p", "a"},
                {"config.json", "file"});
}

TEST(Values, OutOfRangeAreNamed) {
  const Scratch scratch;
  const std::string model = TinyModel::Ouro().Save(scratch, "m");
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"--max-tokens", "0"}, {"--max-tokens", "0"}},
      {{"--max-tokens", "64"}, {"--max-tokens is 64", "at most 63", "context 64"}},
      {{"--max-tokens", "1000000000"}, {"1000000000", "64"}},
      {{"--temperature", "-1"}, {"temperature", "-1"}},
      {{"--temperature", "nan"}, {"temperature", "nan"}},
      {{"--temperature", "hot"}, {"--temperature", "hot"}},
      {{"--top-k", "-2"}, {"--top-k is -2", "-1 or more"}},
      {{"--top-p", "0"}, {"top-p"}},
      {{"--top-p", "1.5"}, {"top-p"}},
      {{"--min-p", "2"}, {"min-p"}},
      {{"--repetition-penalty", "0"}, {"repetition"}},
      {{"--presence-penalty", "inf"}, {"presence"}},
      {{"--logit-bias", "5"}, {"--logit-bias", "5"}},
      {{"--logit-bias", "3=1"}, {"3", "vocabulary"}},
      {{"--logit-bias", "1=x"}, {"--logit-bias"}},
      {{"--seed", "-1"}, {"--seed", "-1"}},
      {{"--seed", "18446744073709551616"}, {"--seed"}},
      {{"--depths", "nonsense"}, {"nonsense"}},
      {{"--depths", "0"}, {"depths", "0"}},
      {{"--depths", "2,1"}, {"2,1"}},
      {{"--depths", "4"}, {"depths", "4"}},
      {{"--depths", "1,"}, {"1,"}},
      {{"--depths", ""}, {"--depths"}},
      {{"--depths", "1", "--decode", "ar"}, {"--depths", "--decode ar"}},
      {{"--decode", "magic"}, {"--decode", "magic"}},
      {{"--sampler", "dice"}, {"--sampler", "dice"}},
      {{"--compute", "f16"}, {"--compute", "f16"}},
      {{"--threads", "-1"}, {"--threads"}},
      {{"--max-rows", "257"}, {"--max-rows"}},
      {{"--recurrence", "0"}, {"--recurrence"}},
      {{"--device", "gpu"}, {"device", "gpu"}},
      {{"--device", "cuda:99"}, {"device", "cuda"}},
      {{"--kv-memory", "lots"}, {"--kv-memory", "lots"}},
      {{"--kv-memory", "120%"}, {"--kv-memory", "120%", "80%"}},
      {{"--kv-memory", "8G%"}, {"--kv-memory", "8G%", "80%"}},
      {{"--stop-token", "3"}, {"--stop-token", "3"}},
      {{"--stop-token", "-1"}, {"--stop-token", "-1"}},
      {{"--stop", "x"}, {"tokenizer.json", "--stop-token"}},
      {{"--trace", "/no/such/folder/t.json"}, {"--trace", "/no/such/folder"}},
      {{"--trace", "/tmp"}, {"--trace", "/tmp", "folder"}},
      {{"--set", "x"}, {"--set", "key=value"}},
      {{"--set", "=1"}, {"--set"}},
      {{"--set", "a..b=1"}, {"a..b"}},
      {{"--set", "model_type.x=1"}, {"model_type"}}};
  for (const auto& [arguments, words] : cases) {
    std::vector<std::string> line = {"generate", "--model", model, "--tokens", "1", "-n", "2"};
    if (arguments[0] == "--max-tokens") line.resize(5);
    line.insert(line.end(), arguments.begin(), arguments.end());
    ExpectRefusal(line, words);
  }
  for (const auto& [tokens, word] :
       std::vector<std::pair<std::string, std::string>>{{"3", "3"},
                                                        {"1,-2", "-2"},
                                                        {"1,x", "\"x\""},
                                                        {"1,,2", "\",2\""},
                                                        {"1,", "comma"},
                                                        {"99999999999", "99999999999"},
                                                        {"1;2", "1;2"}}) {
    ExpectRefusal({"generate", "--model", model, "--tokens", tokens}, {word});
    ExpectRefusal({"logits", "--model", model, "--tokens", tokens, "-o", scratch / "x"}, {word});
  }
  ExpectRefusal({"generate", "--model", model, "--prompt", "text"}, {"tokenizer.json", "--tokens"});
  ExpectRefusal({"generate", "--model", model, "--prompt", "text", "--chat"}, {"tokenizer.json"});
  for (const char* depths : {"0", "5", "2,2", "some", ""}) {
    ExpectRefusal(
        {"logits", "--model", model, "--tokens", "1", "--depths", depths, "-o", scratch / "x"},
        {"epths"});
  }
  EXPECT_EQ(scratch.Names(), std::vector<std::string>{"m"});
}

TEST(CommandLine, AnUnknownCommandIsOneWithHelpToo) {
  ExpectRefusal({"info", "--help"}, {"unknown command info", "inspect"});
  ExpectRefusal({"info", "--model", OuroDemo()}, {"unknown command info"});
  ExpectRefusal({"experiment", "rum", "--help"}, {"unknown command experiment rum", "mean run?"});
  ExpectRefusal({"--inspect.json"}, {"no command before --inspect.json"});
  ExpectRefusal({"experiment", "--list.experiments=x"}, {"no command before --list"});
}

TEST(Values, WhatIsNoNumberIsCalledSo) {
  const std::string model = OuroDemo();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--temperature", "hot"}, "--temperature hot: not a number"},
      {{"--top-k", "many"}, "--top-k many: not a whole number"},
      {{"--top-k", "1.5"}, "--top-k 1.5: not a whole number"},
      {{"--temperature", "0x1"}, "--temperature 0x1: not a number"},
      {{"--temperature", "1e999"}, "--temperature 1e999: too large"},
      {{"-n", "abc"}, "--max-tokens abc: not a whole number"},
      {{"-n", "1.5"}, "--max-tokens 1.5: not a whole number"},
      {{"-n", " 5"}, "--max-tokens  5: not a whole number"},
      {{"-n", "0x10"}, "--max-tokens 0x10: not a whole number"},
      {{"-n", "1'000"}, "--max-tokens 1'000: not a whole number"},
      {{"-n", "1_000"}, "--max-tokens 1_000: not a whole number"},
      {{"-n", "99999999999999999999"}, "--max-tokens 99999999999999999999: expected 1 to"},
      {{"--top-k", "2147483648"}, "--top-k 2147483648: expected -2147483648 to 2147483647"},
      {{"--seed", "-1"}, "--seed -1: expected 0 to 18446744073709551615"},
      {{"--json=maybe"}, "--json maybe: expected true or false"},
      {{"-n", "0"}, "--max-tokens 0: expected 1 to"},
      {{"--stop-token", "x"}, "--stop-token x: not a whole number"},
      {{"--compute", "f16"}, "--compute f16: expected auto, f32 or bf16"},
      {{"--top-p", "1.1"}, "top-p is 1.1, expected"},
      {{"--frequency-penalty", "1000.1"}, "--frequency-penalty is 1000.1, expected"},
      {{"-n"}, "--max-tokens needs a value"},
      {{"-n", "5", "-n", "6"}, "--max-tokens is given 2 times"},
      {{"--bogus"}, "unknown option --bogus"},
      {{"second"}, "needs one prompt, found 2"},
      {{"second", "stray"}, "unexpected argument stray"},
      {{"second", "--", "stray", "more"}, "unexpected argument stray more"}};
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> line = {"generate", "--model", model, "-p", "a"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    ExpectRefusal(line, {message});
  }
}

// A leading zero is no octal number, and the largest seed is one.
TEST(Values, AreReadAsTheyStand) {
  const std::vector<std::string> line = {"generate", "--model", OuroDemo(),  "-p",
                                         "a",        "--json",  "--threads", "1"};
  auto padded = line;
  padded.insert(padded.end(), {"--ignore-eos", "-n", "010", "--seed", "18446744073709551615"});
  const RunResult result = Call(padded);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Ids(result.json()).size(), 10u);
}

TEST(Values, EmptyOnesAreRefused) {
  const Scratch scratch;
  const std::string model = OuroDemo();
  for (const char* option :
       {"--prompt", "--prompt-file", "--tokens", "--system", "--template-arg", "--stop", "--trace",
        "--kv-memory", "--device", "--compute", "--sampler", "--depths", "--set", "--logit-bias",
        "--temperature", "--max-tokens", "--seed", "--stop-token"}) {
    ExpectRefusal({"generate", "--model", model, "--chat", option, ""}, {option});
  }
  ExpectRefusal({"bench", "--model", model, "--prompts", "", "--decode", "ar"}, {"--prompts"});
  ExpectRefusal({"bench", "--model", model, "--prompts", "x", "--decode", ""}, {"--decode"});
  ExpectRefusal(
      {"bench", "--model", model, "--prompts", "x", "--decode", "ar", "--assume-acceptance", ""},
      {"--assume-acceptance"});
  ExpectRefusal({"logits", "--model", model, "--tokens", "1", "-o", ""}, {"--output"});
  ExpectRefusal({"tokenize", "--model", model, "--file", ""}, {"--file"});
  ExpectRefusal({"template", "--model", model, "--messages", ""}, {"--messages"});
  ExpectRefusal({"trace", "x", "--svg", ""}, {"--svg"});
  ExpectRefusal({"synth", "--like", "", "-o", scratch / "x"}, {"--like"});
}

TEST(Values, SynthSizesOfNothing) {
  const Scratch scratch;
  for (const char* option : {"--layers", "--width", "--vocab", "--positions"}) {
    ExpectRefusal({"synth", "--like", "ouro-1.4b", option, "0", "-o", scratch / "twin"},
                  {option, "0", "expected"});
    ExpectRefusal({"synth", "--like", "ouro-1.4b", option, "-3", "-o", scratch / "twin"},
                  {option, "-3"});
  }
  EXPECT_TRUE(scratch.Names().empty());
}

TEST(Values, ListsAndWaysOfDecoding) {
  const Scratch scratch;
  const std::string model = OuroDemo(), prompts = scratch.Write("p.txt", "Hello\n");
  ExpectRefusal({"generate", "--model", model, "-p", "a", "--depths", "1,,2"}, {"1,,2"});
  ExpectRefusal({"detokenize", "--model", model, "1,,2"}, {",2"});
  ExpectRefusal({"bench", "--model", model, "--prompts", prompts, "--decode", "loopspec:1,,2"},
                {"1,,2"});
  ExpectRefusal({"bench", "--model", model, "--prompts", prompts, "--decode", "ar@2"},
                {"ar@2", "one row"});
  for (const char* rows : {"9999999", "99999999999999", "257", "1,2", "-1"}) {
    ExpectRefusal({"bench", "--model", model, "--prompts", prompts, "--decode",
                   std::string("loopspec:1@") + rows},
                  {rows, "1 to 256"});
  }
  ExpectRefusal({"trace", scratch.Write("t.json", "{}"), "--svg", scratch / "t.json"},
                {"t.json", "trace itself"});
  EXPECT_EQ(Slurp(scratch / "t.json"), "{}");
}

TEST(Messages, BenchNamesFileAndLineBeforeAnythingRuns) {
  const Scratch scratch;
  std::string lengthy = "x";
  for (int i = 0; i < 3000; ++i) lengthy += " y";
  const std::string file = scratch.Write("p.txt", "Hello\n\n" + lengthy + "\nHello\n");
  ExpectRefusal({"bench", "--model", OuroDemo(), "--prompts", file, "--decode", "ar", "-n", "4"},
                {"p.txt, line 3", "context is 2048"});
  const std::string folder = TinyModel::Ouro().Save(scratch, "m");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(OuroDemo() + "/" + name, folder + "/" + name);
  ExpectRefusal({"bench", "--model", folder, "--prompts", scratch.Write("q.txt", "Hello\n"),
                 "--decode", "ar", "-n", "4"},
                {"q.txt, line 1", "the vocabulary has 3"});
}

TEST(Messages, NoLibraryTagsAndNoControlCharacters) {
  const Scratch scratch;
  const RunResult broken =
      Call({"trace", scratch.Write("t.json", "{\"a\": [1,}"), "--svg", scratch / "x"});
  ExpectRefused(broken, {"t.json", "line 1"});
  EXPECT_EQ(broken.err.find("json.exception"), std::string::npos) << broken.err;
  // Names in files, with escapes for a terminal and bytes that are no text.
  TinyModel model = TinyModel::Ouro();
  model.config["model_type"] = "\033[2Jouro";
  ExpectRefusal({"inspect", "--model", model.Save(scratch, "a")}, {"\\x1b[2Jouro"});
  model = TinyModel::Ouro();
  model.tensors.push_back({"evil\r\033]0;name\007", {2}});
  ExpectRefusal({"inspect", "--model", model.Save(scratch, "b")}, {"evil\\x0d\\x1b]0;name\\x07"});
  ExpectRefusal({"inspect", "--model", "/no/\xff\033[1m"}, {"/no/\\xff\\x1b[1m"});
  ExpectRefusal({"inspect", "--model", TinyModel::Ouro().Save(scratch, "c"), "--set", "x\xfe=1"},
                {"x\\xfe"});
}

TEST(Messages, AFirstMessageThatIsTooLong) {
  RunOptions piped;
  for (int i = 0; i < 3000; ++i) piped.input += "y ";
  piped.input += "\n";
  const RunResult result = Call({"chat", "--model", OuroDemo(), "-n", "4"}, piped);
  ExpectRefused(result, {"the message makes a prompt of", "2047"});
  EXPECT_EQ(result.err.find("/clear"), std::string::npos) << result.err;
}

TEST(Messages, EndsOfTextOutsideTheVocabulary) {
  const Scratch scratch;
  TinyModel model = TinyModel::Ouro();
  model.config["eos_token_id"] = {1, 3};
  ExpectRefusal({"generate", "--model", model.Save(scratch, "m"), "--tokens", "1", "-n", "2"},
                {"config.json", "eos_token_id is 3", "3 tokens"});
  EXPECT_EQ(
      Generate({"--model", scratch / "m", "--tokens", "1", "-n", "2", "--set", "eos_token_id=1"})
          .at("prompt_tokens"),
      1);
}

TEST(Requests, AskForWhatTheBackendCanDo) {
  const Scratch scratch;
  const std::string model = TinyModel::Ouro().Save(scratch, "m");
  const std::vector<std::string> line = {"generate", "--model", model,    "--tokens", "1",
                                         "-n",       "2",       "--json", "--device", "cpu"};
  auto most = line, more = line;
  most.insert(most.end(), {"--logprobs", "3"});
  more.insert(more.end(), {"--logprobs", "4"});
  EXPECT_EQ(Call(most).json().at("logprobs")[0].at("top").size(), 3u);
  ExpectRefusal(more, {"logprobs is 4", "0 to 3"});
}

TEST(Prompts, EmptyAndTooLong) {
  const Scratch scratch;
  const std::string model = OuroDemo(), empty = scratch.Write("empty", ""),
                    prompts = scratch.Write("p.txt", "Hello\n");
  ExpectRefusal({"generate", "--model", model, "--prompt", ""}, {"prompt is empty"});
  ExpectRefusal({"generate", "--model", model, "--tokens", ""}, {"--tokens is empty"});
  ExpectRefusal({"generate", "--model", model, "--prompt-file", empty}, {"prompt is empty"});
  ExpectRefusal({"generate", "--model", model, "--prompt-file", "-"}, {"prompt is empty"});
  ExpectRefusal({"generate", "--model", model, "--prompt-file", scratch / "none"}, {"none"});
  ExpectRefusal({"generate", "--model", model, "--prompt-file", scratch.path()}, {"folder"});
  std::string tokens = "1";
  for (int i = 1; i < 2048; ++i) tokens += ",1";
  ExpectRefusal({"generate", "--model", model, "--tokens", tokens}, {"2048", "context"});
  ExpectRefusal({"logits", "--model", model, "--tokens", tokens + ",1", "-o", scratch / "x"},
                {"2049", "2048"});
  ExpectRefusal({"bench", "--model", model, "--prompts", empty, "--decode", "ar"}, {"no prompt"});
  ExpectRefusal({"bench", "--model", model, "--prompts", scratch.Write("b.jsonl", "{\"x\": 1}\n"),
                 "--decode", "ar"},
                {"line 1", "prompt"});
  for (const char* decode : {"magic", "loopspec:", "loopspec:9", "loopspec:1@", "loopspec:1@0",
                             "loopspec:1@x", "ar:1"}) {
    ExpectRefusal({"bench", "--model", model, "--prompts", prompts, "--decode", decode}, {});
  }
  for (const char* rates : {"x", "0.9,", "0.9;0.1", "1.2", "-0.1", "nan", "0.6,0.6"}) {
    ExpectRefusal({"bench", "--model", model, "--prompts", prompts, "--decode", "ar",
                   "--assume-acceptance", rates},
                  {"--assume-acceptance"});
  }
  ExpectRefusal({"detokenize", "--model", model, "1,two"}, {"two"});
  ExpectRefusal({"detokenize", "--model", model, "--", "-1"}, {"-1"});
  ExpectRefusal({"template", "--model", model, "--messages", scratch.Write("m.json", "{\"a\": 1}")},
                {"messages"});
  ExpectRefusal({"template", "--model", model, "--messages", scratch.Write("n.json", "[")},
                {"n.json", "JSON"});
  ExpectRefusal({"trace", scratch / "none", "--svg", scratch / "x.svg"}, {"none"});
  ExpectRefusal({"trace", scratch.Write("t.json", "[]"), "--svg", scratch / "x.svg"},
                {"t.json", "trace"});
  ExpectRefusal({"trace", scratch.Write("t.json", R"({"events": [{"step": -1}]})"), "--svg",
                 scratch / "x.svg"},
                {"t.json", "step"});
}

// ---- checkpoints

void ExpectBadModel(const TinyModel& model, const std::vector<std::string>& words) {
  const Scratch scratch;
  ExpectRefusal({"generate", "--model", model.Save(scratch, "m"), "--tokens", "1", "-n", "2"},
                words);
}

TEST(Checkpoints, TensorsAreCheckedByName) {
  TinyModel model = TinyModel::Ouro();
  model.Remove("model.layers.0.mlp.up_proj.weight");
  ExpectBadModel(model, {"model.layers.0.mlp.up_proj.weight", "missing"});
  model = TinyModel::Ouro();
  model.tensors.push_back({"model.layers.7.extra.weight", {2}});
  ExpectBadModel(model, {"model.layers.7.extra.weight", "unknown"});
  model = TinyModel::Ouro();
  model.tensor("lm_head.weight").shape = {4, 4};
  ExpectBadModel(model, {"lm_head.weight", "expected"});
  model = TinyModel::Raven();
  model.Remove("transformer.adapter.weight");
  ExpectBadModel(model, {"transformer.adapter.weight", "missing"});
  model = TinyModel::Raven();
  model.tensor("transformer.coda.0.attn.Wqkv.weight").shape = {8, 3};
  ExpectBadModel(model, {"transformer.coda.0.attn.Wqkv.weight", "expected"});
  model = TinyModel::Ouro();
  model.tensor("lm_head.weight").dtype = "I32";
  ExpectBadModel(model, {"lm_head.weight", "I32"});
  model.tensor("lm_head.weight").dtype = "Q9";
  ExpectBadModel(model, {"lm_head.weight", "Q9"});
}

TEST(Checkpoints, SettingsThatAreNotSupportedAreRefused) {
  const std::vector<std::pair<std::string, Json>> ouro = {
      {"use_sliding_window", true},
      {"early_exit_threshold", 0.9},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"layer_types", Json::array({"sliding_attention"})},
      {"vocab_size", 0},
      {"vocab_size", -3},
      {"vocab_size", "many"},
      {"vocab_size", 2.5},
      {"hidden_size", 1e18},
      {"num_attention_heads", 0},
      {"num_key_value_heads", 3},
      {"head_dim", 3},
      {"total_ut_steps", 0},
      {"rms_norm_eps", -1},
      {"rope_theta", 0},
      {"num_hidden_layers", 1000000000},
      {"max_position_embeddings", 0},
      {"model_type", "llama"},
      {"rope_scaling", {{"rope_type", "yarn"}}},
      {"rms_norm_eps", nullptr}};
  const std::vector<std::pair<std::string, Json>> raven = {
      {"test_time_noise", 0.1}, {"qk_bias", true},  // a Huginn, whose other settings do not fit
      {"nonlin_name", "GELU"},  {"injection_type", "add"},
      {"n_layers_in_coda", -1}, {"mean_recurrence", 0},
      {"n_embd", "x"}};
  for (const auto& [settings, base] :
       {std::pair(ouro, TinyModel::Ouro()), std::pair(raven, TinyModel::Raven())}) {
    for (const auto& [key, value] : settings) {
      SCOPED_TRACE(key + " " + value.dump());
      TinyModel model = base;
      model.config[key] = value;
      ExpectBadModel(model, {key == "num_key_value_heads" ? "heads"
                             : key == "qk_bias"           ? "Huginn"
                                                          : key});
      if (key != "model_type" && value.is_primitive() && !value.is_string() &&
          !value.is_null()) {  // through --set too
        const Scratch scratch;
        ExpectRefusal(
            {"inspect", "--model", base.Save(scratch, "m"), "--set", key + "=" + value.dump()}, {});
      }
    }
  }
}

TEST(Checkpoints, HostileFilesEndInASentence) {
  const std::string good = TinyModel::Ouro().Safetensors();
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  const auto with_length = [&](uint64_t length) {
    std::string bad = good;
    std::memcpy(bad.data(), &length, 8);
    return bad;
  };
  const auto with_header = [&](const std::string& text) {
    const uint64_t size = text.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + text + std::string(64, '\0');
  };
  std::vector<std::string> files = {
      "",
      "abc",
      good.substr(0, 8),
      good.substr(0, 8 + header / 2),
      good.substr(0, good.size() - 1),
      good.substr(0, 8 + header),
      with_length(0),
      with_length(UINT64_MAX),
      with_length(header - 1),
      with_length(header + 8),
      with_length(uint64_t{1} << 40),
      with_header("[]"),
      with_header("null"),
      with_header(std::string(100000, '[')),
      with_header(R"({"a": 1})"),
      with_header(R"({"a": {"dtype": "F32"}})"),
      with_header(R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})"),
      with_header(
          R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})"),
      with_header(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})"),
      with_header(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [1000, 1004]}})"),
      with_header(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},)"
                  R"( "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})"),
      with_header("{\"\xff\": 1}")};
  for (size_t i = 0; i < files.size(); ++i) {
    SCOPED_TRACE(i);
    const Scratch scratch;
    const std::string folder = TinyModel::Ouro().Save(scratch, "m");
    scratch.Write("m/model.safetensors", files[i]);
    ExpectRefusal({"inspect", "--model", folder}, {"model.safetensors"});
  }
}

TEST(Checkpoints, FoldersThatAreNotWhole) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "empty");
  ExpectRefusal({"inspect", "--model", scratch / "empty"}, {"config.json"});
  const std::string folder = TinyModel::Ouro().Save(scratch, "m");
  for (const char* config : {"", "{", "[1]", "{\"model_type\": 3}", "\xff\xfe"}) {
    scratch.Write("m/config.json", config);
    ExpectRefusal({"inspect", "--model", folder}, {"config.json"});
  }
  TinyModel::Ouro().Save(scratch, "m");
  std::filesystem::remove(folder + "/model.safetensors");
  ExpectRefusal({"inspect", "--model", folder}, {"model.safetensors"});
  for (const char* index :
       {"{}", R"({"weight_map": {"a": "missing.safetensors"}})", R"({"weight_map": {"a": "../x"}})",
        R"({"weight_map": {"a": 3}})", R"({"weight_map": {}})"}) {
    scratch.Write("m/model.safetensors.index.json", index);
    ExpectRefusal({"inspect", "--model", folder}, {});
  }
}

// ---- places that cannot be written

TEST(Output, AFullDiskIsToldAndNothingIsLeftBehind) {
  const Scratch scratch;
  const std::string model = Golden("ouro-tiny-f32");
  RunOptions full;
  full.file_limit = 512;
  RunResult result = Call(
      {"logits", "--model", model, "--tokens", "1,2,3", "-o", scratch / "l.safetensors"}, full);
  ExpectRefused(result, {"l.safetensors"});
  result = Call(
      {"generate", "--model", model, "--tokens", "1,2,3", "-n", "8", "--trace", scratch / "t.json"},
      full);
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("t.json"), std::string::npos);
  EXPECT_TRUE(scratch.Names().empty());
  // A file that is there stays as it was.
  scratch.Write("t.json", "before");
  EXPECT_EQ(Call({"generate", "--model", model, "--tokens", "1,2,3", "-n", "8", "--trace",
                  scratch / "t.json"},
                 full)
                .code,
            2);
  EXPECT_EQ(Slurp(scratch / "t.json"), "before");
  EXPECT_EQ(scratch.Names(), std::vector<std::string>{"t.json"});
  ExpectRefusal({"trace", scratch / "t.json", "--svg", scratch.path()}, {"folder"});
  EXPECT_EQ(scratch.Names(), std::vector<std::string>{"t.json"});
  EXPECT_FALSE(std::filesystem::exists(scratch.path().string() + ".partial"));
}

TEST(Output, DevicesStayDevices) {
  const std::string model = Golden("ouro-tiny-f32");
  ExpectRefusal({"logits", "--model", model, "--tokens", "1", "-o", "/dev/full"}, {"/dev/full"});
  const RunResult trace =
      Call({"generate", "--model", model, "--tokens", "1", "-n", "4", "--trace", "/dev/full"});
  EXPECT_EQ(trace.code, 2);
  EXPECT_NE(trace.err.find("/dev/full"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  const RunResult standard =
      Call({"generate", "--model", model, "--tokens", "1", "-n", "4", "--trace", "/dev/null"});
  EXPECT_EQ(standard.code, 0) << standard.err;
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(Output, StandardOutputThatCannotBeWritten) {
  const Scratch scratch;
  RunOptions full;
  full.output_file = "/dev/full";
  const std::string messages = scratch.Write("m.json", R"([{"role": "user", "content": "Hi"}])"),
                    model = OuroDemo();
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "--model", model, "-p", "Hi", "-n", "4"},
      {"generate", "--model", model, "-p", "Hi", "-n", "4", "--json"},
      {"generate", "--model", model, "-p", "Hi", "-n", "4", "--color"},
      {"inspect", "--model", model},
      {"inspect", "--model", model, "--json"},
      {"tokenize", "--model", model, "Hi"},
      {"detokenize", "--model", model, "1,2"},
      {"template", "--model", model, "--messages", messages},
      {"--help"}};
  for (const auto& command : commands) ExpectRefusal(command, {"standard output"}, full);
}

}  // namespace
}  // namespace loopspec::test

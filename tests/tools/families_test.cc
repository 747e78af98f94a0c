// Nanbeige, Huginn and IFM's through every command: small twins with a tokenizer and a chat
// template like theirs, and a look inside by `logits --lens` and `--exit-gate`.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tensor/safetensors.h"
#include "tests/support/sanitized.h"
#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

struct Family {
  const char* like;
  const char* width;
  const char* model_type;
  int recurrence;
  std::vector<int> depths;  // by default
  const char* first_depth;  // to be asked for
};

const Family kFamilies[] = {{"nanbeige4.2-3b", "384", "nanbeige", 2, {}, "1"},
                            {"huginn-0125", "192", "huginn", 32, {4, 16}, "8"},
                            {"ifm-p2-s", "768", "ifm", 5, {1, 2}, "3"}};

// A twin of one layer whose tokenizer begins every text with a token of its own, as Nanbeige's
// does, and whose template writes that token.
std::string SmallTwin(const Family& family, const Scratch& scratch) {
  const std::string twin = scratch / "twin";
  const RunResult made = Call({"synth", "--like", family.like, "--layers", "1", "--width",
                               family.width, "--vocab", "600", "--output", twin, "--no-measure"});
  EXPECT_EQ(made.code, 0) << made.err;
  Json tokenizer = ReadJsonFile(twin + "/tokenizer.json");
  const int id = 599;
  tokenizer["added_tokens"].push_back({{"id", id},
                                       {"content", "<|im_start|>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  const Json start = {{"SpecialToken", {{"id", "<|im_start|>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({start, text})},
      {"pair", Json::array({start, text, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
      {"special_tokens",
       {{"<|im_start|>",
         {{"id", "<|im_start|>"}, {"ids", Json::array({id})}, {"tokens", {"<|im_start|>"}}}}}}};
  std::ofstream(twin + "/tokenizer.json") << tokenizer.dump();
  std::ofstream(twin + "/tokenizer_config.json")
      << Json{{"bos_token", "<|im_start|>"},
              {"add_bos_token", true},
              {"chat_template",
               "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}}
             .dump();
  return twin;
}

class FamilyCommands : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override { twin_ = SmallTwin(GetParam(), scratch_); }
  Scratch scratch_;
  std::string twin_;
};

TEST_P(FamilyCommands, InspectSaysWhatItIs) {
  const Json json = Call({"inspect", "--model", twin_, "--json"}).json();
  EXPECT_EQ(json.at("family"), GetParam().model_type);
  EXPECT_EQ(json.at("recurrence"), GetParam().recurrence);
  EXPECT_EQ(json.at("default_depths").get<std::vector<int>>(), GetParam().depths);
  const std::string text = Call({"inspect", "--model", twin_}).out;
  EXPECT_EQ(text.find("readouts at ,"), std::string::npos) << text;
  if (GetParam().depths.empty()) {
    EXPECT_NE(text.find("not trained to be read out before recurrence 2"), std::string::npos)
        << text;
  }
}

// The same text with drafts, with guesses alone and without either.
TEST_P(FamilyCommands, GenerateIsTheSameHoweverDecoded) {
  const std::vector<std::string> base = {"--model",     twin_, "--prompt",  "to be or not to be",
                                         "-n",          "24",  "--threads", "1",
                                         "--ignore-eos"};
  const auto ids = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Ids(Generate(arguments));
  };
  const std::vector<int> plain = ids({"--decode", "ar"});
  ASSERT_EQ(plain.size(), 24u);
  EXPECT_EQ(ids({}), plain);
  EXPECT_EQ(ids({"--decode", "lookup"}), plain);
  EXPECT_EQ(ids({"--depths", GetParam().first_depth}), plain);
}

// A rendered conversation begins with the token that the template wrote, and with one of them.
TEST_P(FamilyCommands, ChatsHaveOneBeginning) {
  const Json chat = Generate({"--model", twin_, "--chat", "--prompt", "hello", "-n", "4",
                              "--threads", "1", "--ignore-eos"});
  const Json plain = Generate(
      {"--model", twin_, "--prompt", "hello", "-n", "4", "--threads", "1", "--ignore-eos"});
  const RunResult rendered = Call({"tokenize", "--model", twin_, "--no-special", "--json",
                                   "<|im_start|>user\nhello\n<|im_start|>assistant\n"});
  EXPECT_EQ(rendered.code, 0) << rendered.err;
  EXPECT_EQ(chat.at("prompt_tokens").get<size_t>(), rendered.json().at("tokens").size())
      << rendered.out;
  EXPECT_EQ(plain.at("prompt_tokens"), 6);  // the beginning, and five bytes

  RunOptions typed = Patient();
  typed.input = "hello\n";
  const RunResult session = Call({"chat", "--model", twin_, "-n", "4", "--threads", "1"}, typed);
  EXPECT_EQ(session.code, 0) << session.err;
}

// What `serve` answers, without a socket: a conversation with one beginning, and depth as a dial.
TEST_P(FamilyCommands, ServesConversationsAndDepths) {
  if (Call({"batch", "--help"}).code != 0) GTEST_SKIP() << "built without the server";
  const auto line = [](const std::string& id, const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                 {"max_tokens", 12},
                 {"temperature", 0},
                 {"ignore_eos", true}};
    body.update(more);
    return Json{{"custom_id", id},
                {"method", "POST"},
                {"url", "/v1/chat/completions"},
                {"body", std::move(body)}}
               .dump() +
           "\n";
  };
  const int whole = GetParam().recurrence;
  const int fewer = std::stoi(GetParam().first_depth);
  const std::string input = scratch_.Write(
      "in.jsonl", line("plain", {{"decode", "ar"}}) + line("whole", {{"recurrence", whole}}) +
                      line("fewer", {{"recurrence", fewer}}) +
                      line("fewer plain", {{"recurrence", fewer}, {"decode", "ar"}}) +
                      line("beyond", {{"recurrence", whole + 1}}));
  const RunResult run =
      Call({"batch", "-m", twin_, "--threads", "1", "--depths", GetParam().first_depth, "--input",
            input, "--output", scratch_ / "out.jsonl"},
           Patient());
  ASSERT_EQ(run.code, 0) << run.err;
  std::map<std::string, Json> answers;
  std::istringstream lines(Slurp(scratch_ / "out.jsonl"));
  for (std::string text; std::getline(lines, text);) {
    const Json answer = Json::parse(text);
    answers[answer["custom_id"]] = answer["response"];
  }
  const auto content = [&](const std::string& id) {
    EXPECT_EQ(answers[id]["status_code"], 200) << answers[id].dump();
    return answers[id]["body"]["choices"][0]["message"].dump();
  };
  EXPECT_EQ(content("whole"), content("plain"));
  EXPECT_EQ(content("fewer"), content("fewer plain"));
  EXPECT_EQ(answers["beyond"]["status_code"], 400);
  EXPECT_NE(answers["beyond"].dump().find("the model was trained for"), std::string::npos);
}

TEST_P(FamilyCommands, BenchAndCalibrate) {
  const std::string prompts = scratch_.Write("p.txt", "one two three one two three\n");
  const Json bench = Call({"bench", "--model", twin_, "--prompts", prompts, "-n", "8", "--threads",
                           "1", "--decode", "ar", "--decode", "loopspec", "--json"},
                          Patient())
                         .json();
  EXPECT_EQ(bench.at("results").at(1).at("equal"), true);
  const Json found =
      Call({"calibrate", "--model", twin_, "--prompts", prompts, "-n", "8", "--positions", "16",
            "--measure", "0", "--threads", "1", "--json", "--output", scratch_ / "out"},
           Patient())
          .json();
  EXPECT_TRUE(found.contains("greedy") || found.contains("rates")) << found.dump(1).substr(0, 400);
}

TEST_P(FamilyCommands, ExperimentRuns) {
  const std::string experiment =
      scratch_.Write("tiny.json", fmt::format(R"({{
    "name": "tiny", "title": "A tiny one", "source": "nowhere", "meaning": "It means little.",
    "kind": "depths", "seed": 1,
    "models": [{{"name": "twin", "checkpoint": "twin", "recurrence": {}}}],
    "tasks": [{{"task": "stories", "max_tokens": 6, "max_length": 100}}],
    "samplings": [{{"name": "greedy", "temperature": 0}}],
    "decodes": [{{"depths": []}}, {{"depths": [{}]}}]}})",
                                              GetParam().recurrence, GetParam().first_depth));
  const RunResult run = Call({"experiment", "run", experiment, "--model", twin_, "--threads", "1",
                              "--limit", "1", "--output", scratch_ / "experiment"},
                             Patient());
  EXPECT_EQ(run.code, 0) << run.err;
}

INSTANTIATE_TEST_SUITE_P(All, FamilyCommands, testing::ValuesIn(kFamilies),
                         [](const auto& param) { return std::string(param.param.model_type); });

// Huginn is published in float32 and runs in bf16: its matrices are rounded while they are read,
// and the file is never in memory beside them. The second copy of the embedding and the table of
// angles that its files hold are passed over.
TEST(HuginnFiles, Float32IsReadWithoutTwiceTheMemory) {
  const Scratch scratch;
  const std::string twin = scratch / "twin";
  ASSERT_EQ(Call({"synth", "--like", "huginn-0125", "--layers", "6", "--width", "480", "--vocab",
                  "2000", "--output", twin, "--no-measure"})
                .code,
            0);
  const std::vector<std::string> generate = {"--model",   twin,   "--tokens",    "1,2,3",
                                             "-n",        "8",    "--threads",   "1",
                                             "--compute", "bf16", "--ignore-eos"};
  const std::vector<int> stored_bf16 = Ids(Generate(generate));
  const std::filesystem::path file = std::filesystem::path(twin) / "model.safetensors";
  size_t bytes = 0;
  {
    const Checkpoint checkpoint = Checkpoint::OpenFile(file);
    std::vector<std::vector<float>> values;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, view] : checkpoint.tensors()) {
      std::vector<float>& wide = values.emplace_back();
      for (int64_t i = 0; i < view.elements(); ++i)
        wide.push_back(LoadElement(view.data, view.dtype, i));
      tensors.push_back(
          {name, {reinterpret_cast<const std::byte*>(wide.data()), DType::kF32, view.shape}});
      bytes += wide.size() * sizeof(float);
    }
    const auto embedding = std::find_if(tensors.begin(), tensors.end(), [](const NamedTensor& t) {
      return t.name == "transformer.wte.weight";
    });
    tensors.push_back({"lm_head.weight", embedding->view});
    values.emplace_back(128 * 48 * 2, 0.5f);
    tensors.push_back({"freqs_cis",
                       {reinterpret_cast<const std::byte*>(values.back().data()),
                        DType::kF32,
                        {1, 128, 1, 48, 2}}});
    WriteSafetensors(scratch / "wide.safetensors", tensors);
  }
  std::filesystem::rename(scratch / "wide.safetensors", file);
  EXPECT_EQ(Ids(Generate(generate)), stored_bf16);
  std::vector<std::string> arguments = {"generate", "--device", "cpu"};
  arguments.insert(arguments.end(), generate.begin(), generate.end());
  const RunResult run = Call(arguments);
  EXPECT_EQ(run.code, 0) << run.err;
  ASSERT_GT(bytes, size_t{100} << 20);
  // Half of the file, and what the program needs besides itself; with the file it would be one and
  // a half.
  // A sanitizer's own memory is more than all of it.
  if (!kSanitized) {
    EXPECT_LT(run.peak_bytes, bytes - (size_t{14} << 20) + BytesAtRest())
        << "of a file of " << bytes;
  }
}

// ---- IFM's releases: a tokenizer in a folder of its own, a manifest of hashes ----

class IfmFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto golden =
        std::filesystem::path(LOOPSPEC_BINARY_DIR) / "goldens" / "ifm-p2-huginn-tiny";
    if (!std::filesystem::exists(golden))
      GTEST_SKIP() << "its golden is not shipped, and not beside the clone";
    std::filesystem::copy(golden, model_, std::filesystem::copy_options::recursive);
  }
  Scratch scratch_;
  std::string model_ = scratch_ / "model";
};

TEST_F(IfmFiles, ATextBeginsWithOneBos) {
  const auto tokens = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"tokenize", "--model", model_, "--json", "abc"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments).json().at("tokens").get<std::vector<int>>();
  };
  std::vector<int> plain = tokens({"--no-special"});
  ASSERT_FALSE(plain.empty());
  EXPECT_NE(plain[0], 0);
  plain.insert(plain.begin(), 0);
  EXPECT_EQ(tokens({}), plain);
  const Json text = Generate({"--model", model_, "--prompt", "abc", "-n", "12", "--threads", "1",
                              "--ignore-eos", "--decode", "ar"});
  EXPECT_EQ(text.at("prompt_tokens").get<size_t>(), plain.size());
  for (const char* depths : {"1", "2", "1,3", "1,2,3,4"}) {
    EXPECT_EQ(Ids(Generate({"--model", model_, "--prompt", "abc", "-n", "12", "--threads", "1",
                            "--ignore-eos", "--depths", depths})),
              Ids(text))
        << depths;
  }
}

TEST_F(IfmFiles, VerifyReadsWhatTheManifestNames) {
  const std::vector<std::string> verify = {"inspect", "--model", model_, "--verify"};
  const RunResult sound = Call(verify);
  if (sound.err.find("OpenSSL") != std::string::npos) GTEST_SKIP() << sound.err;
  EXPECT_EQ(sound.code, 0) << sound.err;
  EXPECT_NE(sound.err.find("6 files"), std::string::npos) << sound.err;
  const std::string shard = model_ + "/model-00001-of-00001.safetensors";
  std::string bytes = Slurp(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_EQ(Call({"inspect", "--model", model_}).code, 0);
  ExpectRefusal(verify, {"model-00001-of-00001.safetensors", "sha256"});
  std::ofstream(model_ + "/tokenizer/special_tokens_map.json") << "{}";
  ExpectRefusal(verify, {"model-00001", "sha256"});
  std::filesystem::resize_file(shard, bytes.size() - 1);
  ExpectRefusal(verify, {"model-00001", "bytes, expected"});
  std::filesystem::remove(model_ + "/artifact_manifest.json");
  ExpectRefusal(verify, {"artifact_manifest.json"});
  ExpectRefusal({"inspect", "--model", OuroDemo(), "--verify"}, {"artifact_manifest.json"});
}

TEST_F(IfmFiles, QuantizedWithItsTokenizerAndInt8Keys) {
  const std::string output = scratch_ / "int8";
  const RunResult run =
      Call({"quantize", "--model", model_, "--to", "int8", "--output", output}, Patient());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_FALSE(std::filesystem::exists(output + "/artifact_manifest.json"));
  const auto ids = [&](const std::string& depths) {
    return Ids(Generate({"--model", output, "--prompt", "abc", "-n", "12", "--threads", "1",
                         "--ignore-eos", "--kv-type", "int8", "--depths", depths}));
  };
  EXPECT_EQ(ids("1,2").size(), 12u);
  EXPECT_EQ(ids("1,2"), ids("3"));
  ExpectRefusal({"generate", "--model", model_, "--prompt", "a", "--set", "model.terminal_kv=true"},
                {"terminal_kv", "no draft can run ahead"});
}

TEST_F(IfmFiles, InspectSaysWhatItIs) {
  const std::string text = Call({"inspect", "--model", model_}).out;
  for (const char* part : {"what B injects", "injection by channel + 2 blocks",
                           "a hash of position and channel", "interleaved"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// ---- A look inside ----

TEST(LensCommand, JsonAddsUpAndThePageStandsAlone) {
  const Scratch scratch;
  const std::string json = scratch / "lens.json", page = scratch / "lens.html",
                    arrays = scratch / "lens.npz";
  const auto lens = [&](const std::string& file) {
    return Call({"logits", "--model", OuroDemo(), "--device", "cpu", "--prompt",
                 "Once upon a time there was", "--lens", file});
  };
  ASSERT_EQ(lens(json).code, 0) << lens(json).err;
  const Json read = ReadJsonFile(json);
  EXPECT_EQ(read.at("depths"), Json::array({1, 2, 3, 4}));
  ASSERT_GE(read.at("positions").size(), 5u);
  for (const Json& position : read.at("positions")) {
    const Json& last = position.at("depths").back();
    EXPECT_NEAR(last.at("kl_bits").get<double>(), 0, 1e-6);
    EXPECT_NEAR(last.at("cosine").get<double>(), 1, 1e-5);
    int settled = 4;
    for (int d = 3; d >= 1; --d) {
      const Json& entry = position.at("depths")[static_cast<size_t>(d) - 1];
      if (entry.at("top")[0].at("token") != last.at("top")[0].at("token")) break;
      settled = d;
    }
    EXPECT_EQ(position.at("settled"), settled);
    for (const Json& entry : position.at("depths")) {
      ASSERT_EQ(entry.at("top").size(), 5u);
      double sum = 0, before = 1;
      for (const Json& top : entry.at("top")) {
        EXPECT_LE(top.at("probability").get<double>(), before);
        before = top.at("probability").get<double>();
        sum += before;
      }
      EXPECT_LE(sum, 1.0001);
      EXPECT_GE(entry.at("kl_bits").get<double>(), 0);
      EXPECT_GE(entry.at("entropy_bits").get<double>(), 0);
      EXPECT_GE(entry.at("exit_lambda").get<double>(), 0);
    }
  }
  ASSERT_EQ(lens(page).code, 0);
  const std::string html = Slurp(page);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("What would come next, after each depth"), std::string::npos);
  EXPECT_NE(html.find("<h1>What ouro-demo thinks, depth by depth</h1>"), std::string::npos);
  // The likeliest token stands in its cell.
  EXPECT_NE(html.find("class=\"choice\""), std::string::npos);
  EXPECT_NE(html.find(">·upon</text>"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  ASSERT_EQ(lens(arrays).code, 0);
  const std::string npz = Slurp(arrays);
  EXPECT_TRUE(npz.starts_with("PK\x03\x04"));
  for (const char* name : {"tokens.npy", "top_tokens.npy", "kl_bits.npy", "exit_lambda.npy"})
    EXPECT_NE(npz.find(name), std::string::npos) << name;
}

TEST(LensCommand, AShortTextHasRoomForItsTitle) {
  const Scratch scratch;
  const std::string page = scratch / "lens.html";
  ASSERT_EQ(Call({"logits", "--model", OuroDemo(), "--prompt", "Once", "--lens", page}).code, 0);
  EXPECT_NE(Slurp(page).find("viewBox=\"0 0 520 "), std::string::npos);
}

TEST(LensCommand, ExitGateOfOuroAlone) {
  const RunResult run = Call({"logits", "--model", OuroDemo(), "--device", "cpu", "--prompt",
                              "Once upon a time", "--exit-gate"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("threshold"), std::string::npos) << run.out;
  ExpectRefusal({"logits", "--model", RavenDemo(), "--tokens", "1,2", "--exit-gate"},
                {"exit gate", "Ouro"});
  ExpectRefusal({"logits", "--model", OuroDemo(), "--tokens", "1,2", "--depths", "4", "--exit-gate",
                 "--kv-type", "loops"},
                {"--kv-type loops", "--exit-gate", "bf16 or int8"});
  ExpectRefusal({"logits", "--model", OuroDemo(), "--tokens", "1,2"}, {"--output", "--lens"});
  ExpectRefusal({"logits", "--model", OuroDemo(), "--tokens", "1,2", "--lens", "x.txt"},
                {"x.txt", ".npz"});
}

}  // namespace
}  // namespace loopspec::test

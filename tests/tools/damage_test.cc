// Models that are not what they should be: no files at all, numbers that are none, weights that go
// away under the program, sizes that no machine has. Each ends in one sentence, at once.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "tests/tools/cli.h"
#include "tests/tools/tiny_model.h"

namespace loopspec::test {
namespace {

namespace fs = std::filesystem;

void MakeSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
}

// A folder with every file a model can have, all of them good.
std::string WholeModel(const Scratch& scratch) {
  const std::string folder = TinyModel::Ouro().Save(scratch, "m");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(OuroDemo() + "/" + name, folder + "/" + name);
  scratch.Write("m/generation_config.json", "{}");
  scratch.Write("m/special_tokens_map.json", "{}");
  scratch.Write("m/chat_template.jinja", "{{ messages[0].content }}");
  return folder;
}

const std::vector<std::string> kModelFiles = {
    "config.json",           "model.safetensors",      "tokenizer.json",
    "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
    "chat_template.jinja"};

TEST(Files, OnlyRegularOnesAreRead) {
  for (const std::string& name : kModelFiles) {
    for (const std::string kind : {"a pipe", "a device", "a socket", "a folder"}) {
      SCOPED_TRACE(name + " is " + kind);
      const Scratch scratch;
      const std::string folder = WholeModel(scratch), file = folder + "/" + name;
      fs::remove(file);
      if (kind == "a pipe") {
        ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
      } else if (kind == "a device") {
        fs::create_symlink("/dev/zero", file);
      } else if (kind == "a socket") {
        MakeSocket(file);
      } else {
        fs::create_directory(file);
      }
      RunOptions soon;
      soon.timeout = 120;
      ExpectRefusal({"generate", "--model", folder, "--tokens", "1", "-n", "2"}, {name, kind},
                    soon);
    }
  }
}

TEST(Files, ShardsAndIndexToo) {
  const Scratch scratch;
  const std::string folder = TinyModel::Ouro().Save(scratch, "m");
  fs::remove(folder + "/model.safetensors");
  scratch.Write("m/model.safetensors.index.json", R"({"weight_map": {"a": "s.safetensors"}})");
  ASSERT_EQ(mkfifo((folder + "/s.safetensors").c_str(), 0600), 0);
  ExpectRefusal({"inspect", "--model", folder}, {"s.safetensors", "a pipe"});
  fs::remove(folder + "/model.safetensors.index.json");
  ASSERT_EQ(mkfifo((folder + "/model.safetensors.index.json").c_str(), 0600), 0);
  ExpectRefusal({"inspect", "--model", folder}, {"index.json", "a pipe"});
}

TEST(Files, SizesAreBounded) {
  const Scratch scratch;
  const std::string folder = WholeModel(scratch);
  fs::resize_file(folder + "/config.json", uint64_t{1} << 40);  // takes no room on the disk
  RunOptions soon;
  soon.timeout = 120;
  ExpectRefusal({"inspect", "--model", folder}, {"config.json", "1099511627776", "limit"}, soon);
  TinyModel::Ouro().Save(scratch, "m");
  fs::resize_file(folder + "/tokenizer.json", uint64_t{1} << 40);
  ExpectRefusal({"tokenize", "--model", folder, "a"}, {"tokenizer.json", "limit"}, soon);
  // What a user gives may be a pipe, but not without an end.
  ExpectRefusal({"generate", "--model", OuroDemo(), "--prompt-file", "/dev/zero"},
                {"/dev/zero", "limit"}, soon);
}

TEST(Files, LinksThatPointNowhereAreNamed) {
  for (const std::string& name : kModelFiles) {
    SCOPED_TRACE(name);
    const Scratch scratch;
    const std::string folder = WholeModel(scratch);
    fs::remove(folder + "/" + name);
    fs::create_symlink("../gone/blob", folder + "/" + name);
    ExpectRefusal({"generate", "--model", folder, "--tokens", "1", "-n", "2"},
                  {name, "link", "../gone/blob"});
  }
  const Scratch scratch;
  fs::create_symlink("nowhere", scratch / "model");
  ExpectRefusal({"inspect", "--model", scratch / "model"}, {"model", "link", "nowhere"});
}

// ---- Numbers that are none

// The tiny model with one element of a tensor replaced.
std::string WithValue(const Scratch& scratch, const std::string& tensor, float value) {
  const TinyModel model = TinyModel::Ouro();
  const std::string folder = model.Save(scratch, "m");
  std::string file = model.Safetensors();
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), 8);
  const Json header = Json::parse(file.substr(8, header_size));
  const size_t at = 8 + header_size + header.at(tensor).at("data_offsets")[0].get<size_t>();
  std::memcpy(file.data() + at, &value, sizeof(value));
  scratch.Write("m/model.safetensors", file);
  return folder;
}

TEST(DamagedLogits, NanAndInfinityStopTheRunWithPositionAndDepth) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const char* compute : {"f32", "bf16"}) {
      const Scratch scratch;
      const std::string model = WithValue(scratch, "lm_head.weight", bad);
      for (const std::vector<std::string>& how : {std::vector<std::string>{"--decode", "ar"},
                                                  {"--depths", "1,2"},
                                                  {"--temperature", "1"},
                                                  {"--temperature", "1", "--sampler", "coupled"},
                                                  {"--json", "--logprobs", "2"}}) {
        SCOPED_TRACE(fmt::format("{} {} {}", bad, compute, how[0]));
        std::vector<std::string> arguments = {"generate",  "--model", model, "--tokens", "1,2",
                                              "--compute", compute,   "-n",  "8"};
        arguments.insert(arguments.end(), how.begin(), how.end());
        const RunResult result = Call(arguments);
        EXPECT_EQ(result.code, 2);
        // The first readout is that of the prompt's last token.
        const std::string depth = how[0] == "--decode" ? "depth 4" : "depth 1";
        EXPECT_NE(result.err.find("logits at position 1, " + depth), std::string::npos)
            << result.err;
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
      }
    }
  }
  // A bad embedding of a token that comes up later, and states that stay finite without it.
  const Scratch scratch;
  const std::string model = WithValue(scratch, "model.embed_tokens.weight", NAN);
  EXPECT_EQ(Call({"generate", "--model", model, "--tokens", "1,0", "-n", "4"}).code, 2);
}

TEST(DamagedLogits, TheLogitsCommandWritesThemAndWarns) {
  const Scratch scratch;
  const std::string model = WithValue(scratch, "lm_head.weight", NAN);
  const RunResult result =
      Call({"logits", "--model", model, "--tokens", "1,2", "-o", scratch / "l.safetensors"});
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.err.find("position 0, depth 1"), std::string::npos) << result.err;
  EXPECT_TRUE(fs::exists(scratch / "l.safetensors"));
}

// ---- Weights that go away

TEST(Weights, CutShortWhileInUse) {
  const Scratch scratch;
  fs::copy(OuroDemo(), scratch / "m");
  const std::string weights = scratch / "m/model.safetensors";
  fs::permissions(weights, fs::perms::owner_write, fs::perm_options::add);
  RunOptions cut;
  cut.after_output = [&] { fs::resize_file(weights, 4096); };
  const RunResult result = Call({"generate", "--model", scratch / "m", "--prompt", "Once upon a",
                                 "--ignore-eos", "-n", "2000", "--threads", "1"},
                                cut);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, fmt::format("loopspec: {}: the file was cut short or could not be read "
                                    "while it was in use\n",
                                    weights));
}

// ---- Sizes that no machine has

TEST(Memory, IsRefusedAtOnceWithTheSize) {
  const Scratch scratch;
  const std::string model = OuroDemo();
  RunOptions soon;
  soon.timeout = 120;
  const std::string context = "max_position_embeddings=1073741824";
  const auto refuse = [&](const std::vector<std::string>& arguments,
                          const std::vector<std::string>& words) {
    ExpectRefusal(arguments, words, soon);
  };
  refuse({"generate", "--model", model, "-p", "a", "-n", "1000000000", "--set", context},
         {"1000000001 positions", "GB of memory"});
  refuse({"generate", "--model", model, "-p", "a", "--kv-memory", "900000G"},
         {"900000.0 GB of memory"});
  // Live branches alone: a cell holds the keys and values of every depth.
  refuse({"generate", "--model", model, "-p", "a", "-n", "2", "--recurrence", "4096", "--max-rows",
          "256", "--compute", "f32", "--set", "num_hidden_layers=6", "--kv-memory", "800000G"},
         {"GB of memory"});
  const std::string prompts = scratch.Write("p.txt", "Hello\n");
  refuse({"bench", "--model", model, "--prompts", prompts, "--decode", "ar", "-n", "1000000000",
          "--set", context},
         {"positions", "GB of memory"});
  std::string tokens = "1";
  for (int i = 1; i < 2048; ++i) tokens += ",1";
  refuse(
      {"logits", "--model", model, "--recurrence", "4096", "--tokens", tokens, "-o", scratch / "l"},
      {"logits of 4096 depths, 2048 positions", "GB of memory"});
  // 421 GB, which a disk may well have.
  if (fs::space(scratch.path()).available < 400'000'000'000) {
    refuse({"synth", "--like", "ouro-2.6b", "--layers", "4096", "--output", scratch / "twin",
            "--no-measure"},
           {"GB", "disk"});
  }
  // A conversation takes the context it can get.
  RunOptions piped;
  piped.input = "Hello.\n";
  const RunResult chat =
      Call({"chat", "--model", model, "-n", "2", "--set", context, "--threads", "1"}, piped);
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_NE(chat.err.find("of the model's context of 1073741824"), std::string::npos) << chat.err;
}

}  // namespace
}  // namespace loopspec::test

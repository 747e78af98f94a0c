// loopspec quantize and --kv-type from outside: a folder that loads like any other, the same text
// by drafts and without, a report, and refusals in one line.
#include <gtest/gtest.h>

#include <filesystem>

#include "tensor/safetensors.h"
#include "tests/support/gguf_writer.h"
#include "tests/tools/cli.h"

namespace loopspec::test {
namespace {

// Drafts change nothing, and they are accepted.
void ExpectLossless(const std::vector<std::string>& model) {
  std::vector<std::string> arguments = {"--prompt", kStory, "--max-tokens", "24", "--ignore-eos"};
  arguments.insert(arguments.end(), model.begin(), model.end());
  std::vector<std::string> plain = arguments;
  plain.insert(plain.end(), {"--decode", "ar"});
  const Json ours = Generate(arguments);
  EXPECT_EQ(Ids(ours), Ids(Generate(plain)));
  EXPECT_GT(ours.at("stats").at("gamma").get<double>(), 1.2);
}

TEST(QuantizeCommand, WritesAModelThatLoadsLikeAnyOther) {
  const Scratch scratch;
  const std::string texts = scratch.Write(
      "texts.txt", "Tom had a red ball.\nOnce upon a time there was a little girl.\n");
  for (const std::string to : {"int8", "int4"}) {
    const std::string folder = scratch / to;
    const RunResult made = Call({"quantize", "--model", OuroDemo(), "--to", to, "--output", folder,
                                 "--prompts", texts, "--max-tokens", "24"});
    ASSERT_EQ(made.code, 0) << made.err;
    for (const char* words : {"perplexity", "total variation distance", "same likeliest token",
                              "agrees with last", "instead of"})
      EXPECT_NE(made.out.find(words), std::string::npos) << made.out;
    const Json inspected = Call({"inspect", "--model", folder, "--json"}).json();
    EXPECT_EQ(inspected.at("weight_type"), to);
    EXPECT_LT(inspected.at("kv_bytes_per_token_int8"), inspected.at("kv_bytes_per_token_bf16"));
    // The head has weights of its own now, and the embedding is bf16 on a GPU.
    const int vocabulary = 384 * 8192, elements = vocabulary + 6 * (4 * 384 * 384 + 3 * 384 * 1024),
              outputs = 8192 + 6 * (5 * 384 + 2 * 1024);
    EXPECT_EQ(inspected.at("gpu_weight_bytes"),
              2 * vocabulary +
                  (to == "int8" ? elements + 4 * outputs : elements / 2 + elements / 32 * 2));
    ExpectLossless({"--model", folder});
    // The same bytes again.
    const std::string again = scratch / (to + "-again");
    ASSERT_EQ(Call({"quantize", "--model", OuroDemo(), "--to", to, "--output", again, "--prompts",
                    texts, "--max-tokens", "24", "--threads", "1"})
                  .code,
              0);
    EXPECT_TRUE(Slurp(folder + "/model.safetensors") == Slurp(again + "/model.safetensors")) << to;
  }
  ExpectRefusal({"quantize", "--model", scratch / "int8", "--to", "int4", "-o", scratch / "twice"},
                {"quantized already"});
  ExpectRefusal({"quantize", "--model", OuroDemo(), "--to", "int8", "-o", scratch / "int8"},
                {"holds a model already"});
}

// int4 without a word about texts: fitted to the built-in ones, judged by others, and the better of
// the two ways is kept.
TEST(QuantizeCommand, FitsToBuiltInTextsAndSaysWhatItKept) {
  const Scratch scratch;
  const auto quantize = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"quantize",     "--model",      OuroDemo(),
                                          "--to",         "int4",         "--output",
                                          scratch / name, "--max-tokens", "48"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  };
  const RunResult both = quantize("both", {});
  ASSERT_EQ(both.code, 0) << both.err;
  for (const char* words : {"over 48 positions of another kind of text", "by GPTQ", "rounded",
                            "kept: ", "text of another kind than it was fitted to"})
    EXPECT_NE(both.out.find(words), std::string::npos) << both.out;
  EXPECT_EQ(both.out.find("kept: rounded") != std::string::npos,
            both.err.find("GPTQ loses to rounding") != std::string::npos)
      << both.out << both.err;
  // Neither fitted nor judged: what was rounded.
  const RunResult none = quantize("none", {"--prompts", "none", "--judge", "none"});
  ASSERT_EQ(none.code, 0) << none.err;
  EXPECT_NE(none.out.find("not compared with the source"), std::string::npos) << none.out;
  EXPECT_NE(none.err.find("rounded as they are"), std::string::npos) << none.err;
  // Fitted to one thing and judged by nothing but text that it was never made for: the two reports
  // are those of the user's own texts and of --judge.
  const std::string ones = scratch.Write("ones.txt", "1 1 1 1 1 1 1 1 1 1\n2 2 2 2 2 2 2 2\n");
  const std::string prose = scratch.Write("prose.txt", "The ship left the harbour at noon.\n");
  const RunResult own = quantize("own", {"--prompts", ones, "--judge", prose});
  ASSERT_EQ(own.code, 0) << own.err;
  for (const char* words : {"of text of the kind it was fitted to", "of text of another kind"})
    EXPECT_NE(own.out.find(words), std::string::npos) << own.out;
  EXPECT_NE(own.out.find("kept: rounded"), std::string::npos) << own.out;
  EXPECT_TRUE(Slurp(scratch / "own" + "/model.safetensors") ==
              Slurp(scratch / "none" + "/model.safetensors"));
}

TEST(QuantizeCommand, Refusals) {
  const Scratch scratch;
  ExpectRefusal({"quantize", "--model", OuroDemo(), "--to", "int3", "-o", scratch / "x"},
                {"--to", "int3"});
  ExpectRefusal({"quantize", "--model", OuroDemo(), "--to", "int8"}, {"--output"});
  const std::string empty = scratch.Write("empty.txt", "\n");
  ExpectRefusal(
      {"quantize", "--model", OuroDemo(), "--to", "int8", "-o", scratch / "x", "--prompts", empty},
      {"empty.txt"});
  ExpectRefusal({"quantize", "--model", OuroDemo(), "--to", "int8", "-o", scratch / "x",
                 "--kv-type", "int4", "--no-calibration"},
                {"--kv-type", "int4"});
  EXPECT_FALSE(std::filesystem::exists(scratch / "x"));
}

TEST(KvTypeOption, Int8IsLosslessAndSaysWhatItIs) {
  ExpectLossless({"--model", OuroDemo(), "--kv-type", "int8", "--device", "cpu"});
  ExpectRefusal({"generate", "--model", OuroDemo(), "--prompt", "x", "--kv-type", "int4"},
                {"--kv-type", "int4", "loops or loops:PLAN"});
  ExpectRefusal(
      {"generate", "--model", OuroDemo(), "--prompt", "x", "--kv-type", "bf16", "--compute", "f32"},
      {"bf16", "f32"});
}

TEST(KvTypeOption, LoopsIsTheModelsPlan) {
  // As long as plans matter: they begin after two spans.
  std::string prompt;
  while (prompt.size() < 1200) prompt += "Once upon a time there was a cat, and it had a hat. ";
  const auto tokens = [&](const std::string& keys) {
    return Call({"generate", "--model", OuroDemo(), "--prompt", prompt, "--json", "-n", "40",
                 "--ignore-eos", "--device", "cpu", "--kv-type", keys})
        .json()
        .at("token_ids");
  };
  EXPECT_EQ(tokens("loops"), tokens("loops:int8,r5,r4@64"));
}

// ouro-demo as a GGUF file, weights as they are: rows of q and k in the order of interleaved
// rotary, tokenizer and template among the metadata.
std::string OuroGguf() {
  const std::filesystem::path folder = OuroDemo();
  const Json config = ReadJsonFile(folder / "config.json");
  const Json tokenizer = ReadJsonFile(folder / "tokenizer.json");
  GgufWriter file;
  file.Text("general.architecture", "ouro");
  const auto number = [&](const char* key, const char* from) {
    file.Number(std::string("ouro.") + key, config.at(from).get<uint32_t>());
  };
  number("embedding_length", "hidden_size");
  number("feed_forward_length", "intermediate_size");
  number("block_count", "num_hidden_layers");
  number("attention.head_count", "num_attention_heads");
  number("attention.head_count_kv", "num_key_value_heads");
  number("attention.key_length", "head_dim");
  number("context_length", "max_position_embeddings");
  number("num_loops", "total_ut_steps");
  file.Real("ouro.attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").get<float>());
  file.Real("ouro.rope.freq_base", config.at("rope_theta").get<float>());
  std::vector<std::string> tokens(8192), merges;
  std::vector<int32_t> kinds(8192, 1);
  for (const auto& [token, id] : tokenizer.at("model").at("vocab").items())
    tokens[id.get<size_t>()] = token;
  for (const Json& added : tokenizer.at("added_tokens")) {
    tokens[added.at("id").get<size_t>()] = added.at("content");
    kinds[added.at("id").get<size_t>()] = 3;
  }
  for (const Json& merge : tokenizer.at("model").at("merges")) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  file.Text("tokenizer.ggml.model", "gpt2");
  file.Text("tokenizer.ggml.pre", "smollm");
  file.Texts("tokenizer.ggml.tokens", tokens);
  file.Numbers("tokenizer.ggml.token_type", kinds);
  file.Texts("tokenizer.ggml.merges", merges);
  file.Number("tokenizer.ggml.bos_token_id", 0);
  file.Number("tokenizer.ggml.eos_token_id", 2);
  file.Flag("tokenizer.ggml.add_bos_token", false);
  file.Text("tokenizer.chat_template",
            ReadJsonFile(folder / "tokenizer_config.json").at("chat_template"));
  const Checkpoint checkpoint = Checkpoint::Open(folder);
  const int64_t head = config.at("head_dim").get<int64_t>();
  const std::vector<std::pair<std::string, std::string>> names = {
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"input_layernorm", "attn_norm"},
      {"input_layernorm_2", "attn_post_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"post_attention_layernorm_2", "ffn_post_norm"}};
  const auto add = [&](const std::string& from, const std::string& to) {
    const TensorView& view = checkpoint.tensors().at(from);
    std::string data(reinterpret_cast<const char*>(view.data), view.bytes());
    std::vector<uint64_t> extents;
    for (const int64_t extent : view.shape)
      extents.insert(extents.begin(), static_cast<uint64_t>(extent));
    if (to.ends_with("attn_q.weight") || to.ends_with("attn_k.weight")) {
      const auto row = static_cast<size_t>(view.shape[1]) * 2;
      for (int64_t r = 0; r < view.shape[0]; ++r) {
        const int64_t j = r % head, at = r - j + (j < head / 2 ? 2 * j : 2 * (j - head / 2) + 1);
        data.replace(static_cast<size_t>(at) * row, row,
                     reinterpret_cast<const char*>(view.data) + static_cast<size_t>(r) * row, row);
      }
    }
    file.Tensor(to, extents, 30, data);
  };
  add("model.embed_tokens.weight", "token_embd.weight");
  add("model.norm.weight", "output_norm.weight");
  for (int layer = 0; layer < config.at("num_hidden_layers").get<int>(); ++layer) {
    for (const auto& [from, to] : names)
      add("model.layers." + std::to_string(layer) + "." + from + ".weight",
          "blk." + std::to_string(layer) + "." + to + ".weight");
  }
  return file.File();
}

TEST(GgufFile, IsTheModelItWasMadeFrom) {
  const Scratch scratch;
  const std::string file = scratch.Write("ouro.gguf", OuroGguf());
  const std::vector<std::string> rest = {"--prompt", kStory, "--max-tokens", "24"};
  const auto text = [&](const std::string& model) {
    std::vector<std::string> arguments = {"--model", model};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return Generate(arguments);
  };
  const Json ours = text(file), theirs = text(OuroDemo());
  EXPECT_EQ(Ids(ours), Ids(theirs));
  EXPECT_EQ(ours.at("text"), theirs.at("text"));
  const std::string words = "It's 2026: caf\u00e9 <|im_end|>\n";
  EXPECT_EQ(Call({"tokenize", "--model", file, words}).out,
            Call({"tokenize", "--model", OuroDemo(), words}).out);
  EXPECT_EQ(Call({"detokenize", "--model", file, "17,300,2"}).out,
            Call({"detokenize", "--model", OuroDemo(), "17,300,2"}).out);
  const std::string messages = scratch.Write("m.json", R"([{"role": "user", "content": "hi"}])");
  EXPECT_EQ(Call({"template", "--model", file, "--messages", messages}).out,
            Call({"template", "--model", OuroDemo(), "--messages", messages}).out);
  const RunResult inspected = Call({"inspect", "--model", file});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  ExpectRefusal({"quantize", "--model", file, "--to", "int8", "-o", scratch / "x"}, {"GGUF"});
  ExpectRefusal({"inspect", scratch.path().string()},
                {"not a model folder, but ouro.gguf in it may be one"});
}

}  // namespace
}  // namespace loopspec::test

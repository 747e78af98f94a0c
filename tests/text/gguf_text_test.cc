// A tokenizer in a GGUF file gives the ids and texts of the tokenizer.json it was made from.
#include "text/gguf_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "text/special_tokens.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = LOOPSPEC_SOURCE_DIR;
const fs::path kData = LOOPSPEC_TOKENIZER_DATA;

// What a converter would write of a tokenizer.json.
Json MetadataOf(const Json& file, const std::string& model, const std::string& pre) {
  const Json& bpe = file.at("model");
  std::vector<std::string> tokens(bpe.at("vocab").size());
  std::vector<int> kinds(tokens.size(), 1);
  for (const auto& [token, id] : bpe.at("vocab").items()) tokens[id.get<size_t>()] = token;
  for (const Json& added : file.at("added_tokens")) {
    const auto id = added.at("id").get<size_t>();
    if (id >= tokens.size()) {
      tokens.resize(id + 1);
      kinds.resize(id + 1, 1);
    }
    tokens[id] = added.at("content");
    kinds[id] = added.at("special").get<bool>() ? 3 : 4;
  }
  Json metadata = {{"tokenizer.ggml.model", model}, {"tokenizer.ggml.tokens", tokens}};
  if (model == "llama") {
    // Bytes, then pieces in the order in which they were learnt, each scored by its place; runs of
    // spaces are a last resort.
    std::vector<double> scores(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].size() == 6 && tokens[i].starts_with("<0x")) kinds[i] = 6;
      if (tokens[i] == "<unk>") kinds[i] = 2;
      scores[i] = kinds[i] != 1 ? 0 : 259 - static_cast<double>(i);
      std::string rest = tokens[i];
      for (size_t at; (at = rest.find("\u2581")) != std::string::npos;) rest.erase(at, 3);
      if (rest.empty() && tokens[i].size() > 3) scores[i] = -1e9;
    }
    metadata["tokenizer.ggml.scores"] = scores;
    metadata["tokenizer.ggml.bos_token_id"] = 1;
    metadata["tokenizer.ggml.eos_token_id"] = 2;
  } else {
    std::vector<std::string> merges;
    for (const Json& merge : bpe.at("merges")) {
      merges.push_back(merge.is_string()
                           ? merge.get<std::string>()
                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    }
    metadata["tokenizer.ggml.pre"] = pre;
    metadata["tokenizer.ggml.merges"] = merges;
  }
  metadata["tokenizer.ggml.token_type"] = kinds;
  return metadata;
}

// Texts of all kinds: those that the tokenizers were compared with the library on.
std::vector<std::string> Texts() {
  std::vector<std::string> texts = {"",
                                    " ",
                                    "  leading",
                                    "Hello, world! 12345 6.78\n\n\ttab",
                                    "caf\u00e9 \U0001F600\U0001F468 \u4e2d\u6587 \u2581x",
                                    "<s>a</s> <|endoftext|><|im_end|> it's They'RE",
                                    std::string("nul\0byte", 8)};
  for (const char* name : {"gpt-2", "llama-spm"}) {
    const std::string input =
        ReadFile(kSource / "tests/text/data/vectors" / (std::string(name) + ".inp"));
    const std::string separator = "\n__ggml_vocab_test__\n";
    for (size_t begin = 0, end; (end = input.find(separator, begin)) != std::string::npos;
         begin = end + separator.size())
      texts.push_back(input.substr(begin, end - begin));
  }
  return texts;
}

void ExpectSame(const Tokenizer& ours, const Tokenizer& original) {
  EXPECT_EQ(ours.vocab_size(), original.vocab_size());
  size_t tokens = 0;
  for (const std::string& text : Texts()) {
    for (const bool special : {false, true}) {
      const std::vector<int32_t> ids = original.Encode(text, special);
      ASSERT_EQ(ours.Encode(text, special), ids) << text;
      ASSERT_EQ(ours.Decode(ids, special), original.Decode(ids, special)) << text;
      tokens += ids.size();
    }
  }
  EXPECT_GT(tokens, 1500u);
  for (int32_t id = 0; id < original.vocab_size(); ++id) {
    ASSERT_EQ(ours.IdToToken(id), original.IdToToken(id));
    ASSERT_EQ(ours.IsSpecial(id), original.IsSpecial(id)) << id;
  }
}

TEST(GgufText, ByteLevelTokenizers) {
  struct Case {
    fs::path file;
    const char* pre;
  };
  for (const Case& item :
       {Case{kData / "real/ouro-1.4b.json", "smollm"}, Case{kData / "real/ouro-1.4b.json", "gpt-2"},
        Case{kSource / "models/ouro-demo/tokenizer.json", "smollm"}}) {
    SCOPED_TRACE(item.file);
    Json file = ReadJsonFile(item.file);
    // GPT-2 has no rule for digits.
    if (item.pre == std::string("gpt-2"))
      file["pre_tokenizer"] = Json(file.at("pre_tokenizer").at("pretokenizers").at(1));
    const Json metadata = MetadataOf(file, "gpt2", item.pre);
    ExpectSame(Tokenizer::FromJson(GgufTokenizerJson(metadata, "x.gguf"), "x.gguf"),
               Tokenizer::FromJson(file.dump(), item.file.string()));
  }
}

TEST(GgufText, SentencePiece) {
  const Json original = ReadJsonFile(kData / "real/tinyllama.json");
  const Json metadata = MetadataOf(original, "llama", "");
  const std::string text = GgufTokenizerJson(metadata, "x.gguf");
  // Merges that follow from scores are those of the release, in their order.
  std::vector<std::string> released, ours;
  for (const Json& merge : original.at("model").at("merges")) {
    released.push_back(merge.is_string()
                           ? merge.get<std::string>()
                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  const Json made = ParseJson(text, "x.gguf");
  for (const Json& merge : made.at("model").at("merges"))
    ours.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  EXPECT_EQ(std::set<std::string>(ours.begin(), ours.end()),
            std::set<std::string>(released.begin(), released.end()));
  EXPECT_TRUE(ours == released);
  ExpectSame(Tokenizer::FromJson(text, "x.gguf"),
             Tokenizer::FromJson(original.dump(), "tinyllama.json"));
}

TEST(GgufText, SpecialTokensAndTemplate) {
  Json metadata = {{"tokenizer.ggml.tokens", {"<s>", "</s>", "a", "<end>"}},
                   {"tokenizer.ggml.bos_token_id", 0},
                   {"tokenizer.ggml.eos_token_id", 3},
                   {"tokenizer.ggml.eot_token_id", 1},
                   {"tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}"}};
  const SpecialTokens special = SpecialTokensOf(GgufTokenIds(metadata, "x"), "x", 4);
  EXPECT_EQ(special.bos, 0);
  EXPECT_EQ(special.eos, (std::vector<int32_t>{1, 3}));
  const std::vector<std::pair<std::string, std::string>> set = {{"eos_token_id", "2"}};
  EXPECT_EQ(SpecialTokensOf(GgufTokenIds(metadata, "x"), "x", 4, set).eos, std::vector<int32_t>{2});
  EXPECT_THROW(SpecialTokensOf(GgufTokenIds(metadata, "x"), "x", 3), Error);
  const auto chat = GgufChatTemplate(metadata, "x");
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->Render(ParseOrderedJson(R"([{"role":"user","content":"hi"}])", "m"), {}),
            "<s>hi");
  metadata.erase("tokenizer.chat_template");
  EXPECT_FALSE(GgufChatTemplate(metadata, "x").has_value());
}

TEST(GgufText, Refusals) {
  const auto refused = [](const Json& metadata) -> std::string {
    try {
      GgufTokenizerJson(metadata, "x.gguf");
    } catch (const Error& error) {
      return error.what();
    }
    return "not refused";
  };
  const Json good = {{"tokenizer.ggml.model", "gpt2"},
                     {"tokenizer.ggml.pre", "smollm"},
                     {"tokenizer.ggml.tokens", {"a", "b"}},
                     {"tokenizer.ggml.merges", Json::array()}};
  EXPECT_EQ(refused(good), "not refused");
  const auto with = [&](const char* key, const Json& value) {
    Json changed = good;
    changed[std::string("tokenizer.ggml.") + key] = value;
    return refused(changed);
  };
  EXPECT_NE(with("model", "rwkv").find("rwkv"), std::string::npos);
  EXPECT_NE(with("pre", "tekken").find("tekken"), std::string::npos);
  EXPECT_NE(with("tokens", Json::array()).find("missing"), std::string::npos);
  EXPECT_NE(with("tokens", {"a", "\xff"}).find("place 1"), std::string::npos);
  EXPECT_NE(with("tokens", 7).find("no list"), std::string::npos);
  EXPECT_NE(with("token_type", {1}).find("1 entries"), std::string::npos);
  EXPECT_NE(with("token_type", {"x", 1}).find("place 0"), std::string::npos);
  EXPECT_NE(with("scores", {"x", 1}).find("place 0"), std::string::npos);
  EXPECT_NE(with("merges", {1}).find("place 0"), std::string::npos);
  Json bare = good;
  bare.erase("tokenizer.ggml.merges");
  EXPECT_NE(refused(bare).find("merges"), std::string::npos);
}

}  // namespace
}  // namespace loopspec

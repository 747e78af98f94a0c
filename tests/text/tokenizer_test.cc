#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "tests/support/cpu_time.h"
#include "tests/support/temporary_folder.h"
#include "text/bpe.h"
#include "text/incremental_decoder.h"
#include "text/pattern.h"
#include "text/pre_tokenizer.h"
#include "text/special_tokens.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = LOOPSPEC_SOURCE_DIR;
const fs::path kData = LOOPSPEC_TOKENIZER_DATA;

Tokenizer FromFile(const fs::path& path) {
  return Tokenizer::FromJson(ReadFile(path), path.string());
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// A tokenizer.json with the given parts over single letters and a few merges.
Json Small(Json parts = Json::object()) {
  Json json = {{"version", "1.0"},
               {"added_tokens", Json::array()},
               {"model",
                {{"type", "BPE"},
                 {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}, {" ", 5}}},
                 {"merges", {"a b", "ab c"}}}}};
  json.merge_patch(parts);
  return json;
}

std::string ErrorOf(const std::string& json) {
  try {
    Tokenizer::FromJson(json, "t.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   IncrementalDecoder::Options options) {
  IncrementalDecoder decoder(tokenizer, std::move(options));
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    EXPECT_TRUE(IsValidUtf8(piece));
    text += piece;
  }
  return text + decoder.Finish();
}

TEST(Tokenizer, GivesWhatTheLibraryGave) {
  size_t cases = 0;
  for (const Json& group : ReadJsonFile(kData / "expected.json")) {
    const auto name = group["tokenizer"].get<std::string>();
    const Tokenizer tokenizer = FromFile(kData / name);
    for (const Json& expected : group["cases"]) {
      const std::string text = FromHex(expected[0]);
      const auto ids = tokenizer.Encode(text, true);
      ASSERT_EQ(ids, expected[1].get<std::vector<int32_t>>()) << name << " on " << text;
      ASSERT_EQ(tokenizer.Encode(text, false), expected[2].get<std::vector<int32_t>>())
          << name << " on " << text;
      for (const bool skip : {false, true}) {
        const auto decoded = expected[skip ? 4 : 3].get<std::string>();
        ASSERT_EQ(tokenizer.Decode(ids, skip), decoded) << name << " on " << text;
        ASSERT_EQ(Stream(tokenizer, ids, {skip, {}, {}}), decoded) << name << " on " << text;
      }
      ++cases;
    }
  }
  EXPECT_GT(cases, 7800u);
}

// Test vectors of llama.cpp: texts, and lines of ids without special tokens.
void CheckVectors(const Tokenizer& tokenizer, const fs::path& vectors) {
  const std::string input = ReadFile(vectors.string() + ".inp");
  std::ifstream output(vectors.string() + ".out");
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t begin = 0, count = 0;
  while (begin <= input.size()) {
    const size_t end = input.find(separator, begin);
    if (end == std::string::npos) break;
    std::string line;
    ASSERT_TRUE(std::getline(output, line));
    std::istringstream numbers(line);
    const std::vector<int32_t> expected{std::istream_iterator<int32_t>(numbers), {}};
    const std::string text = input.substr(begin, end - begin);
    EXPECT_EQ(tokenizer.Encode(text, false), expected) << text;
    begin = end + separator.size();
    ++count;
  }
  EXPECT_GT(count, 40u);
}
const fs::path kVectors = kSource / "tests/text/data/vectors";
// 450 KB that say little beside Ouro's, which is a byte-level BPE too.
TEST(TokenizerVectors, Gpt2) {
  const fs::path folder = kSource / "../shared/tokenizers/gpt2";
  if (!fs::exists(folder)) GTEST_SKIP() << "no GPT-2 tokenizer in ../shared/tokenizers/gpt2";
  CheckVectors(Tokenizer::FromFolder(folder), kVectors / "gpt-2");
}
TEST(TokenizerVectors, Llama2) {
  CheckVectors(FromFile(kData / "real/tinyllama.json"), kVectors / "llama-spm");
}
// Its licence does not let the tokenizer be part of this repository.
TEST(TokenizerVectors, Llama3) {
  const fs::path folder = kSource / "../shared/tokenizers";
  if (!fs::exists(folder / "llama3"))
    GTEST_SKIP() << "no Llama 3 tokenizer in ../shared/tokenizers/llama3";
  CheckVectors(Tokenizer::FromFolder(folder / "llama3"),
               folder / "vectors/ggml-vocab-llama-bpe.gguf");
}

TEST(Tokenizer, DemoModelRoundTrip) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(kSource / "models" / "ouro-demo");
  EXPECT_EQ(tokenizer.vocab_size(), 8192);
  const std::string text = "Once upon a time, 12 caf\u00e9s \U0001F600\n\t<|im_end|>";
  const auto ids = tokenizer.Encode(text);
  EXPECT_EQ(tokenizer.Decode(ids, false), text);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_TRUE(tokenizer.IsSpecial(2));
  EXPECT_EQ(tokenizer.IdToToken(2), "<|im_end|>");
  EXPECT_EQ(tokenizer.TokenToId("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.TokenToId("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.IdToToken(9999), "");
  EXPECT_EQ(tokenizer.IdToToken(-1), "");
  EXPECT_FALSE(tokenizer.IsSpecial(-1));
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{-5, 99999, 2}, false), "<|im_end|>");
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(kSource / "models" / "ouro-demo");
  const std::string fffd = "\uFFFD";
  EXPECT_EQ(tokenizer.Encode("a\xF0\x9F\x98z"), tokenizer.Encode("a" + fffd + "z"));
  EXPECT_EQ(tokenizer.Encode("\xED\xA0\x80"), tokenizer.Encode(fffd + fffd + fffd));
  EXPECT_EQ(tokenizer.Encode("\xC3"), tokenizer.Encode(fffd));
}

TEST(Tokenizer, OneLongWordIsNotQuadratic) {
  std::string word;
  for (int64_t i = 0; i < 1'000'000; ++i) word.push_back(static_cast<char>('a' + i * i % 23));
  for (const char* name : {"real/ouro-1.4b.json", "real/tinyllama.json"}) {
    const Tokenizer tokenizer = FromFile(kData / name);
    const double begin = CpuSeconds();
    const auto ids = tokenizer.Encode(word, false);
    EXPECT_LT(CpuSeconds() - begin, 20);
    EXPECT_EQ(tokenizer.Decode(ids, false), word);
  }
}

// A text that must have too many tokens is given up before any work; one that turns out to, in
// time.
TEST(Tokenizer, StopsAtItsLimits) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(kSource / "models/ouro-demo");
  ASSERT_EQ(tokenizer.bytes_per_token(), 32u);
  int asked = 0;
  bool stop = false;
  EncodeLimits limits;
  limits.max_tokens = 2048;
  limits.cancelled = [&] {
    ++asked;
    return stop;
  };
  const auto at_least = [&](const std::string& text) -> int64_t {
    try {
      tokenizer.Encode(text, true, limits);
    } catch (const TooManyTokens& error) {
      return error.at_least();
    }
    return 0;
  };
  EXPECT_EQ(at_least(std::string(32 * 2048 + 1, 'a')), 2049);
  EXPECT_EQ(at_least(std::string(16 << 20, ' ')), (16 << 20) / 32);
  EXPECT_EQ(asked, 0);

  std::string words;
  for (int i = 0; i < 8000; ++i) words += " the";
  const std::vector<int32_t> all = tokenizer.Encode(words);
  ASSERT_GT(all.size(), 4000u);
  EXPECT_GT(at_least(words), 2048);
  EXPECT_LT(at_least(words), 2100);  // and not the rest of them
  limits.max_tokens = static_cast<int64_t>(all.size());
  EXPECT_EQ(tokenizer.Encode(words, true, limits), all);

  // Within one long word as well.
  limits.max_tokens = INT64_MAX;
  std::string word;
  for (int64_t i = 0; i < 1 << 18; ++i) word.push_back(static_cast<char>('a' + i * i % 23));
  asked = 0;
  const std::vector<int32_t> long_word = tokenizer.Encode(word, true, limits);
  EXPECT_EQ(long_word, tokenizer.Encode(word));
  EXPECT_GT(asked, 4);
  stop = true;
  asked = 0;
  EXPECT_THROW(tokenizer.Encode(word, true, limits), EncodeCancelled);
  EXPECT_EQ(asked, 1);
}

// Texts of one letter, which long tokens hold best, never have fewer tokens than their bytes say.
TEST(Tokenizer, BytesPerTokenIsABound) {
  int bounded = 0;
  for (const Json& group : ReadJsonFile(kData / "expected.json")) {
    const auto name = group["tokenizer"].get<std::string>();
    const Tokenizer tokenizer = FromFile(kData / name);
    const size_t each = tokenizer.bytes_per_token();
    if (each == 0) continue;
    ++bounded;
    for (const Json& expected : group["cases"]) {
      const size_t bytes = FromHex(expected[0]).size();
      ASSERT_GE(expected[2].size() * each, bytes) << name << " on " << expected[0];
    }
    std::mt19937 random(1);
    for (int round = 0; round < 30; ++round) {
      constexpr std::string_view kLetters = " \n\t=-_.*#/a0\\";
      std::string text;
      for (int run = 0; run < 3; ++run)
        text.append(1 + random() % 600, kLetters[random() % kLetters.size()]);
      EXPECT_GE(tokenizer.Encode(text, false).size() * each, text.size()) << name;
    }
  }
  EXPECT_GT(bounded, 0);
}

// Runs of one character are merged run by run: the same tokens as pair by pair.
TEST(Tokenizer, RunsGiveTheSameTokens) {
  int compared = 0;
  for (const char* name : {"real/ouro-1.4b.json", "real/tinyllama.json", "demo"}) {
    const std::filesystem::path path = std::string_view(name) == "demo"
                                           ? kSource / "models/ouro-demo/tokenizer.json"
                                           : kData / name;
    const std::string text = ReadFile(path);
    const TokenizerJson file = ReadTokenizerJson(text, name);
    const bool bytes = std::string_view(name) != "real/tinyllama.json";
    const BpeModel model = BpeModel::FromJson(file, bytes, name);
    BpeScratch by_runs, by_pairs;
    by_pairs.by_runs = false;
    std::mt19937 random(4);
    constexpr std::string_view kLetters = " \n\t=-_.*#/a0e1\\x";
    for (int round = 0; round < 3000; ++round) {
      std::string word;
      const size_t most = round % 10 == 0 ? 3000 : 40;
      const int runs = 1 + static_cast<int>(random() % 8);
      for (int run = 0; run < runs; ++run) {
        const char letter = kLetters[random() % kLetters.size()];
        const size_t length = 1 + random() % most;
        if (!bytes && letter == ' ') {
          for (size_t i = 0; i < length; ++i) word += "\u2581";
        } else {
          word.append(length, letter);
        }
      }
      std::vector<int32_t> a, b;
      if (bytes) {
        model.EncodeBytes(word, by_runs, a);
        model.EncodeBytes(word, by_pairs, b);
      } else {
        model.EncodeText(word, by_runs, a);
        model.EncodeText(word, by_pairs, b);
      }
      ASSERT_EQ(a, b) << name << ", round " << round;
      compared += by_runs.runs.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(compared, 4000);
}

// Megabytes of blanks are no work: hardly anything is merged pair by pair.
TEST(Tokenizer, BlanksAreNoWork) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(kSource / "models/ouro-demo");
  for (const char letter : {' ', '\n', 'a'}) {
    int asked = 0;
    EncodeLimits limits;
    limits.cancelled = [&] { return ++asked < 0; };
    const std::string text(8 << 20, letter);
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text, false, limits), false), text);
    EXPECT_LE(asked, 4) << letter;
  }
}

// A pair that the first merge of a run makes may go before the rest of the run: here ranks are not
// in the order in which a trained model has them.
TEST(Tokenizer, RunsOfUnusualMergesGiveTheSameTokens) {
  // Every token of one to four letters a and b; merges in a random order.
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens = {"a", "b"};
    for (size_t i = 0; i < tokens.size() && tokens[i].size() < 4; ++i) {
      tokens.push_back(tokens[i] + "a");
      tokens.push_back(tokens[i] + "b");
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const std::string& token : tokens) {
      for (size_t cut = 1; cut < token.size(); ++cut)
        if (random() % 2 == 0) merges.emplace_back(token.substr(0, cut), token.substr(cut));
    }
    std::shuffle(merges.begin(), merges.end(), random);
    std::string json = R"({"model": {"type": "BPE", "vocab": {)";
    for (size_t i = 0; i < tokens.size(); ++i)
      json += fmt::format(R"({}"{}": {})", i > 0 ? ", " : "", tokens[i], i);
    json += R"(}, "merges": [)";
    for (size_t i = 0; i < merges.size(); ++i)
      json +=
          fmt::format(R"({}["{}", "{}"])", i > 0 ? ", " : "", merges[i].first, merges[i].second);
    json += "]}}";
    const BpeModel model = BpeModel::FromJson(ReadTokenizerJson(json, "test"), false, "test");
    BpeScratch by_runs, by_pairs;
    by_pairs.by_runs = false;
    for (int text = 0; text < 20; ++text) {
      std::string word;
      for (int run = 0; run < 6; ++run) word.append(1 + random() % 40, run % 2 == 0 ? 'a' : 'b');
      std::vector<int32_t> a, b;
      model.EncodeText(word, by_runs, a);
      model.EncodeText(word, by_pairs, b);
      ASSERT_EQ(a, b) << word << " " << json;
    }
  }
}

// Working memory that only a very long word needs is not kept for later.
TEST(Tokenizer, KeepsNoMemoryOfLongWords) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(kSource / "models/ouro-demo");
  const auto held = [] {
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
  };
  tokenizer.Encode("once upon a time");
  const size_t before = held();
  for (int i = 0; i < 2; ++i) tokenizer.Encode(std::string(1 << 19, ' '));
  EXPECT_LT(held(), before + (1 << 20));
}

TEST(Tokenizer, ThreadsEncodeAtOnce) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(kSource / "models" / "ouro-demo");
  const std::string text = ReadFile(kSource / "CMakeLists.txt");
  const auto expected = tokenizer.Encode(text);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i)
        wrong[static_cast<size_t>(t)] += tokenizer.Encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Tokenizer, NamesWhatItDoesNotSupport) {
  EXPECT_EQ(ErrorOf(Small({{"normalizer", {{"type", "Precompiled"}}}}).dump()),
            "t.json: the normalizer has type Precompiled, which is not supported");
  EXPECT_EQ(ErrorOf(Small({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}).dump()),
            "t.json: the pre_tokenizer has type UnicodeScripts, which is not supported");
  EXPECT_EQ(ErrorOf(Small({{"post_processor", {{"type", "BertProcessing"}}}}).dump()),
            "t.json: the post_processor has type BertProcessing, which is not supported");
  EXPECT_EQ(ErrorOf(Small({{"decoder", {{"type", "CTC"}}}}).dump()),
            "t.json: the decoder has type CTC, which is not supported");
  EXPECT_EQ(ErrorOf(Small({{"model", {{"type", "Unigram"}}}}).dump()),
            "t.json: the model has type Unigram, expected BPE");
  EXPECT_EQ(ErrorOf(Small({{"model", {{"dropout", 0.1}}}}).dump()),
            "t.json: model: dropout is 0.1, expected none: encoding with it is random");
}

TEST(Tokenizer, RefusesBrokenFiles) {
  EXPECT_EQ(ErrorOf("{"), "t.json: expected a string at byte 1 of 1");
  EXPECT_EQ(ErrorOf("{}"), "t.json: model is missing");
  EXPECT_EQ(ErrorOf("\xFF"), "t.json: is not valid UTF-8, expected JSON");
  EXPECT_EQ(ErrorOf(Small({{"model", {{"merges", {"a x"}}}}}).dump()),
            "t.json: merge 0 needs the token \"x\", which the vocabulary lacks");
  EXPECT_EQ(ErrorOf(Small({{"model", {{"merges", {"a b c"}}}}}).dump()),
            "t.json: merge 0 is \"a b c\", expected two tokens with one space between");
  EXPECT_EQ(ErrorOf(Small({{"model", {{"vocab", {{"z", 5000000}}}}}}).dump()),
            "t.json: token \"z\" has id 5000000, expected at most 4194303");
  EXPECT_EQ(ErrorOf(Small({{"version", "2.0"}}).dump()), "t.json: version is 2.0, expected 1.0");
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "(a"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  EXPECT_EQ(ErrorOf(Small({{"pre_tokenizer", split}}).dump()).substr(0, 76),
            "t.json: pre_tokenizer Split: the regular expression (a does not compile: mis");
  EXPECT_THROW(Tokenizer::FromFolder("/nonexistent"), Error);
}

TEST(Tokenizer, UnknownTokenThatTheVocabularyLacksFailsOnlyWhenNeeded) {
  const Tokenizer tokenizer =
      Tokenizer::FromJson(Small({{"model", {{"unk_token", "<unk>"}}}}).dump(), "t.json");
  EXPECT_EQ(tokenizer.Encode("abc"), std::vector<int32_t>{4});
  EXPECT_THROW(tokenizer.Encode("x"), Error);
}

TEST(Tokenizer, ReadsEscapedTables) {
  const std::string json =
      R"({"model": {"vocab": {"\u00e9": 0, "\ud83d\ude00": 1, "\"\\\/\n": 2, "a": 3}, "merges": []},)"
      R"( "decoder": {"type": "Fuse"}})";
  const Tokenizer tokenizer = Tokenizer::FromJson(json, "t.json");
  EXPECT_EQ(tokenizer.TokenToId("\u00e9"), 0);
  EXPECT_EQ(tokenizer.TokenToId("\U0001F600"), 1);
  EXPECT_EQ(tokenizer.TokenToId("\"\\/\n"), 2);
  EXPECT_EQ(tokenizer.Encode("a\u00e9"), (std::vector<int32_t>{3, 0}));
}

// --- The hand-written word matchers against the expressions they stand for.

TEST(WordMatcher, AgreesWithTheExpression) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {
      "a",          "B",      "don't",  "'s",     "'S",         "'\u017f",   "'re",    "'LL",
      "'",          " ",      "  ",     "\n",     "\r\n",       "\t",        "\u00a0", "\u3000",
      "1",          "23",     "\u0663", "\u00bd", ".",          "!?",        "\u4f60", "\u0301",
      "\U0001F600", "\u180e", "\u200b", "_",      "\U00031350", "\U000116d0"};
  for (const std::string_view expression : {kGpt2Words, kLlama3Words, kQwen2Words}) {
    const Pattern pattern = Pattern::Regex(expression, "test");
    const WordMatcher matcher = FindWordMatcher(expression);
    ASSERT_NE(matcher, nullptr);
    for (int round = 0; round < 20'000; ++round) {
      std::string text;
      for (size_t i = 0, n = random() % 12; i < n; ++i) text += parts[random() % parts.size()];
      std::vector<Span> spans;
      pattern.Find(text, spans);
      size_t at = 0;
      for (const Span& span : spans) {
        ASSERT_TRUE(span.match);
        ASSERT_EQ(matcher(text, at), span.end - span.begin) << expression << " on " << text;
        at = span.end;
      }
      ASSERT_EQ(at, text.size());
    }
  }
}

TEST(WordMatcher, KnowsNoOtherExpression) {
  EXPECT_EQ(FindWordMatcher(R"(\s+)"), nullptr);
}

// --- Streaming.

TEST(IncrementalDecoder, HidesSpecialTokensButThoughts) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  const auto ids = tokenizer.Encode("<|im_start|><think>so</think>yes<|im_end|>");
  EXPECT_EQ(Stream(tokenizer, ids, {}), "<think>so</think>yes");
  EXPECT_EQ(Stream(tokenizer, ids, {false, {}, {}}), "<|im_start|><think>so</think>yes<|im_end|>");
  EXPECT_EQ(Stream(tokenizer, ids, {true, {}, {}}), "soyes");
}

TEST(IncrementalDecoder, NeverGivesHalfACharacter) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  const std::string text = "\U0001F9D1\u200D\U0001F680 \u0BA8\u0BBF \u4F60";
  IncrementalDecoder decoder(tokenizer, {});
  std::string all;
  for (const int32_t id : tokenizer.Encode(text)) {
    const std::string piece = decoder.Push(id);
    ASSERT_TRUE(IsValidUtf8(piece));
    all += piece;
  }
  EXPECT_EQ(all + decoder.Finish(), text);
}

TEST(IncrementalDecoder, StopsAtTheFirstStopString) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  const auto ids = tokenizer.Encode("one two\n\nUser: three");
  IncrementalDecoder decoder(tokenizer, {true, {}, {"\n\nUser:", "three"}});
  std::string text;
  for (const int32_t id : ids) {
    text += decoder.Push(id);
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(text + decoder.Finish(), "one two");
}

TEST(IncrementalDecoder, GivesBackWhatOnlyLookedLikeAStop) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  const auto ids = tokenizer.Encode("aabaabaaab and aab");
  IncrementalDecoder::Options options{true, {}, {"aabaax", "aaabb"}};
  EXPECT_EQ(Stream(tokenizer, ids, options), "aabaabaaab and aab");
}

TEST(IncrementalDecoder, OverlappingStopsCutWhereTheFirstOneEnds) {
  StopMatcher matcher({"abcde", "cd", ""});
  EXPECT_EQ(matcher.Step('a'), 0u);
  EXPECT_EQ(matcher.Step('b'), 0u);
  EXPECT_EQ(matcher.depth(), 2u);
  EXPECT_EQ(matcher.Step('c'), 0u);
  EXPECT_EQ(matcher.Step('d'), 2u);
}

TEST(IncrementalDecoder, EqualsDecodeOnRandomTokens) {
  std::mt19937 random(3);
  for (const char* name :
       {"real/ouro-1.4b.json", "real/tinyllama.json", "synthetic/decode-fuse-strip-left.json",
        "synthetic/metaspace-first-True.json", "synthetic/decode-replace-long-fuse.json"}) {
    const Tokenizer tokenizer = FromFile(kData / name);
    for (int round = 0; round < 400; ++round) {
      std::vector<int32_t> ids;
      for (size_t i = 0, n = random() % 20; i < n; ++i) {
        // The first 400 ids are where bytes and special tokens lie.
        const auto range = static_cast<uint32_t>(
            random() % 2 == 0 ? std::min(400, tokenizer.vocab_size()) : tokenizer.vocab_size());
        ids.push_back(static_cast<int32_t>(random() % range));
      }
      ASSERT_EQ(Stream(tokenizer, ids, {true, {}, {}}), tokenizer.Decode(ids, true)) << name;
      const std::string whole = tokenizer.Decode(ids, false);
      const std::string cut = whole.substr(0, whole.find("e"));
      ASSERT_EQ(Stream(tokenizer, ids, {false, {}, {"e"}}), cut) << name;
    }
  }
}

// --- Special tokens.

class SpecialTokensTest : public testing::Test {
 protected:
  void Put(const std::string& name, const Json& json) { std::ofstream(dir_ / name) << json; }
  TemporaryFolder dir_;
};

TEST_F(SpecialTokensTest, UnitesTheEndsOfText) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  Put("tokenizer_config.json",
      {{"eos_token", "<|im_end|>"}, {"bos_token", {{"content", "<|endoftext|>"}}}});
  Put("generation_config.json", {{"eos_token_id", {0, 2}}, {"pad_token_id", 4}});
  Put("config.json",
      {{"model_type", "ouro"}, {"eos_token_id", 7}, {"bos_token_id", 1}, {"unk_token_id", -1}});
  const SpecialTokens tokens = ReadSpecialTokens(dir_.path(), &tokenizer);
  EXPECT_EQ(tokens.eos, (std::vector<int32_t>{0, 2, 7}));
  EXPECT_EQ(tokens.bos, 0);
  EXPECT_EQ(tokens.pad, 4);
  EXPECT_EQ(tokens.unk, std::nullopt);
}

TEST_F(SpecialTokensTest, DoesNotAskAStaleConfig) {
  const Tokenizer tokenizer = FromFile(kData / "real/tinyllama.json");
  Put("config.json",
      {{"model_type", "huginn_raven"}, {"eos_token_id", 65505}, {"bos_token_id", 65504}});
  Put("special_tokens_map.json",
      {{"eos_token", "</s>"}, {"bos_token", "<s>"}, {"unk_token", "<unk>"}});
  const SpecialTokens tokens = ReadSpecialTokens(dir_.path(), &tokenizer);
  EXPECT_EQ(tokens.eos, std::vector<int32_t>{2});
  EXPECT_EQ(tokens.bos, 1);
  EXPECT_EQ(tokens.unk, 0);
}

TEST_F(SpecialTokensTest, RefusesEndsOfTextOutsideTheVocabulary) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  const auto error_of = [&](int vocab) -> std::string {
    try {
      ReadSpecialTokens(dir_.path(), &tokenizer, vocab);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  Put("generation_config.json", {{"eos_token_id", {0, 500}}, {"pad_token_id", 99999}});
  EXPECT_EQ(error_of(501), "no error");
  EXPECT_EQ(error_of(500), (dir_ / "generation_config.json").string() +
                               ": eos_token_id is 500, the vocabulary has 500 tokens");
  Put("generation_config.json", {{"eos_token_id", int64_t{1} << 40}});
  EXPECT_NE(error_of(500).find("eos_token_id is 1099511627776"), std::string::npos);
  Put("generation_config.json", Json::object());
  Put("tokenizer_config.json", {{"eos_token", "<|im_end|>"}});
  EXPECT_NE(error_of(2).find("eos_token has id 2, the vocabulary has 2 tokens"), std::string::npos)
      << error_of(2);
}

TEST_F(SpecialTokensTest, OverridesReplaceWhatTheFilesSay) {
  const Tokenizer tokenizer = FromFile(kData / "real/ouro-1.4b.json");
  Put("tokenizer_config.json", {{"eos_token", "<|im_end|>"}});
  Put("generation_config.json", {{"eos_token_id", {0, 2}}});
  Put("config.json", {{"model_type", "huginn_raven"}, {"eos_token_id", 65505}});
  const std::vector<std::pair<std::string, std::string>> overrides = {{"eos_token_id", "[7,5]"},
                                                                      {"hidden_size", "x"}};
  EXPECT_EQ(ReadSpecialTokens(dir_.path(), &tokenizer, 100, overrides).eos,
            (std::vector<int32_t>{5, 7}));
}

TEST_F(SpecialTokensTest, NeedsNoFile) {
  const SpecialTokens tokens = ReadSpecialTokens(dir_.path(), nullptr);
  EXPECT_TRUE(tokens.eos.empty());
  EXPECT_EQ(tokens.bos, std::nullopt);
}

TEST_F(SpecialTokensTest, RefusesWrongTypes) {
  Put("generation_config.json", {{"eos_token_id", "two"}});
  EXPECT_THROW(ReadSpecialTokens(dir_.path(), nullptr), Error);
}

}  // namespace
}  // namespace loopspec

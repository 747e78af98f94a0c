#include "text/gguf_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

constexpr const char* kAdvice = "put the model's tokenizer.json beside the file";

// What llama.cpp calls the kinds of a token.
enum TokenKind : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

struct Piece {
  std::string text;
  int64_t kind = kNormal;
  double score = 0;
};

const Json* FindList(const Json& metadata, const char* key, const std::string& what) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return nullptr;
  if (!it->is_array()) Fail("{}: {} is no list", what, key);
  return &*it;
}

std::vector<Piece> ReadPieces(const Json& metadata, const std::string& what) {
  const Json* tokens = FindList(metadata, "tokenizer.ggml.tokens", what);
  if (tokens == nullptr || tokens->empty())
    Fail("{}: tokenizer.ggml.tokens is missing: {}", what, kAdvice);
  std::vector<Piece> pieces(tokens->size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Json& token = (*tokens)[i];
    if (!token.is_string() || !IsValidUtf8(token.get_ref<const std::string&>()))
      Fail("{}: tokenizer.ggml.tokens holds no text at place {}", what, i);
    pieces[i].text = token.get<std::string>();
  }
  if (const Json* kinds = FindList(metadata, "tokenizer.ggml.token_type", what)) {
    if (kinds->size() != pieces.size())
      Fail("{}: tokenizer.ggml.token_type has {} entries, expected {}", what, kinds->size(),
           pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!(*kinds)[i].is_number_integer())
        Fail("{}: tokenizer.ggml.token_type holds no whole number at place {}", what, i);
      pieces[i].kind = (*kinds)[i].get<int64_t>();
    }
  }
  if (const Json* scores = FindList(metadata, "tokenizer.ggml.scores", what)) {
    if (scores->size() != pieces.size())
      Fail("{}: tokenizer.ggml.scores has {} entries, expected {}", what, scores->size(),
           pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!(*scores)[i].is_number() || !std::isfinite((*scores)[i].get<double>()))
        Fail("{}: tokenizer.ggml.scores holds no number at place {}", what, i);
      pieces[i].score = (*scores)[i].get<double>();
    }
  }
  return pieces;
}

// Bytes of the character at `at` of valid UTF-8.
size_t CharacterBytes(std::string_view text, size_t at) {
  size_t next = at + 1;
  while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xC0u) == 0x80u) ++next;
  return next - at;
}

struct Merge {
  std::string_view left, right;
  double score;
  int64_t left_id, right_id;
};

// SentencePiece joins the two neighbours that make the piece of the best score. The same as merges
// by rank: every way to make a piece of two others, the best pieces first, pieces of one score in
// their order; the ways to make a piece in the order of the released tokenizer.json files.
Json MergesOfScores(const std::vector<Piece>& pieces) {
  std::unordered_map<std::string_view, int64_t> ids;
  for (size_t i = 0; i < pieces.size(); ++i) ids.emplace(pieces[i].text, static_cast<int64_t>(i));
  std::vector<Merge> merges;
  for (const Piece& piece : pieces) {
    if (piece.kind != kNormal || piece.text.empty()) continue;
    const std::string_view text = piece.text;
    const size_t first = merges.size();
    for (size_t at = CharacterBytes(text, 0); at < text.size(); at += CharacterBytes(text, at)) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back(
          {text.substr(0, at), text.substr(at), piece.score, left->second, right->second});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
              [](const Merge& a, const Merge& b) {
                return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
              });
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const Merge& a, const Merge& b) { return a.score > b.score; });
  Json list = Json::array();
  for (const Merge& merge : merges)
    list.push_back({std::string(merge.left), std::string(merge.right)});
  return list;
}

Json AddedToken(size_t id, const Piece& piece) {
  return {{"id", id},
          {"content", piece.text},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", piece.kind != kUserDefined}};
}

Json ByteLevel(bool words) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", words}};
}
Json SplitThenBytes(const char* pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            ByteLevel(false)}}};
}

// How a text falls into words, by llama.cpp's name for it.
Json Words(const std::string& name, const std::string& what) {
  struct Pattern {
    std::string_view name;
    const char* pattern;
  };
  constexpr const char* kLlama3 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  constexpr const char* kQwen2 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  constexpr std::array<Pattern, 5> patterns = {{{"llama-bpe", kLlama3},
                                                {"llama3", kLlama3},
                                                {"dbrx", kLlama3},
                                                {"smaug-bpe", kLlama3},
                                                {"qwen2", kQwen2}}};
  for (const Pattern& known : patterns) {
    if (name == known.name) return SplitThenBytes(known.pattern);
  }
  if (name == "gpt-2" || name == "olmo") return ByteLevel(true);
  if (name == "smollm") {  // Ouro's: digits one by one
    return {
        {"type", "Sequence"},
        {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, ByteLevel(true)}}};
  }
  Fail("{}: tokenizer.ggml.pre is {:.40}, expected smollm, gpt-2, olmo, llama-bpe or qwen2: {}",
       what, Printable(name), kAdvice);
}

struct Ends {
  bool bos, eos;
};

// What is put before and after every text.
Json Surround(const Json& metadata, const std::vector<Piece>& pieces, const Ends& ends,
              const std::string& what) {
  Json single = Json::array(), special = Json::object();
  const auto add = [&](const char* key) {
    const std::string name = fmt::format("tokenizer.ggml.{}_token_id", key);
    const auto id = FindInt(metadata, name, what, 0, std::ssize(pieces) - 1);
    if (!id) return;
    const std::string& text = pieces[static_cast<size_t>(*id)].text;
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    special[text] = {{"id", text}, {"ids", Json::array({*id})}, {"tokens", Json::array({text})}};
  };
  if (ends.bos) add("bos");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (ends.eos) add("eos");
  if (special.empty()) return nullptr;
  Json pair = single;
  for (const Json& part : single) pair.push_back(part);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

}  // namespace

std::string GgufTokenizerJson(const Json& metadata, const std::string& what) {
  const std::string model = FindString(metadata, "tokenizer.ggml.model", what).value_or("");
  if (model != "gpt2" && model != "llama")
    Fail("{}: tokenizer.ggml.model is {:.40}, expected gpt2 or llama: {}", what,
         Printable(model.empty() ? "missing" : model), kAdvice);
  const bool sentencepiece = model == "llama";
  const std::vector<Piece> pieces = ReadPieces(metadata, what);
  const auto flag = [&](const char* key, bool otherwise) {
    return FindBool(metadata, std::string("tokenizer.ggml.") + key, what).value_or(otherwise);
  };
  Json added = Json::array();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.kind == kControl || piece.kind == kUserDefined || piece.kind == kUnknown)
      added.push_back(AddedToken(i, piece));
  }
  Json file = {{"version", "1.0"}, {"added_tokens", std::move(added)}};
  Json bpe = {{"type", "BPE"},
              {"unk_token", nullptr},
              {"fuse_unk", sentencepiece},
              {"byte_fallback", sentencepiece}};
  if (sentencepiece) {
    Json normalizers = Json::array();
    const bool prefix = flag("add_space_prefix", true);
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
    normalizers.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    file["pre_tokenizer"] = nullptr;
    file["post_processor"] = Surround(
        metadata, pieces, {flag("add_bos_token", true), flag("add_eos_token", false)}, what);
    Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    if (prefix)
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    file["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    for (const Piece& piece : pieces) {
      if (piece.kind == kUnknown) bpe["unk_token"] = piece.text;
    }
    bpe["merges"] = MergesOfScores(pieces);
  } else {
    const std::string words = FindString(metadata, "tokenizer.ggml.pre", what).value_or("missing");
    file["normalizer"] = nullptr;
    file["pre_tokenizer"] = Words(words, what);
    file["post_processor"] =
        Surround(metadata, pieces,
                 {flag("add_bos_token", words == "llama-bpe" || words == "llama3"),
                  flag("add_eos_token", false)},
                 what);
    file["decoder"] = ByteLevel(true);
    bpe["ignore_merges"] = words == "llama-bpe" || words == "llama3";
    const Json* merges = FindList(metadata, "tokenizer.ggml.merges", what);
    if (merges == nullptr) Fail("{}: tokenizer.ggml.merges is missing: {}", what, kAdvice);
    Json list = Json::array();
    for (const Json& merge : *merges) {
      if (!merge.is_string() || !IsValidUtf8(merge.get_ref<const std::string&>()))
        Fail("{}: tokenizer.ggml.merges holds no text at place {}", what, list.size());
      list.push_back(merge.get<std::string>());
    }
    bpe["merges"] = std::move(list);
  }
  Json vocab = Json::object();
  for (size_t i = 0; i < pieces.size();
       ++i)  // of two with one text the first is what a text becomes
    vocab.emplace(pieces[i].text, i);
  bpe["vocab"] = std::move(vocab);
  file["model"] = std::move(bpe);
  return file.dump();
}

Json GgufTokenIds(const Json& metadata, const std::string& what) {
  Json ids = Json::object();
  struct Name {
    const char *from, *to;
  };
  for (const Name& name : {Name{"bos", "bos_token_id"}, Name{"padding", "pad_token_id"},
                           Name{"unknown", "unk_token_id"}}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name.from);
    if (const auto id = FindInt(metadata, key, what, 0, INT32_MAX)) ids[name.to] = *id;
  }
  Json ends = Json::array();
  for (const char* name : {"eos", "eot", "eom"}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (const auto id = FindInt(metadata, key, what, 0, INT32_MAX)) ends.push_back(*id);
  }
  ids["eos_token_id"] = std::move(ends);
  return ids;
}

std::optional<ChatTemplate> GgufChatTemplate(const Json& metadata, const std::string& what) {
  auto source = FindString(metadata, "tokenizer.chat_template", what);
  if (!source) return std::nullopt;
  OrderedJson variables = OrderedJson::object();
  const Json* tokens = FindList(metadata, "tokenizer.ggml.tokens", what);
  struct Name {
    const char *from, *to;
  };
  for (const Name& name : {Name{"bos", "bos_token"}, Name{"eos", "eos_token"},
                           Name{"padding", "pad_token"}, Name{"unknown", "unk_token"}}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name.from);
    const auto id = FindInt(metadata, key, what, 0, INT32_MAX);
    if (!id || tokens == nullptr || static_cast<size_t>(*id) >= tokens->size()) continue;
    const Json& token = (*tokens)[static_cast<size_t>(*id)];
    if (token.is_string()) variables[name.to] = token.get<std::string>();
  }
  return ChatTemplate::FromSource(std::move(*source), std::move(variables));
}

}  // namespace loopspec

#include "engine/load/model_text.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/load/model_path.h"
#include "model/gguf_model.h"
#include "tensor/gguf.h"
#include "text/gguf_text.h"

namespace loopspec {
namespace {

// Whether the GGUF file itself must say it.
bool FromGguf(const std::filesystem::path& model) {
  return IsGguf(model) && !FileExists(TextFolder(model) / "tokenizer.json") && FileExists(model);
}

// Where the files of the tokenizer lie: beside config.json, or in a folder of their own, as IFM's
// models have it. A text of such a model begins with one BOS, whatever tokenizer.json says.
std::filesystem::path TokenizerFolder(const std::filesystem::path& model) {
  const std::filesystem::path folder = TextFolder(model), own = folder / "tokenizer";
  const bool apart = !FileExists(folder / "tokenizer.json") && FileExists(own / "tokenizer.json");
  return apart ? own : folder;
}

void BeginWithBos(const std::filesystem::path& model, const SpecialTokens& special,
                  Tokenizer& tokenizer) {
  if (TokenizerFolder(model) != TextFolder(model) && special.bos) tokenizer.BeginWith(*special.bos);
}

Json ReadMetadata(const std::filesystem::path& model) {
  const MappedFile file(model);
  Json metadata;
  ParseGguf(file.bytes(), model.string(), metadata);
  return metadata;
}

}  // namespace

ModelText ReadModelText(const std::filesystem::path& model, int vocab,
                        std::span<const std::pair<std::string, std::string>> overrides) {
  ModelText text;
  const std::filesystem::path folder = TokenizerFolder(model);
  if (FromGguf(model)) {
    const std::string what = model.string();
    const Json metadata = ReadMetadata(model);
    // A file without a tokenizer is a model all the same: it reads and writes token ids.
    if (metadata.contains("tokenizer.ggml.tokens"))
      text.tokenizer = Tokenizer::FromJson(GgufTokenizerJson(metadata, what), what);
    text.special = SpecialTokensOf(GgufTokenIds(metadata, what), what, vocab, overrides);
    text.chat_template = GgufChatTemplate(metadata, what);
    return text;
  }
  if (FileExists(folder / "tokenizer.json")) text.tokenizer = Tokenizer::FromFolder(folder);
  text.special =
      ReadSpecialTokens(folder, text.tokenizer ? &*text.tokenizer : nullptr, vocab, overrides);
  if (text.tokenizer) BeginWithBos(model, text.special, *text.tokenizer);
  text.chat_template = ChatTemplate::FromFolder(folder);
  return text;
}

Tokenizer ReadTokenizer(const std::filesystem::path& model) {
  if (!FromGguf(model)) {
    const std::filesystem::path folder = TokenizerFolder(model);
    Tokenizer tokenizer = Tokenizer::FromFolder(folder);
    BeginWithBos(model, ReadSpecialTokens(folder, &tokenizer), tokenizer);
    return tokenizer;
  }
  return Tokenizer::FromJson(GgufTokenizerJson(ReadMetadata(model), model.string()),
                             model.string());
}

std::optional<ChatTemplate> ReadChatTemplate(const std::filesystem::path& model,
                                             std::string_view name) {
  if (FromGguf(model) && name == "default")
    return GgufChatTemplate(ReadMetadata(model), model.string());
  return ChatTemplate::FromFolder(TokenizerFolder(model), name);
}

}  // namespace loopspec

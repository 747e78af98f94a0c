// Vocabularies for tests of grammars.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "grammar/vocabulary.h"
#include "text/token_bytes.h"
#include "text/tokenizer.h"

namespace loopspec::grammar {

// Every byte as a token, with its value as id, and 256 to end the text.
inline std::shared_ptr<const Vocabulary> ByteVocabulary() {
  std::vector<Vocabulary::Token> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({std::string(1, static_cast<char>(byte))});
  tokens.push_back({"<end>", true});
  return std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{256});
}

// The tokens of a tokenizer.json and one more that ends the text.
inline std::shared_ptr<const Vocabulary> VocabularyOf(const std::filesystem::path& folder) {
  const Tokenizer tokenizer = Tokenizer::FromFolder(folder);
  const std::vector<std::string> bytes = TokenBytes(tokenizer);
  std::vector<Vocabulary::Token> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back({bytes[static_cast<size_t>(id)], tokenizer.IsSpecial(id)});
  }
  tokens.push_back({"<end>", true});
  const auto end = static_cast<int32_t>(tokens.size() - 1);
  return std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{end});
}

inline std::shared_ptr<const Vocabulary> DemoVocabulary() {
  static const auto vocabulary =
      VocabularyOf(std::filesystem::path(LOOPSPEC_SOURCE_DIR) / "models/ouro-demo");
  return vocabulary;
}

}  // namespace loopspec::grammar

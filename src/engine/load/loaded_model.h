// What the folder of a model holds: weights, and what turns text into tokens and back. Loaded once,
// for the library, the commands and the server alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "loopspec/loopspec.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace loopspec {

// The model alone that the options name, with their overrides. Throws Error.
Model LoadModel(const EngineOptions& options);

// Variables for a chat template from the text of a JSON object; an empty text is an empty object.
OrderedJson ParseArgumentObject(std::string_view text);

class LoadedModel {
 public:
  // `text`: a folder to take tokenizer and chat template from; empty: the model's own. Throws Error
  // when something cannot be loaded.
  explicit LoadedModel(const EngineOptions& options, const std::string& text = {});
  // Of parts that come from elsewhere, for tests.
  LoadedModel(Model model, std::optional<Tokenizer> tokenizer, SpecialTokens special,
              std::optional<ChatTemplate> chat_template);

  const std::filesystem::path& folder() const { return folder_; }
  const Model& model() const { return model_; }
  const ModelSpec& spec() const { return model_.spec; }
  const SpecialTokens& special() const { return special_; }

  bool has_tokenizer() const { return tokenizer_.has_value(); }
  bool has_chat_template() const { return chat_template_.has_value(); }
  // These throw Error where the folder has none.
  const Tokenizer& tokenizer() const;
  const ChatTemplate& chat_template() const;

  // The prompt that the template makes of a conversation; `arguments` is an object of more
  // variables for it.
  std::string Render(const OrderedJson& messages, const OrderedJson& arguments) const;
  // Its ids; special tokens of users and tools stay text (text/chat_prompt.h), unless
  // EngineOptions::trust_special_tokens. `text`: the prompt as well.
  std::vector<int32_t> EncodeMessages(const OrderedJson& messages, const OrderedJson& arguments,
                                      std::string* text = nullptr,
                                      const EncodeLimits& limits = {}) const;
  // The ids of a request's prompt, in whichever form it comes.
  std::vector<int32_t> EncodePrompt(const Request& request) const;

  // A token's own bytes, perhaps half a character; empty for an unknown id.
  std::string_view TokenPiece(int32_t id) const;

 private:
  const std::filesystem::path folder_, text_path_;
  const Model model_;
  std::optional<Tokenizer> tokenizer_;
  SpecialTokens special_;
  std::optional<ChatTemplate> chat_template_;
  bool trust_special_tokens_ = false;
  mutable std::once_flag pieces_made_;
  mutable std::vector<std::string> pieces_;  // bytes of each token, made when somebody asks
};

}  // namespace loopspec

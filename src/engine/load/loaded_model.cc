#include "engine/load/loaded_model.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/load/model_path.h"
#include "engine/load/model_text.h"
#include "model/gguf_model.h"
#include "text/bpe.h"
#include "text/chat_prompt.h"
#include "text/unicode.h"

namespace loopspec {
namespace {

ConfigOverrides Overrides(const EngineOptions& options) {
  ConfigOverrides overrides;
  for (const std::string& entry : options.config) overrides.push_back(ParseOverride(entry));
  return overrides;
}

OrderedJson ToJson(const std::vector<Message>& messages) {
  OrderedJson json = OrderedJson::array();
  for (const Message& message : messages)
    json.push_back({{"role", message.role}, {"content", message.content}});
  return json;
}

// Decoded by itself a token that is part of a character becomes U+FFFD; then its name in the
// vocabulary says which bytes it stands for.
std::string Piece(const Tokenizer& tokenizer, int32_t id) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  const std::string text = tokenizer.Decode(std::span(&id, 1), false);
  if (text.find(kReplacement) == std::string::npos) return text;
  const std::string_view name = tokenizer.IdToToken(id);
  std::string bytes;
  if (name.size() == 6 && name.substr(0, 3) == "<0x") {
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(name.data() + 3, name.data() + 5, byte, 16);
    if (error == std::errc() && end == name.data() + 5)
      return std::string(1, static_cast<char>(byte));
  }
  for (size_t at = 0; at < name.size();) {
    const CodePoint c = DecodeUtf8(name, at);
    const int byte = ByteAlphabet::Get().Byte(c.value);
    if (byte < 0) return text;
    bytes.push_back(static_cast<char>(byte));
    at += static_cast<size_t>(c.length);
  }
  return bytes;
}

ChatTemplate::Options Checked(const ChatTemplate& chat_template, const OrderedJson& messages,
                              const OrderedJson& arguments) {
  if (!messages.is_array() || messages.empty() ||
      !std::all_of(messages.begin(), messages.end(),
                   [](const OrderedJson& message) { return message.is_object(); }))
    Fail("messages: expected a list of objects such as {{\"role\": \"user\", \"content\": ...}}");
  if (!arguments.is_object()) Fail("template arguments: expected a JSON object");
  ChatTemplate::Options how;
  how.arguments = arguments;
  if (const auto it = arguments.find("add_generation_prompt");
      it != arguments.end() && it->is_boolean())
    how.add_generation_prompt = it->get<bool>();
  how.tool_format = ToolFormatOf(chat_template.source(), arguments);
  return how;
}

}  // namespace

OrderedJson ParseArgumentObject(std::string_view text) {
  return text.empty() ? OrderedJson::object() : ParseOrderedJson(text, "template arguments");
}

Model LoadModel(const EngineOptions& options) {
  return Model::Load(ResolveModel(options.model), Overrides(options), options.recurrence);
}

LoadedModel::LoadedModel(const EngineOptions& options, const std::string& text)
    : folder_(TextFolder(ResolveModel(options.model))),
      text_path_(ResolveModel(text.empty() ? options.model : text)),
      model_(LoadModel(options)) {
  ModelText read = ReadModelText(text_path_, spec().vocab, Overrides(options));
  tokenizer_ = std::move(read.tokenizer);
  special_ = std::move(read.special);
  chat_template_ = std::move(read.chat_template);
  trust_special_tokens_ = options.trust_special_tokens;
}

LoadedModel::LoadedModel(Model model, std::optional<Tokenizer> tokenizer, SpecialTokens special,
                         std::optional<ChatTemplate> chat_template)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      special_(std::move(special)),
      chat_template_(std::move(chat_template)) {}

const Tokenizer& LoadedModel::tokenizer() const {
  if (!tokenizer_)
    Fail("{} has no {}: text cannot be read or written, token ids can", text_path_.string(),
         IsGguf(text_path_) ? "tokenizer" : "tokenizer.json");
  return *tokenizer_;
}

const ChatTemplate& LoadedModel::chat_template() const {
  if (!chat_template_)
    Fail("{} has no chat template, which a conversation needs", text_path_.string());
  return *chat_template_;
}

std::string LoadedModel::Render(const OrderedJson& messages, const OrderedJson& arguments) const {
  const ChatTemplate::Options how = Checked(chat_template(), messages, arguments);
  return chat_template().Render(messages, how);
}

std::vector<int32_t> LoadedModel::EncodeMessages(const OrderedJson& messages,
                                                 const OrderedJson& arguments, std::string* text,
                                                 const EncodeLimits& limits) const {
  ChatPrompt prompt =
      EncodeChat(chat_template(), tokenizer(), messages,
                 Checked(chat_template(), messages, arguments), trust_special_tokens_, limits);
  if (text != nullptr) *text = std::move(prompt.text);
  return std::move(prompt.ids);
}

std::vector<int32_t> LoadedModel::EncodePrompt(const Request& request) const {
  const int forms = (request.prompt.empty() ? 0 : 1) + (request.messages.empty() ? 0 : 1) +
                    (request.messages_json.empty() ? 0 : 1) + (request.tokens.empty() ? 0 : 1);
  if (forms > 1)
    Fail("a request has one prompt: text, messages or token ids; this one has {}", forms);
  if (!request.tokens.empty()) return request.tokens;
  if (request.messages.empty() && request.messages_json.empty())
    return tokenizer().Encode(request.prompt, request.add_special_tokens);
  return EncodeMessages(request.messages.empty()
                            ? ParseOrderedJson(request.messages_json, "messages")
                            : ToJson(request.messages),
                        ParseArgumentObject(request.template_arguments));
}

std::string_view LoadedModel::TokenPiece(int32_t id) const {
  std::call_once(pieces_made_, [&] {
    if (!tokenizer_) return;
    for (int32_t i = 0; i < tokenizer_->vocab_size(); ++i) pieces_.push_back(Piece(*tokenizer_, i));
  });
  const auto index = static_cast<size_t>(id);
  return index < pieces_.size() ? std::string_view(pieces_[index]) : std::string_view();
}

}  // namespace loopspec

#include "engine/load/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "engine/load/model_path.h"

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

}  // namespace

Model LoadModel(const EngineOptions& options) {
  return Model::Load(ResolveModel(options.model), Overrides(options), options.recurrence);
}

LoadedModel::LoadedModel(const EngineOptions& options, const std::string& text)
    : folder_(ResolveModel(options.model)),
      text_folder_(text.empty() ? folder_ : ResolveModel(text)),
      model_(LoadModel(options)) {
  if (FileExists(text_folder_ / "tokenizer.json")) tokenizer_ = Tokenizer::FromFolder(text_folder_);
  special_ = ReadSpecialTokens(text_folder_, tokenizer_ ? &*tokenizer_ : nullptr, spec().vocab,
                               Overrides(options));
  chat_template_ = ChatTemplate::FromFolder(text_folder_);
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (!tokenizer_)
    Fail("{} has no tokenizer.json: text cannot be read or written, token ids can",
         text_folder_.string());
  return *tokenizer_;
}

const ChatTemplate& LoadedModel::chat_template() const {
  if (!chat_template_)
    Fail("{} has no chat template, which a conversation needs", text_folder_.string());
  return *chat_template_;
}

std::vector<int32_t> LoadedModel::EncodeMessages(const OrderedJson& messages,
                                                 const OrderedJson& arguments) const {
  if (!messages.is_array() || messages.empty() ||
      !std::all_of(messages.begin(), messages.end(),
                   [](const OrderedJson& message) { return message.is_object(); }))
    Fail("messages: expected a list of objects such as {{\"role\": \"user\", \"content\": ...}}");
  if (!arguments.is_object()) Fail("template arguments: expected a JSON object");
  ChatTemplate::Options how;
  how.arguments = arguments;
  // The template writes the special tokens itself.
  return tokenizer().Encode(chat_template().Render(messages, how), false);
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
                        request.template_arguments.empty()
                            ? OrderedJson::object()
                            : ParseOrderedJson(request.template_arguments, "template arguments"));
}

}  // namespace loopspec

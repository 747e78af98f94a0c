// Chat templates: a conversation as the text that a model was trained on, by the Jinja template
// that its folder brings.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/tool_format.h"

namespace loopspec {

namespace jinja {
class Template;
struct Limits;
}  // namespace jinja

class ChatTemplate {
 public:
  // chat_template.jinja wins over the chat_template of tokenizer_config.json (one text, or a list
  // of names and texts), and additional_chat_templates/NAME.jinja adds more names. Nothing when the
  // folder has no template at all; Error when it has some, but none of that name.
  static std::optional<ChatTemplate> FromFolder(const std::filesystem::path& dir,
                                                std::string_view name = "default");
  // `variables`: an object with bos_token, eos_token and the like.
  static ChatTemplate FromSource(std::string source, OrderedJson variables);

  struct Options {
    bool add_generation_prompt = true;
    OrderedJson arguments =
        OrderedJson::object();  // more variables: enable_thinking, tools, documents ...
    // The form in which the conversation's tools are put for this template; none: as they are.
    std::optional<ToolFormat> tool_format = {};
    int64_t now_unix = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  };

  // The prompt. Throws Error when the template cannot be followed or refuses the conversation; the
  // template's own words (raise_exception) are in it.
  std::string Render(const OrderedJson& messages, const Options& options) const;
  // The same under other limits than the generous ones that every template is held to.
  std::string Render(const OrderedJson& messages, const Options& options,
                     const jinja::Limits& limits) const;

  const std::string& source() const { return source_; }

 private:
  ChatTemplate(std::string source, OrderedJson variables);

  std::string source_;
  OrderedJson variables_;
  std::shared_ptr<const jinja::Template> template_;  // shared by copies
};

// key=value each, the value read as JSON or else as text: enable_thinking=false, date_string="1
// May", mode=short.
OrderedJson ParseTemplateArguments(std::span<const std::string> arguments);

}  // namespace loopspec

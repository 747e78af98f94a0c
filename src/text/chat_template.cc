#include "text/chat_template.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/mapped_file.h"
#include "jinja/template.h"
#include "text/tool_prompt.h"
#include "text/unicode.h"

namespace loopspec {

namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 22;
constexpr size_t kMaxConfigBytes = size_t{1} << 28;

OrderedJson ReadObject(const std::filesystem::path& path) {
  if (!FileExists(path)) return OrderedJson::object();
  OrderedJson json = ParseOrderedJson(ReadFile(path, kMaxConfigBytes), path.string());
  if (!json.is_object()) Fail("{}: found JSON that is not an object", path.string());
  return json;
}

// A special token is a text, or an object with its content; anything else (null above all) means
// that there is none.
std::optional<std::string> TokenText(const OrderedJson& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return std::nullopt;
}

void AddTokens(const OrderedJson& config, OrderedJson* variables) {
  static constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                           "pad_token", "cls_token", "mask_token"};
  for (const char* name : kNames) {
    if (!config.contains(name)) continue;
    if (const std::optional<std::string> text = TokenText(config[name])) {
      (*variables)[name] = *text;
    }
  }
  if (config.contains("additional_special_tokens") &&
      config["additional_special_tokens"].is_array()) {
    OrderedJson tokens = OrderedJson::array();
    for (const OrderedJson& token : config["additional_special_tokens"]) {
      if (const std::optional<std::string> text = TokenText(token)) tokens.push_back(*text);
    }
    if (!tokens.empty()) (*variables)["additional_special_tokens"] = tokens;
  }
  // Tokens with names of a model's own, such as image_token.
  if (config.contains("extra_special_tokens") && config["extra_special_tokens"].is_object()) {
    for (const auto& [name, token] : config["extra_special_tokens"].items()) {
      if (const std::optional<std::string> text = TokenText(token)) (*variables)[name] = *text;
    }
  }
}

// The names that transformers hands to a template. It reads special_tokens_map.json only where
// tokenizer_config.json does not list the added tokens itself.
OrderedJson NamedSpecialTokens(const std::filesystem::path& dir, const OrderedJson& config) {
  OrderedJson variables = OrderedJson::object();
  const OrderedJson map = ReadObject(dir / "special_tokens_map.json");
  const bool config_wins = config.contains("added_tokens_decoder");
  AddTokens(config_wins ? map : config, &variables);
  AddTokens(config_wins ? config : map, &variables);
  return variables;
}

using NamedTemplates = std::vector<std::pair<std::string, std::string>>;

void SetTemplate(NamedTemplates* templates, const std::string& name, std::string source) {
  for (auto& [other, text] : *templates) {
    if (other == name) {
      text = std::move(source);
      return;
    }
  }
  templates->emplace_back(name, std::move(source));
}

void AddConfigTemplates(const OrderedJson& config, const std::string& what,
                        NamedTemplates* templates) {
  if (!config.contains("chat_template") || config["chat_template"].is_null()) return;
  const OrderedJson& entry = config["chat_template"];
  if (entry.is_string()) return SetTemplate(templates, "default", entry.get<std::string>());
  if (!entry.is_array()) {
    Fail("{}: chat_template is {}, expected a text or a list of named texts", what,
         entry.type_name());
  }
  for (const OrderedJson& item : entry) {
    if (!item.is_object() || !item.contains("name") || !item["name"].is_string() ||
        !item.contains("template") || !item["template"].is_string()) {
      Fail("{}: an entry of chat_template lacks its name or its template", what);
    }
    SetTemplate(templates, item["name"].get<std::string>(), item["template"].get<std::string>());
  }
}

NamedTemplates FindTemplates(const std::filesystem::path& dir, const OrderedJson& config) {
  NamedTemplates templates;
  AddConfigTemplates(config, (dir / "tokenizer_config.json").string(), &templates);
  const std::filesystem::path own = dir / "chat_template.jinja";
  if (FileExists(own)) {
    SetTemplate(&templates, "default", ReadFile(own, kMaxTemplateBytes));
  }
  const std::filesystem::path more = dir / "additional_chat_templates";
  if (std::filesystem::is_directory(more)) {
    for (const auto& file : std::filesystem::directory_iterator(more)) {
      if (file.path().extension() != ".jinja") continue;
      SetTemplate(&templates, file.path().stem().string(),
                  ReadFile(file.path(), kMaxTemplateBytes));
    }
  }
  return templates;
}

std::string JoinedNames(const NamedTemplates& templates) {
  std::string names;
  for (const auto& [name, source] : templates) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, OrderedJson variables)
    : source_(std::move(source)),
      variables_(std::move(variables)),
      template_(std::make_shared<const jinja::Template>(source_)) {}

ChatTemplate ChatTemplate::FromSource(std::string source, OrderedJson variables) {
  if (source.size() > kMaxTemplateBytes) {
    Fail("chat template: the source has {} bytes, expected at most {}", source.size(),
         kMaxTemplateBytes);
  }
  return ChatTemplate(std::move(source), std::move(variables));
}

std::optional<ChatTemplate> ChatTemplate::FromFolder(const std::filesystem::path& dir,
                                                     std::string_view name) {
  const OrderedJson config = ReadObject(dir / "tokenizer_config.json");
  const NamedTemplates templates = FindTemplates(dir, config);
  if (templates.empty()) return std::nullopt;
  const auto it = std::find_if(templates.begin(), templates.end(),
                               [&](const auto& item) { return item.first == name; });
  if (it == templates.end()) {
    Fail("{}: no chat template named '{}', found {}", dir.string(), name, JoinedNames(templates));
  }
  return FromSource(it->second, NamedSpecialTokens(dir, config));
}

std::string ChatTemplate::Render(const OrderedJson& messages, const Options& options) const {
  return Render(messages, options, jinja::Limits());
}

std::string ChatTemplate::Render(const OrderedJson& messages, const Options& options,
                                 const jinja::Limits& limits) const {
  if (!options.arguments.is_object() && !options.arguments.is_null()) {
    Fail("chat template: the arguments are {}, expected an object", options.arguments.type_name());
  }
  // Templates ask whether tools are none, not whether they are defined.
  OrderedJson variables = {{"tools", nullptr}, {"documents", nullptr}};
  for (const OrderedJson* source : {&variables_, &options.arguments}) {
    if (source->is_object()) variables.update(*source);
  }
  if (options.tool_format == ToolFormat::kGeneric) {
    variables["messages"] = WithToolsInWords(messages, variables["tools"]);
    variables["tools"] = nullptr;
  } else if (options.tool_format == ToolFormat::kLlama3) {
    variables["messages"] = WithOneCallEach(messages);
  } else {
    variables["messages"] = messages;
  }
  variables["add_generation_prompt"] = options.add_generation_prompt;
  return template_->Render(variables, limits, options.now_unix);
}

OrderedJson ParseTemplateArguments(std::span<const std::string> arguments) {
  OrderedJson result = OrderedJson::object();
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0) {
      Fail("template argument '{}': expected key=value", argument);
    }
    const std::string value = argument.substr(equals + 1);
    std::string valid;
    AppendLossyUtf8(argument, valid);
    if (valid != argument) Fail("a template argument is not valid UTF-8");
    OrderedJson parsed;
    try {
      parsed = ParseOrderedJson(value, "template argument");
    } catch (const Error&) {
      parsed = value;  // not JSON: the text itself
    }
    result[argument.substr(0, equals)] = std::move(parsed);
  }
  return result;
}

}  // namespace loopspec

#include "text/tool_prompt.h"

#include <algorithm>
#include <string>

#include "base/json.h"
#include "jinja/template.h"

namespace loopspec {
namespace {

// Qwen's words, which many models were trained on.
constexpr const char* kToolsTemplate =
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>"
    "{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '\\n' }}"
    "</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    "<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
    "</tool_call>";

constexpr const char* kCallTemplate =
    "<tool_call>\n"
    "{\"name\": {{ name | tojson }}, \"arguments\": {{ arguments | tojson }}}\n"
    "</tool_call>";

std::string Rendered(const jinja::Template& text, const OrderedJson& variables) {
  return text.Render(variables, jinja::Limits(), 0);
}

std::string TextOf(const OrderedJson& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : "";
}

bool HasRole(const OrderedJson& message, const char* role) {
  return message.is_object() && message.value("role", OrderedJson()) == role;
}

bool HasCalls(const OrderedJson& message) {
  if (!message.is_object()) return false;
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

// The calls of a message as text after its own.
OrderedJson WithCallsInWords(OrderedJson message) {
  const jinja::Template call_template(kCallTemplate);
  std::string text = TextOf(message);
  for (const OrderedJson& call : message["tool_calls"]) {
    const OrderedJson function =
        call.is_object() ? call.value("function", OrderedJson::object()) : OrderedJson::object();
    text += text.empty() ? "" : "\n";
    text += Rendered(call_template,
                     {{"name", function.value("name", OrderedJson(""))},
                      {"arguments", function.value("arguments", OrderedJson::object())}});
  }
  message.erase("tool_calls");
  message["content"] = std::move(text);
  return message;
}

}  // namespace

OrderedJson WithToolsInWords(const OrderedJson& messages, const OrderedJson& tools) {
  const bool named = tools.is_array() && !tools.empty();
  const bool used = std::ranges::any_of(messages, [](const OrderedJson& message) {
    return HasRole(message, "tool") || HasCalls(message);
  });
  if (!named && !used) return messages;
  OrderedJson out = OrderedJson::array();
  bool in_results = false;  // consecutive results are one message
  for (const OrderedJson& message : messages) {
    const bool result = HasRole(message, "tool");
    if (result) {
      const std::string text = "<tool_response>\n" + TextOf(message) + "\n</tool_response>";
      if (in_results) {
        out.back()["content"] = TextOf(out.back()) + '\n' + text;
      } else {
        out.push_back({{"role", "user"}, {"content", text}});
      }
    } else {
      out.push_back(HasCalls(message) ? WithCallsInWords(message) : message);
    }
    in_results = result;
  }
  if (!named) return out;
  const std::string words = Rendered(jinja::Template(kToolsTemplate), {{"tools", tools}});
  if (!out.empty() && HasRole(out[0], "system")) {
    const std::string said = TextOf(out[0]);
    out[0]["content"] = said.empty() ? words : said + "\n\n" + words;
  } else {
    out.insert(out.begin(), OrderedJson{{"role", "system"}, {"content", words}});
  }
  return out;
}

OrderedJson WithOneCallEach(const OrderedJson& messages) {
  OrderedJson out = OrderedJson::array();
  for (const OrderedJson& message : messages) {
    if (!HasCalls(message) || message["tool_calls"].size() == 1) {
      out.push_back(message);
      continue;
    }
    for (const OrderedJson& call : message["tool_calls"]) {
      out.push_back(message);
      out.back()["tool_calls"] = OrderedJson::array({call});
    }
  }
  return out;
}

}  // namespace loopspec

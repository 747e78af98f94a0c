// The forms in which models call tools. A form has three sides: the prompt that names the tools
// (the chat template's, or tool_prompt.h), the grammar that a call is held to (tool_grammar.h) and
// the reader that takes a call out of the text (tool_reader.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace loopspec {

enum class ToolFormat {
  // <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>: Qwen, Hermes.
  kHermes,
  // <tool_call>\n<function=f>\n<parameter=a>\nvalue\n</parameter>\n</function>\n</tool_call>:
  // Qwen3-Coder, Nanbeige.
  kXml,
  // {"name": "f", "parameters": {...}} as the whole answer, perhaps after <|python_tag|>: Llama 3.
  kLlama3,
  // The form of kHermes, for templates that know no tools or another form: the prompt names the
  // tools.
  kGeneric,
};

inline constexpr std::string_view kToolCall = "<tool_call>";
inline constexpr std::string_view kToolCallEnd = "</tool_call>";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
// What stands before and after the value of an argument in kXml.
inline constexpr std::string_view kParameter = "<parameter=";
inline constexpr std::string_view kParameterEnd = "\n</parameter>";
inline constexpr std::string_view kFunction = "<function=";
inline constexpr std::string_view kFunctionEnd = "</function>";

// By the source of the chat template and the arguments that it gets: Nanbeige's has a
// tool_call_format.
ToolFormat ToolFormatOf(std::string_view chat_template, const OrderedJson& arguments);

// A tool that may be called.
struct Tool {
  std::string name;
  OrderedJson parameters;  // the schema of its arguments; null: it has none
  bool strict = false;     // a keyword of the schema that cannot be enforced is an error
};

// The schema of arguments that are written as JSON: always an object, with the properties that are
// named alone unless the schema says that there may be others. Throws Error where the parameters
// are no schema of an object.
OrderedJson ArgumentsSchema(const Tool& tool);

}  // namespace loopspec

// Tools in request bodies, and what they ask of a model.
#pragma once

#include <string_view>
#include <vector>

#include "serve/openai/fields.h"
#include "serve/openai/types.h"
#include "text/tool_format.h"

namespace loopspec::serve {

// tools, tool_choice and parallel_tool_calls.
void AddToolFields(std::vector<CompletionField>& fields);
// `tools` of a conversation that is only counted.
void AddToolFields(std::vector<Field<TokenizeRequest>>& fields);

// A name that every form of calls can write, else throws ApiException that names `path`.
void CheckToolName(const OrderedJson& name, const std::string& path);

// The list of tools with the members of their schemas in the body's order.
OrderedJson OrderedTools(std::string_view body);

// The tools that the answer may call, checked. Throws ApiException that names the field.
std::vector<Tool> ToolsToCall(const ToolUse& use);

// An assistant's calls for the template, with their arguments as objects.
OrderedJson ReadToolCalls(const Json& value, const std::string& path);

}  // namespace loopspec::serve

// Readers of single values of a request body, shared by the field tables. Each throws an
// ApiException that names the field, what was found and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fields/range.h"
#include "serve/openai/types.h"

namespace loopspec::serve {

bool ReadBool(const Json& value, const std::string& path);
int64_t ReadInt(const Json& value, const std::string& path, int64_t low, int64_t high);
double ReadNumber(const Json& value, const std::string& path, const Range& range);
std::string ReadString(const Json& value, const std::string& path);
std::string ReadChoice(const Json& value, const std::string& path,
                       const std::vector<std::string>& choices);
// Any whole number of 64 bits, signed or not.
uint64_t ReadSeed(const Json& value, const std::string& path);
std::vector<int32_t> ReadTokenIds(const Json& value, const std::string& path);
// A string or a list of them.
std::vector<std::string> ReadStops(const Json& value, const std::string& path,
                                   const WireLimits& limits);
// {"token id": bias}
std::vector<TokenBias> ReadBias(const Json& value, const std::string& path,
                                const WireLimits& limits);
// A string, a list of strings, a list of ids or a list of those.
std::vector<PromptInput> ReadPrompts(const Json& value, const std::string& path,
                                     const WireLimits& limits, bool& batch);
// A conversation for the template: contents given as parts of text become one string.
OrderedJson ReadMessages(const Json& value, const std::string& path, const WireLimits& limits,
                         IgnoredFields& ignored);
// Variables for the chat template.
OrderedJson ReadTemplateArguments(const Json& value, const std::string& path);
// "auto" gives nothing, a list is checked to ascend from 1.
std::optional<std::vector<int>> ReadDepths(const Json& value, const std::string& path);

}  // namespace loopspec::serve

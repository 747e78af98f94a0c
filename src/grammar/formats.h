// The formats of JSON Schema as regular expressions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loopspec::grammar {

// The pattern of the whole text. Nothing for a format that JSON Schema does not define, and for the
// few that no regular expression says (regex, uri-template, idn-email, idn-hostname): to JSON
// Schema these are annotations, which assert nothing.
std::optional<std::string> FormatPattern(std::string_view name);

}  // namespace loopspec::grammar

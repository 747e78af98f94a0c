// Cuts a template into text and tokens, with jinja2's white-space rules under trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loopspec::jinja {

enum class TokenKind {
  kText,        // outside of tags
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of a text, name, string (decoded) or operator
  int64_t integer = 0;
  double real = 0;
};

// Always ends with a kEnd token. Throws Error naming the line.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace loopspec::jinja

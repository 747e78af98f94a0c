#include "tools/token_list.h"

#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/trimmed.h"

namespace loopspec::tools {
namespace {

// What stands between `open` and `close`, or the text itself without them.
std::string_view Inside(std::string_view text, std::string_view open, std::string_view close) {
  if (!text.starts_with(open) || !text.ends_with(close) || text.size() < open.size() + 1)
    return text;
  text.remove_prefix(open.size());
  text.remove_suffix(close.size());
  return Trimmed(text);
}

}  // namespace

std::vector<int32_t> ParseTokenList(const std::string& text) {
  std::string_view rest = Trimmed(text);
  rest = Inside(rest, "{\"tokens\":", "}");
  rest = Inside(rest, "[", "]");
  std::vector<int32_t> tokens;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find_first_of(", \t\r\n"));
    int32_t token = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (word.empty() || error != std::errc() || end != word.data() + word.size()) {
      Fail("\"{}\" in a list of tokens is no token id, expected numbers such as 1,2,3",
           word.empty() ? rest.substr(0, 40) : word.substr(0, 40));
    }
    tokens.push_back(token);
    rest = Trimmed(rest.substr(word.size()));
    if (rest.empty() || rest[0] != ',') continue;
    rest = Trimmed(rest.substr(1));
    if (rest.empty()) Fail("a list of tokens ends with a comma, expected a number after it");
  }
  return tokens;
}

}  // namespace loopspec::tools

// Any bytes as a regular expression, a GBNF grammar or a JSON schema: an Error in one sentence, or
// a grammar whose masks equal trying every byte, which never comes to a dead end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"

using namespace loopspec::grammar;

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

// Every byte is a token, and a few more tokens have several.
const std::shared_ptr<const Vocabulary>& Tokens() {
  static const auto* const kTokens = [] {
    std::vector<Vocabulary::Token> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back({std::string(1, static_cast<char>(byte))});
    }
    for (const char* text : {"{\"", "\":", "\",\"", "\"}", "[[", "]}", "ab", " \"a", "true", "123",
                             "\xC3\xA9", "\\u00e9", "aaaaaaaa", ", "}) {
      tokens.push_back({text});
    }
    for (const char* text : {"</t>", "<c>", "ab"}) tokens.push_back({text, true});
    tokens.push_back({"<end>", true});
    const auto end = static_cast<int32_t>(tokens.size() - 1);
    return new std::shared_ptr<const Vocabulary>(
        std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{end}));
  }();
  return *kTokens;
}

// Tokens of a text. Most of an input's time goes into trying each token at each of its places.
constexpr size_t kSteps = 10;

std::shared_ptr<Grammar> Compile(uint8_t kind, std::string_view text) {
  SchemaOptions options;
  options.strict = (kind & 4) != 0;
  options.order = (kind & 8) != 0 ? PropertyOrder::kAny : PropertyOrder::kDeclared;
  switch (kind & 3) {
    case 0:
      return Grammar::FromRegex(text, Tokens());
    case 1:
      return Grammar::FromGbnf(text, Tokens(), options);
    default:
      return Grammar::FromSchema(text, Tokens(), options);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t split = std::min(all.find('\0', 1), all.size());
  const std::string_view choices = all.substr(std::min(split + 1, all.size()));
  try {
    const auto grammar = Compile(data[0], all.substr(1, split - 1));
    std::vector<Mark> marks;
    if ((data[0] & 16) != 0) marks.push_back({"</t>"});
    if ((data[0] & 32) != 0) marks.push_back({"<c>", true});
    State state = grammar->StartAfter(marks);
    for (size_t step = 0; step < kSteps && !state.ended(); ++step) {
      const Mask mask = state.NextTokens();
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < Tokens()->size(); ++id) {
        State next = state;
        const bool in = ((*mask)[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
        Check(next.AdvanceToken(id) == in);
        if (in) allowed.push_back(id);
      }
      Check(!allowed.empty());
      const size_t choice = step < choices.size() ? static_cast<uint8_t>(choices[step]) : step;
      Check(state.AdvanceToken(allowed[choice % allowed.size()]));
    }
  } catch (const loopspec::Error& error) {
    Check(std::string_view(error.what()).find('\n') == std::string_view::npos ||
          all.find('\n') != std::string_view::npos);
  }
  return 0;
}

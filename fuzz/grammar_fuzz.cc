// Any bytes as a regular expression, a GBNF grammar or a JSON schema: an Error in one sentence, or
// a grammar that never comes to a dead end. Masks are automaton_fuzz's.
#include <algorithm>
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

// Bytes of a text that are looked at.
constexpr size_t kSteps = 10;

void Check(bool holds) {
  if (!holds) std::abort();
}

std::shared_ptr<Grammar> Compile(uint8_t kind, std::string_view text) {
  SchemaOptions options;
  options.strict = (kind & 4) != 0;
  options.order = (kind & 8) != 0 ? PropertyOrder::kAny : PropertyOrder::kDeclared;
  switch (kind & 3) {
    case 0:
      return Grammar::FromRegex(text, nullptr);
    case 1:
      return Grammar::FromGbnf(text, nullptr, options);
    default:
      return Grammar::FromSchema(text, nullptr, options);
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
    for (const char choice : choices.substr(0, kSteps)) {
      std::string allowed;
      for (int byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(byte);
        if (state.CountValid({&c, 1}) == 1) allowed += c;
      }
      Check(!allowed.empty() || state.MayEnd());
      Check(allowed.empty() == state.MustEnd());
      if (allowed.empty()) break;
      const std::string forced = state.ForcedBytes(4);
      Check(state.CountValid(forced) == forced.size());
      Check(forced.empty() || allowed.size() == 1);
      const char next = allowed[static_cast<uint8_t>(choice) % allowed.size()];
      Check(state.Advance({&next, 1}));
    }
  } catch (const loopspec::Error& error) {
    Check(std::string_view(error.what()).find('\n') == std::string_view::npos ||
          all.find('\n') != std::string_view::npos);
  }
  return 0;
}

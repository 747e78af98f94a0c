// For tests against other engines: each line of standard input is {"schema": ..., "texts": [...]},
// and each line of standard output says what became of it: {"error": ...}, or for each text whether
// it is valid. Options of a line: "strict", "any_order", "compact" (no white space); "samples": so
// many random texts from the grammar; "masks": lists of token ids, and for each of their beginnings
// the mask that follows it, as hexadecimal bytes. A line {"unicode_version": true} asks for that of
// the Unicode properties in patterns.
#include <utf8proc.h>

#include <cstdio>
#include <iostream>
#include <random>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "tests/grammar/vocabularies.h"

using namespace loopspec;
using namespace loopspec::grammar;

namespace {

// A random text that the grammar allows, token by token; null when it does not end in time.
Json Sample(Grammar& grammar, std::mt19937& random) {
  State state = grammar.Start();
  std::string text;
  for (int step = 0; step < 400; ++step) {
    const Mask mask = state.NextTokens();
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < grammar.vocabulary()->size(); ++id) {
      const bool in = ((*mask)[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
      // Characters that close something are likelier, so that texts end.
      if (!in) continue;
      const std::string& bytes = grammar.vocabulary()->bytes(id);
      const bool closes = bytes.find_first_of("\"}]") != std::string::npos || state.MayEnd();
      for (int times = closes && step > 20 ? 20 : 1; times > 0; --times) allowed.push_back(id);
    }
    if (allowed.empty()) return Json{{"dead_end", text}};
    if (state.MayEnd() && random() % 2 == 0) return text;
    const int32_t id = allowed[random() % allowed.size()];
    if (!state.AdvanceToken(id)) return Json{{"refused", text}};
    if (state.ended()) return text;
    text += grammar.vocabulary()->bytes(id);
  }
  return nullptr;
}

// The mask before each token of the list and after the last.
Json Masks(Grammar& grammar, const OrderedJson& ids) {
  Json masks = Json::array();
  State state = grammar.Start();
  for (size_t i = 0; i <= ids.size(); ++i) {
    std::string hex;
    for (const uint32_t word : *state.NextTokens()) {
      for (int byte = 0; byte < 4; ++byte) {
        for (const int shift : {4, 0}) {
          hex += "0123456789abcdef"[word >> (byte * 8 + shift) & 15];
        }
      }
    }
    masks.push_back(hex);
    if (i < ids.size() && !state.AdvanceToken(ids[i].get<int32_t>())) break;
  }
  return masks;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::string line;
  while (std::getline(std::cin, line)) {
    Json answer;
    try {
      const OrderedJson input = ParseOrderedJson(line, "a line");
      if (input.value("unicode_version", false)) {
        std::cout << Json{{"unicode_version", utf8proc_unicode_version()}}.dump() << "\n"
                  << std::flush;
        continue;
      }
      SchemaOptions options;
      options.strict = input.value("strict", true);
      options.order =
          input.value("any_order", false) ? PropertyOrder::kAny : PropertyOrder::kDeclared;
      if (input.value("compact", false)) options.space = JsonSpace::kNone;
      const auto grammar =
          Grammar::FromSchema(input.at("schema").dump(), DemoVocabulary(), options);
      Json valid = Json::array();
      for (const auto& text : input.value("texts", OrderedJson::array())) {
        const auto bytes = text.get<std::string>();
        State state = grammar->Start();
        const size_t count = state.CountValid(bytes);
        valid.push_back(state.Advance(bytes) && state.MayEnd() ? -1 : static_cast<int>(count));
      }
      Json samples = Json::array();
      for (int i = input.value("samples", 0); i > 0; --i) {
        samples.push_back(Sample(*grammar, random));
      }
      Json masks = Json::array();
      for (const auto& ids : input.value("masks", OrderedJson::array())) {
        masks.push_back(Masks(*grammar, ids));
      }
      answer = {{"valid", valid},
                {"ignored", grammar->ignored()},
                {"samples", samples},
                {"masks", masks}};
    } catch (const Error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
  }
}

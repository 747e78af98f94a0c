// Any bytes as a small grammar that can be read: a regular expression, a GBNF grammar or a JSON
// schema over a few characters. Masks of a tiny vocabulary must equal trying every token, and no
// place is a dead end. Texts that cannot be read are grammar_fuzz's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/grammar.h"

using namespace loopspec::grammar;

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

const std::shared_ptr<const Vocabulary>& Tokens() {
  static const auto* const kTokens = [] {
    std::vector<Vocabulary::Token> tokens;
    for (const char* text : {"a",
                             "b",
                             "0",
                             "1",
                             "\"",
                             "{",
                             "}",
                             "[",
                             "]",
                             ":",
                             ",",
                             " ",
                             "-",
                             ".",
                             "e",
                             "\\",
                             "\n",
                             "ab",
                             "aa",
                             "\"a",
                             "\":",
                             "\",\"",
                             "{\"",
                             "]}",
                             "true",
                             "00",
                             "\\u00",
                             "\xC3",
                             "\xA9",
                             "\xC3\xA9",
                             "a\xC3\xA9"
                             "b",
                             "aaaaaaaa"}) {
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

// The input's bytes, then zeros.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint32_t Below(uint32_t count) { return at_ < size_ ? data_[at_++] % count : 0; }
  bool Yes() { return Below(2) == 1; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

constexpr int kDeepest = 4;

std::string Counts(Choices& choices) {
  const uint32_t low = choices.Below(4);
  return choices.Yes() ? std::to_string(low) + "," + std::to_string(low + choices.Below(4))
                       : std::to_string(low) + (choices.Yes() ? "," : "");
}

std::string Expression(Choices& choices, int depth) {
  static const char* const kAtoms[] = {"a",   "b",   "ab",     "[ab]",     "[^a]",  ".",
                                       "\\d", "\\w", "\\p{L}", "\xC3\xA9", "\"",    "[^\"\\\\]",
                                       "\\b", "^",   "$",      "(?!a)",    "(?=b)", "0"};
  std::string text;
  for (uint32_t parts = 1 + choices.Below(3); parts > 0; --parts) {
    const uint32_t kind = choices.Below(6);
    std::string part;
    if (kind < 4 || depth == kDeepest) {
      part = kAtoms[choices.Below(std::size(kAtoms))];
    } else if (kind == 4) {
      part = "(" + Expression(choices, depth + 1) + "|" + Expression(choices, depth + 1) + ")";
    } else {
      static const char* const kGroups[] = {"(?:", "(", "(?=", "(?!", "(?<=", "(?<!"};
      part = kGroups[choices.Below(std::size(kGroups))] + Expression(choices, depth + 1) + ")";
    }
    switch (choices.Below(8)) {
      case 0:
        part += "*";
        break;
      case 1:
        part += "+";
        break;
      case 2:
        part += "?";
        break;
      case 3:
        part += "{" + Counts(choices) + "}";
        break;
      default:
        break;
    }
    text += part;
  }
  return text;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string Schema(Choices& choices, int depth);

std::string ListOfSchemas(Choices& choices, int depth) {
  std::string list = "[" + Schema(choices, depth + 1);
  if (choices.Yes()) list += "," + Schema(choices, depth + 1);
  return list + "]";
}

std::string Keyword(Choices& choices, int depth) {
  static const char* const kKinds[] = {"object", "array",   "string", "integer",
                                       "number", "boolean", "null"};
  static const char* const kNames[] = {"a", "ab", "b"};
  static const char* const kCounts[] = {"minItems",  "maxItems",      "minLength",
                                        "maxLength", "minProperties", "maxProperties"};
  static const char* const kBounds[] = {"minimum", "maximum", "exclusiveMinimum",
                                        "exclusiveMaximum", "multipleOf"};
  static const char* const kValues[] = {"0", "1", "-1", "0.1", "11", "\"a\"", "null", "[0]", "{}"};
  static const char* const kFormats[] = {"date", "uuid", "ipv4", "email", "json-pointer"};
  const auto one = [&](const auto& list) {
    return std::string(list[choices.Below(std::size(list))]);
  };
  const auto below = [&] { return Schema(choices, depth + 1); };
  const auto members = [&](auto name) {
    std::string text = "{" + name() + ":" + below();
    if (choices.Yes()) text += "," + name() + ":" + below();
    return text + "}";
  };
  const auto name = [&] { return Quoted(one(kNames)); };
  switch (choices.Below(depth == kDeepest ? 10 : 24)) {
    case 0:
    case 1:
      return "\"type\":" + Quoted(one(kKinds));
    case 2:
      return "\"type\":[" + Quoted(one(kKinds)) + "," + Quoted(one(kKinds)) + "]";
    case 3:
    case 4:
      return Quoted(one(kCounts)) + ":" + std::to_string(choices.Below(4));
    case 5:
      return Quoted(one(kBounds)) + ":" + kValues[choices.Below(5)];
    case 6:
      return "\"enum\":[" + one(kValues) + "," + one(kValues) + "]";
    case 7:
      return "\"required\":[" + name() + (choices.Yes() ? "," + name() : "") + "]";
    case 8:
      return "\"uniqueItems\":true";
    case 9:
      return "\"format\":" + Quoted(one(kFormats));
    case 10:
      return "\"pattern\":" + Quoted(Expression(choices, kDeepest - 1));
    case 11:
    case 12:
      return "\"properties\":" + members(name);
    case 13:
      return "\"patternProperties\":" +
             members([&] { return std::string(choices.Yes() ? "\"^a\"" : "\"b$\""); });
    case 14:
      return "\"additionalProperties\":" + below();
    case 15:
      return "\"propertyNames\":" + below();
    case 16:
      return "\"items\":" + below();
    case 17:
      return "\"prefixItems\":" + ListOfSchemas(choices, depth);
    case 18:
      return "\"contains\":" + below();
    case 19:
      return (choices.Yes() ? "\"anyOf\":" : "\"oneOf\":") + ListOfSchemas(choices, depth);
    case 20:
      return "\"allOf\":" + ListOfSchemas(choices, depth);
    case 21:
      return "\"not\":" + below();
    case 22:
      return "\"if\":" + below() + ",\"then\":" + below() + ",\"else\":" + below();
    default:
      return "\"$ref\":\"#\"";
  }
}

std::string Schema(Choices& choices, int depth) {
  const uint32_t keywords = choices.Below(4);
  if (keywords == 0) return choices.Yes() ? "false" : "true";
  std::string text = "{";
  for (uint32_t i = 0; i < keywords; ++i) text += (i > 0 ? "," : "") + Keyword(choices, depth);
  return text + "}";
}

std::string Rule(Choices& choices, int depth) {
  static const char* const kAtoms[] = {"\"a\"",
                                       "\"ab\"",
                                       "[ab]",
                                       "[^a]",
                                       ".",
                                       "\"{\"",
                                       "\"[\"",
                                       "r",
                                       "s",
                                       "%until \"ab\"",
                                       "%until %special \"ab\"",
                                       "%without \"ab\"",
                                       "%special \"<c>\""};
  std::string text;
  for (uint32_t parts = 1 + choices.Below(3); parts > 0; --parts) {
    const uint32_t kind = choices.Below(8);
    std::string part;
    if (kind < 6 || depth == kDeepest) {
      part = kAtoms[choices.Below(std::size(kAtoms))];
    } else if (kind == 6) {
      part = "(" + Rule(choices, depth + 1) + "|" + Rule(choices, depth + 1) + ")";
    } else {
      part = "%json " + Schema(choices, kDeepest - 1);
    }
    switch (choices.Below(8)) {
      case 0:
        part = "(" + part + ")*";
        break;
      case 1:
        part = "(" + part + ")+";
        break;
      case 2:
        part = "(" + part + ")?";
        break;
      case 3:
        part = "(" + part + "){" + Counts(choices) + "}";
        break;
      default:
        break;
    }
    text += part + " ";
  }
  return text;
}

std::shared_ptr<Grammar> Compile(Choices& choices) {
  SchemaOptions options;
  const uint32_t kind = choices.Below(8);
  options.order = choices.Yes() ? PropertyOrder::kAny : PropertyOrder::kDeclared;
  options.space = static_cast<JsonSpace>(choices.Below(3));
  options.strict = choices.Yes();
  if (kind < 2) return Grammar::FromRegex(Expression(choices, 0), Tokens());
  if (kind < 4) {
    std::string text = "root ::= " + Rule(choices, 0) + "\n";
    text += "r ::= \"a\" " + Rule(choices, 1) + "\n";
    text += "s ::= " + Rule(choices, 1) + "| \"b\"\n";
    return Grammar::FromGbnf(text, Tokens(), options);
  }
  return Grammar::FromSchema(Schema(choices, 0), Tokens(), options);
}

// Tokens of a text. Most of an input's time goes into trying each token at each of its places.
constexpr size_t kSteps = 6;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  try {
    const auto grammar = Compile(choices);
    std::vector<Mark> marks;
    const uint32_t before = choices.Below(16);
    if (before == 1) marks.push_back({"</t>"});
    if (before == 2) marks.push_back({"<c>", true});
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
      // A byte may be forced that is no token here: then nothing is allowed but the place is alive.
      if (allowed.empty()) {
        bool alive = false;
        for (int byte = 0; byte < 256 && !alive; ++byte) {
          State next = state;
          alive = next.Advance(std::string(1, static_cast<char>(byte)));
        }
        Check(alive);
        break;
      }
      const uint32_t choice = choices.Below(static_cast<uint32_t>(allowed.size()));
      Check(state.AdvanceToken(allowed[choice]));
    }
  } catch (const loopspec::Error&) {
    // What cannot be enforced is said.
  }
  return 0;
}

#include "text/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/tool_values.h"

namespace loopspec {
namespace {

// White space that JSON allows; a model needs little of it, and may not go on with it forever.
constexpr const char* kSpaceRule = "space ::= [ \\n]{0,2}\n";

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A mark, which is one special token in some vocabularies.
std::string Mark(std::string_view text) {
  return "%special " + Quoted(text);
}

std::string JsonBy(const OrderedJson& schema) {
  return "%json " + schema.dump();
}

// "a0 | a1 | a2"
std::string Choice(std::string_view prefix, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += fmt::format("{}{}{}", i > 0 ? " | " : "", prefix, i);
  return out;
}

// ---- Arguments as JSON ----

// The rule `body`: {"name": "f", KEY: {...}}, with white space where JSON allows it.
std::string JsonBody(std::span<const Tool> tools, std::string_view key) {
  std::string rules =
      fmt::format("body ::= \"{{\" space \"\\\"name\\\"\" space \":\" space ({}) space \"}}\"\n",
                  Choice("tool", tools.size()));
  for (size_t i = 0; i < tools.size(); ++i) {
    rules += fmt::format("tool{} ::= {} space \",\" space {} space \":\" space {}\n", i,
                         Quoted('"' + tools[i].name + '"'), Quoted(key),
                         JsonBy(ArgumentsSchema(tools[i])));
  }
  return rules;
}

// ---- Arguments as they are ----

class XmlRules {
 public:
  explicit XmlRules(std::span<const Tool> tools) {
    rules_ = fmt::format("body ::= {}\n", Choice("tool", tools.size()));
    for (size_t i = 0; i < tools.size(); ++i) AddTool(i, tools[i]);
  }
  const std::string& rules() const { return rules_; }
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  void Ignore(const std::string& keyword) {
    if (std::ranges::find(ignored_, keyword) == ignored_.end()) ignored_.push_back(keyword);
  }

  void AddTool(size_t number, const Tool& tool) {
    const OrderedJson root = ArgumentsSchema(tool);
    const OrderedJson* schema = Referred(root, root);
    if (schema == nullptr)
      Fail("the parameters of {} refer to {}, which is not among them", tool.name,
           root["$ref"].dump());
    constexpr std::array kKnown = {"type",    "properties",  "required", "additionalProperties",
                                   "title",   "description", "$schema",  "$id",
                                   "$defs",   "definitions", "$comment", "$ref",
                                   "default", "examples"};
    for (const auto& [keyword, value] : schema->items()) {
      if (std::ranges::find(kKnown, keyword) == kKnown.end() && !HoldsAnyway(*schema, keyword))
        Ignore(keyword);
    }
    const OrderedJson none = OrderedJson::object();
    const OrderedJson& properties = schema->contains("properties") ? (*schema)["properties"] : none;
    if (!properties.is_object())
      Fail("the properties of {} are {}, expected an object", tool.name, properties.type_name());
    std::string sequence = Quoted(fmt::format("{}{}>\n", kFunction, tool.name));
    size_t parameter = 0;
    for (const auto& [name, value] : properties.items()) {
      if (name.find_first_of(">\r\n") != name.npos)
        Fail(
            "a parameter of {} has the name {}, which this model's form of calls has no way to "
            "write",
            tool.name, OrderedJson(name).dump());
      const std::string rule = fmt::format("p{}-{}", number, parameter++);
      rules_ +=
          fmt::format("{} ::= {} ({})\n", rule, Quoted(fmt::format("{}{}>\n", kParameter, name)),
                      Value(PlainValueOf(value, root)));
      sequence += ' ' + rule + (IsRequired(*schema, name) ? "" : "?");
    }
    rules_ += fmt::format("tool{} ::= {} {}\n", number, sequence, Quoted(kFunctionEnd));
  }

  // Whether every call keeps to a number of properties, since it has those that are named alone.
  static bool HoldsAnyway(const OrderedJson& schema, const std::string& keyword) {
    const auto count = [&](const char* list) {
      return schema.contains(list) && schema[list].is_structured() ? schema[list].size() : 0;
    };
    const OrderedJson& limit = schema[keyword];
    if (!limit.is_number_unsigned()) return false;
    if (keyword == "maxProperties") return limit.get<uint64_t>() >= count("properties");
    return keyword == "minProperties" && limit.get<uint64_t>() <= count("required");
  }

  static bool IsRequired(const OrderedJson& schema, const std::string& name) {
    const auto required = schema.find("required");
    return required != schema.end() && required->is_array() &&
           std::ranges::find(*required, OrderedJson(name)) != required->end();
  }

  // A value, its end, and the newline after that.
  std::string Value(const PlainValue& value) {
    for (const std::string& keyword : value.ignored) Ignore(keyword);
    const std::string end = Quoted(std::string(kParameterEnd) + '\n');
    std::string choices;
    const auto add = [&](const std::string& choice) {
      choices += (choices.empty() ? "" : " | ") + choice;
    };
    for (const OrderedJson& schema : value.json) add(JsonBy(schema) + ' ' + end);
    for (const std::string& text : value.texts) add(Quoted(text) + ' ' + end);
    if (value.text) add(Text(*value.text, value.types, end));
    if (choices.empty()) Fail("an argument has no value that this model's form of calls can write");
    return choices;
  }

  // Text of the right length. Where it may also be an object or an array it begins with no bracket,
  // and with no white space before one.
  static std::string Text(const PlainValue::Text& text, unsigned types, const std::string& end) {
    const bool any = types == kAnyValue;
    const bool brackets = !any && (types & (kObjectValue | kArrayValue)) != 0;
    const bool bounded = text.min > 0 || text.max;
    const std::string until = fmt::format("%until {} \"\\n\"", Quoted(kParameterEnd));
    if (!brackets && !bounded) return until;
    const char* first = brackets ? "[^ \\t\\r\\n{\\[]" : "[^\\n]";
    if (!bounded) return fmt::format("{} {} | {}", first, until, end);
    // A text whose length is bounded is one line.
    if (text.max == 0u) return end;
    const uint32_t least = text.min > 0 ? text.min - 1 : 0;
    const std::string most = text.max ? std::to_string(*text.max - 1) : "";
    return fmt::format("{}{} [^\\n]{{{},{}}} {}", text.min == 0 ? end + " | " : "", first, least,
                       most, end);
  }

  std::string rules_;
  std::vector<std::string> ignored_;
};

// ---- Answers ----

// Rules that begin after a call's opening mark.
std::string Calls(const ToolGrammarOptions& options, ToolGrammar& grammar) {
  const std::string open = Mark(kToolCall);
  std::string rules = options.parallel ? fmt::format("calls ::= call (space {} call)*\n", open)
                                       : "calls ::= call\n";
  if (options.required) return rules + fmt::format("root ::= space {} calls\n", open);
  if (!options.schema.empty())
    return rules + fmt::format("root ::= space ({} calls | %json {})\n", open, options.schema);
  grammar.after = kToolCall;
  return rules + "root ::= calls\n";
}

}  // namespace

ToolGrammar GrammarOfTools(ToolFormat format, std::span<const Tool> tools,
                           const ToolGrammarOptions& options) {
  ToolGrammar grammar;
  if (format == ToolFormat::kLlama3) {
    if (!options.required && !options.schema.empty())
      Fail("this model's calls are JSON, which cannot be told from an answer in JSON");
    grammar.rules = JsonBody(tools, "\"parameters\"");
    grammar.rules += fmt::format("call ::= ({} space)? body\n", Mark(kPythonTag));
    // What begins with a brace or with the tag is a call.
    grammar.rules += options.required ? "root ::= space call\n"
                                      : "root ::= space (call | text)?\n"
                                        "text ::= [^{< \\t\\r\\n] .* | \"<\" ([^|] .*)?\n";
  } else if (format == ToolFormat::kXml) {
    const XmlRules xml(tools);
    grammar.ignored = xml.ignored();
    grammar.rules = xml.rules() +
                    fmt::format("call ::= \"\\n\" body \"\\n\" {}\n", Mark(kToolCallEnd)) +
                    Calls(options, grammar);
  } else {
    grammar.rules = JsonBody(tools, "\"arguments\"") +
                    fmt::format("call ::= space body space {}\n", Mark(kToolCallEnd)) +
                    Calls(options, grammar);
  }
  grammar.rules += kSpaceRule;
  return grammar;
}

}  // namespace loopspec

// What answers with tools may be, in every form of calls: texts written by hand, and random texts
// that the grammar allows, which the form's reader must take for valid calls.
#include "text/tool_grammar.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "text/tool_reader.h"

namespace loopspec::grammar {
namespace {

constexpr ToolFormat kFormats[] = {ToolFormat::kHermes, ToolFormat::kXml, ToolFormat::kLlama3,
                                   ToolFormat::kGeneric};

std::vector<Tool> Tools() {
  return {{"weather", OrderedJson::parse(R"({"type": "object", "properties": {
               "city": {"type": "string"},
               "days": {"type": "integer", "minimum": 1, "maximum": 9},
               "unit": {"$ref": "#/$defs/unit"},
               "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
               "tags": {"anyOf": [{"type": "string"},
                                  {"type": "array", "items": {"type": "integer"}, "maxItems": 3}]},
               "exact": {"type": "boolean"}},
               "required": ["city", "days"], "$defs": {"unit": {"enum": ["C", "F", null]}}})")},
          {"now", nullptr},
          {"weather_now", OrderedJson::parse(R"({"type": "object", "properties": {}})")}};
}

class ToolGrammarTest : public testing::Test {
 protected:
  static std::shared_ptr<Grammar> Compile(ToolFormat format, const ToolGrammarOptions& options,
                                          std::string* after = nullptr) {
    const ToolGrammar grammar = GrammarOfTools(format, Tools(), options);
    if (after != nullptr) *after = grammar.after;
    SchemaOptions schema;
    schema.strict = false;
    return Grammar::FromGbnf(grammar.rules, nullptr, schema);
  }
  static State StartOf(ToolFormat format, const ToolGrammarOptions& options) {
    std::string after;
    const auto grammar = Compile(format, options, &after);
    std::vector<Mark> marks;
    if (!after.empty()) marks.push_back({after, true});
    return grammar->StartAfter(marks);
  }
  static bool Takes(State state, const std::string& text) {
    return state.Advance(text) && state.MayEnd();
  }
};

std::string Hermes(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
         "}\n</tool_call>";
}
std::string Llama(const std::string& name, const std::string& arguments) {
  return "{\"name\": \"" + name + "\", \"parameters\": " + arguments + "}";
}
std::string Xml(const std::string& name,
                const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = "<tool_call>\n<function=" + name + ">\n";
  for (const auto& [key, value] : arguments)
    text += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  return text + "</function>\n</tool_call>";
}

TEST_F(ToolGrammarTest, HoldsJsonCallsToTheirSchemas) {
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3}) {
    const auto call = format == ToolFormat::kHermes ? Hermes : Llama;
    const State state = StartOf(format, {.required = true, .schema = {}});
    EXPECT_TRUE(Takes(state, call("weather", R"({"city": "Rome", "days": 3})")));
    EXPECT_TRUE(Takes(state, "\n" + call("weather", R"({"city":"","days":9,"unit":null})")));
    EXPECT_TRUE(Takes(state, call("now", "{}")));
    EXPECT_TRUE(Takes(state, call("weather_now", "{ }")));
    EXPECT_FALSE(Takes(state, call("now", R"({"a": 1})")));
    EXPECT_FALSE(Takes(state, call("weather", R"({"city": "Rome"})")));
    EXPECT_FALSE(Takes(state, call("weather", R"({"city": "Rome", "days": 10})")));
    EXPECT_FALSE(Takes(state, call("weather", R"({"city": "Rome", "days": 3, "unit": "K"})")));
    EXPECT_FALSE(Takes(state, call("weather", R"({"city": "Rome", "days": 3, "more": 1})")));
    EXPECT_FALSE(Takes(state, call("wether", R"({"city": "Rome", "days": 3})")));
    EXPECT_FALSE(Takes(state, ""));
    EXPECT_FALSE(Takes(state, "Hello"));
    EXPECT_FALSE(Takes(state, call("now", "{}") + "Hello"));
  }
}

TEST_F(ToolGrammarTest, HoldsTaggedCallsToTheirSchemas) {
  const State state = StartOf(ToolFormat::kXml, {.required = true, .schema = {}});
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", "Ro\nme</p"}, {"days", "3"}})));
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", ""}, {"days", "1"}, {"unit", "C"}})));
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"unit", "null"}})));
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"note", "short"}})));
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"note", ""}})));
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"tags", "[1, 2]"}})));
  EXPECT_TRUE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"tags", "some"}})));
  EXPECT_TRUE(Takes(state, Xml("now", {})));
  EXPECT_FALSE(Takes(state, Xml("now", {{"city", "a"}})));
  EXPECT_FALSE(Takes(state, Xml("weather", {{"city", "a"}})));
  EXPECT_FALSE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "ten"}})));
  EXPECT_FALSE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"unit", "K"}})));
  EXPECT_FALSE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"note", "longer"}})));
  EXPECT_FALSE(Takes(state, Xml("weather", {{"city", "a"}, {"days", "1"}, {"tags", "[\"a\"]"}})));
  EXPECT_FALSE(Takes(state, Xml("wether", {})));
}

TEST_F(ToolGrammarTest, AllowsOneCallOrMany) {
  const std::string hermes = Hermes("now", "{}"), xml = Xml("now", {});
  for (const auto& [format, call] :
       {std::pair(ToolFormat::kHermes, hermes), std::pair(ToolFormat::kGeneric, hermes),
        std::pair(ToolFormat::kXml, xml)}) {
    for (const bool required : {false, true}) {
      const State many = StartOf(format, {.required = required, .schema = {}});
      EXPECT_TRUE(Takes(many, call + "\n" + call + call));
      EXPECT_FALSE(Takes(many, call + " and " + call));
      const State one = StartOf(format, {.required = required, .parallel = false, .schema = {}});
      EXPECT_TRUE(Takes(one, call));
      EXPECT_FALSE(Takes(one, call + "\n" + call));
    }
  }
}

TEST_F(ToolGrammarTest, LeavesTextFreeUntilACallBegins) {
  for (const ToolFormat format : kFormats) {
    const State state = StartOf(format, {});
    EXPECT_TRUE(Takes(state, ""));
    EXPECT_TRUE(Takes(state, "Hello\n<b> and so on"));
    EXPECT_TRUE(Takes(state, "<b"));
  }
  const State hermes = StartOf(ToolFormat::kHermes, {});
  EXPECT_TRUE(Takes(hermes, "{} So: " + Hermes("now", "{}")));
  EXPECT_FALSE(Takes(hermes, "So: <tool_call> it"));
  const State llama = StartOf(ToolFormat::kLlama3, {});
  EXPECT_TRUE(Takes(llama, Llama("now", "{}")));
  EXPECT_TRUE(Takes(llama, "<|python_tag|>" + Llama("now", "{}")));
  EXPECT_FALSE(Takes(llama, "{\"a\": 1}"));
  EXPECT_FALSE(Takes(llama, Llama("then", "{}")));
}

TEST_F(ToolGrammarTest, AllowsTextOfASchemaOrCalls) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"const": 1}}})";
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kXml}) {
    const State state = StartOf(format, {.schema = schema});
    EXPECT_TRUE(Takes(state, "{\"a\": 1}"));
    EXPECT_FALSE(Takes(state, "{\"a\": 2}"));
    EXPECT_FALSE(Takes(state, "Hello"));
    EXPECT_TRUE(Takes(state, format == ToolFormat::kXml ? Xml("now", {}) : Hermes("now", "{}")));
  }
  EXPECT_THROW(GrammarOfTools(ToolFormat::kLlama3, Tools(), {.schema = schema}), Error);
}

TEST_F(ToolGrammarTest, NamesWhatTagsCannotEnforce) {
  const std::vector<Tool> tools = {
      {"f", OrderedJson::parse(R"({"type": "object", "minProperties": 1, "properties": {
          "a": {"type": "string", "pattern": "^a"}}})")}};
  EXPECT_EQ(GrammarOfTools(ToolFormat::kXml, tools, {}).ignored,
            (std::vector<std::string>{"minProperties"}));
  EXPECT_TRUE(GrammarOfTools(ToolFormat::kHermes, tools, {}).ignored.empty());
  EXPECT_THROW(
      GrammarOfTools(ToolFormat::kHermes, std::vector<Tool>{{"f", {{"type", "array"}}}}, {}),
      Error);
}

// Whatever is wrong with a call of a tool.
std::string Fault(const std::string& name, const std::string& arguments) {
  const Json json = Json::parse(arguments, nullptr, false);
  if (!json.is_object()) return "no object";
  if (name == "now" || name == "weather_now") return json.empty() ? "" : "not empty";
  if (name != "weather") return "no tool";
  for (const auto& [key, value] : json.items()) {
    if (key == "city"   ? !value.is_string()
        : key == "days" ? !value.is_number_integer() || value.get<int>() < 1 || value.get<int>() > 9
        : key == "unit" ? !value.is_null() && value != "C" && value != "F"
        : key == "note" ? !value.is_null() && !value.is_string()
        : key == "exact" ? !value.is_boolean()
        : key == "tags"  ? !value.is_string() && !value.is_array()
                         : true)
      return "value of " + key;
    if (key == "note" && value.is_string() && value.get_ref<const std::string&>().size() > 5)
      return "long note";
    if (key == "tags" && value.is_array()) {
      for (const Json& tag : value)
        if (!tag.is_number()) return "tag";
    }
  }
  return json.contains("city") && json.contains("days") ? "" : "something is missing";
}

// Random texts of pieces that calls are made of, as far as the grammar allows them.
TEST_F(ToolGrammarTest, AllowsOnlyWhatReadersTakeForValidCalls) {
  const std::vector<std::string> pieces = {"a",
                                           "Z",
                                           "5",
                                           "1",
                                           "-",
                                           "0",
                                           ".5",
                                           "e",
                                           "\"",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           ":",
                                           "\n",
                                           " ",
                                           "true",
                                           "null",
                                           "C",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "\n</parameter>",
                                           "\n</parameter>\n",
                                           "</function>",
                                           "</function>\n</tool_call>",
                                           "<parameter=",
                                           "<parameter=city>\n",
                                           "<parameter=tags>\n",
                                           "<parameter=note>\n",
                                           "<function=",
                                           "<function=weather>\n",
                                           "\"name\"",
                                           "\"arguments\": ",
                                           "\"parameters\": ",
                                           "weather",
                                           "now",
                                           "\"city\"",
                                           "\"days\"",
                                           "\"note\"",
                                           "\"tags\"",
                                           "unit",
                                           "days",
                                           "exact",
                                           "\\",
                                           "\\n",
                                           "<",
                                           "</",
                                           "[1]",
                                           "\"F\""};
  std::mt19937 random(7);
  for (const ToolFormat format : kFormats) {
    const MakeCallReader make = MakeToolReader(format, Tools());
    for (const bool required : {true, false}) {
      const State start = StartOf(format, {.required = required, .schema = {}});
      int complete = 0, calls = 0;
      for (int round = 0; round < 120; ++round) {
        State state = start;
        std::string text;
        if (!required && round % 2 == 0) {
          text = format == ToolFormat::kLlama3 ? "{" : "So <tool_call>";
          ASSERT_TRUE(state.Advance(text));
        }
        for (int step = 0; step < 1500 && !(state.MayEnd() && random() % 4 == 0); ++step) {
          const std::string forced = state.ForcedBytes(64, true);
          const std::string& piece = forced.empty() ? pieces[random() % pieces.size()] : forced;
          if (state.Advance(piece)) text += piece;
        }
        if (!state.MayEnd()) continue;
        ++complete;
        std::vector<AnswerPart> parts;
        const std::unique_ptr<CallReader> reader = make();
        reader->Push(text, parts);
        reader->Finish(parts);
        std::string said, name, arguments;
        const auto judge = [&] {
          if (name.empty()) return;
          EXPECT_EQ(Fault(name, arguments), "") << text << "\n" << arguments;
          ++calls;
          arguments.clear();
        };
        for (const AnswerPart& part : parts) {
          if (part.kind == AnswerPart::Kind::kText) said += part.text;
          if (part.kind == AnswerPart::Kind::kArguments) arguments += part.text;
          if (part.kind != AnswerPart::Kind::kCall) continue;
          judge();
          name = part.text;
        }
        judge();
        EXPECT_TRUE(said.empty() || !required) << text;
        EXPECT_FALSE(name.empty() && required) << text;
        EXPECT_TRUE(format == ToolFormat::kLlama3 || said.find("<tool_call>") == said.npos) << text;
      }
      EXPECT_GT(complete, 30);
      EXPECT_GT(calls, 15);
    }
  }
}

// As many tools as agents bring.
TEST_F(ToolGrammarTest, StaysSmallForManyTools) {
  for (const ToolFormat format : kFormats) {
    std::vector<Tool> tools;
    for (int i = 0; i < 128; ++i) {
      tools.push_back(Tools()[0]);
      tools.back().name += std::to_string(i);
    }
    const ToolGrammar grammar = GrammarOfTools(format, tools, {.required = true, .schema = {}});
    EXPECT_LT(grammar.rules.size(), 200'000u);
    SchemaOptions schema;
    schema.strict = false;
    State state = Grammar::FromGbnf(grammar.rules, nullptr, schema)->Start();
    EXPECT_TRUE(state.Advance(format == ToolFormat::kLlama3 ? "{\"name\": \"weather12"
                              : format == ToolFormat::kXml
                                  ? "<tool_call>\n<function=weather12"
                                  : "<tool_call>\n{\"name\": \"weather12"));
  }
}

}  // namespace
}  // namespace loopspec::grammar

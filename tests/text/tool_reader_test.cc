// Calls of tools taken out of answers: every form, with the text cut in every way.
#include "text/tool_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tool_values.h"

namespace loopspec {
namespace {

using Kind = AnswerPart::Kind;

std::vector<Tool> Tools() {
  return {{"weather", OrderedJson::parse(R"({"type": "object", "properties": {
               "city": {"type": "string"},
               "days": {"type": "integer"},
               "exact": {"type": "boolean"},
               "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
               "where": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
               "tags": {"type": "array", "items": {"type": "string"}},
               "more": {"type": "object"}}})"),
           false},
          {"now", nullptr, false}};
}

// The parts, with consecutive ones of a kind put together: what does not depend on the cuts.
std::vector<AnswerPart> Joined(const std::vector<AnswerPart>& parts) {
  std::vector<AnswerPart> out;
  for (const AnswerPart& part : parts) {
    const bool goes_on = !out.empty() && out.back().kind == part.kind &&
                         out.back().call == part.call && part.kind != Kind::kCall;
    if (goes_on) {
      out.back().text += part.text;
    } else {
      out.push_back(part);
    }
  }
  return out;
}

std::vector<AnswerPart> Read(const AnswerSplitter::Options& options,
                             const std::vector<std::string>& pieces) {
  AnswerSplitter splitter(options);
  std::vector<AnswerPart> all;
  const auto add = [&](std::vector<AnswerPart> parts) {
    for (AnswerPart& part : parts) {
      EXPECT_FALSE(part.text.empty() && part.kind != Kind::kCall);
      all.push_back(std::move(part));
    }
  };
  for (const std::string& piece : pieces) add(splitter.Push(piece));
  add(splitter.Finish());
  return Joined(all);
}

std::string Shown(const std::vector<AnswerPart>& parts) {
  std::string out;
  for (const AnswerPart& part : parts) {
    constexpr const char* kNames[] = {"reasoning", "text", "call", "arguments"};
    out += std::string(kNames[static_cast<int>(part.kind)]) + " " + std::to_string(part.call) +
           " [" + part.text + "]\n";
  }
  return out;
}

// The same whatever the pieces are: as a whole, cut in two anywhere, in three around each byte, and
// byte by byte.
void ExpectParts(const AnswerSplitter::Options& options, const std::string& text,
                 const std::vector<AnswerPart>& expected) {
  EXPECT_EQ(Shown(Read(options, {text})), Shown(expected)) << text;
  std::vector<std::string> bytes;
  for (size_t cut = 0; cut < text.size(); ++cut) {
    EXPECT_EQ(Shown(Read(options, {text.substr(0, cut), text.substr(cut)})), Shown(expected))
        << text << "\ncut at " << cut;
    EXPECT_EQ(
        Shown(Read(options, {text.substr(0, cut), text.substr(cut, 1), text.substr(cut + 1)})),
        Shown(expected))
        << text << "\ncut around " << cut;
    bytes.push_back(text.substr(cut, 1));
  }
  EXPECT_EQ(Shown(Read(options, bytes)), Shown(expected)) << text;
}

void ExpectParts(ToolFormat format, const std::string& text,
                 const std::vector<AnswerPart>& expected) {
  AnswerSplitter::Options options;
  options.calls = MakeToolReader(format, Tools());
  ExpectParts(options, text, expected);
}

AnswerPart Text(std::string text) {
  return {Kind::kText, std::move(text)};
}
AnswerPart Call(std::string name, int number = 0) {
  return {Kind::kCall, std::move(name), number};
}
AnswerPart Arguments(std::string text, int number = 0) {
  return {Kind::kArguments, std::move(text), number};
}

TEST(HermesReader, TakesCallsOutOfTheText) {
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kGeneric}) {
    ExpectParts(format, "", {});
    ExpectParts(format, "Hello.\n", {Text("Hello.\n")});
    ExpectParts(format,
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Par}is\"}}\n"
                "</tool_call>",
                {Call("weather"), Arguments("{\"city\": \"Par}is\"}")});
    ExpectParts(format,
                " Let me see.\n\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n",
                {Text(" Let me see."), Call("now"), Arguments("{}")});
    ExpectParts(format,
                "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n"
                "<tool_call>\n{ \"name\" : \"weather\" , \"arguments\" : {\"more\": {\"a\": "
                "[1, \"\\\"}\"]}} }\n</tool_call>",
                {Call("now"), Arguments("{}"), Call("weather", 1),
                 Arguments("{\"more\": {\"a\": [1, \"\\\"}\"]}}", 1)});
    ExpectParts(format,
                "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n And more. ",
                {Call("now"), Arguments("{}"), Text("And more. ")});
  }
}

TEST(HermesReader, GivesBackWhatIsNoMark) {
  ExpectParts(ToolFormat::kHermes, "a < b <tool> <tool_cal", {Text("a < b <tool> <tool_cal")});
  ExpectParts(ToolFormat::kHermes, "a <tool_call>no</tool_call> b",
              {Text("a <tool_call>no</tool_call> b")});
  ExpectParts(ToolFormat::kHermes, "a \n <tool_call> {\"names\": 1}",
              {Text("a \n <tool_call> {\"names\": 1}")});
}

TEST(HermesReader, TellsWhatThereIsOfACallThatIsCut) {
  ExpectParts(ToolFormat::kHermes, "So: <tool_call>\n{\"name\": \"wea", {Text("So:")});
  ExpectParts(ToolFormat::kHermes,
              "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Par",
              {Call("weather"), Arguments("{\"city\": \"Par")});
  ExpectParts(ToolFormat::kHermes,
              "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Par\"}}\n</tool",
              {Call("weather"), Arguments("{\"city\": \"Par\"}")});
}

TEST(XmlReader, TypesArgumentsByTheirSchema) {
  const auto call = [](const std::string& name, const std::string& value) {
    return "<tool_call>\n<function=weather>\n<parameter=" + name + ">\n" + value +
           "\n</parameter>\n</function>\n</tool_call>";
  };
  const std::vector<std::array<std::string, 3>> cases = {
      {"city", "Paris", "\"Paris\""},
      {"city", "5", "\"5\""},
      {"city", "", "\"\""},
      {"city", " two\nlines\n </parameter> \"\\\t", R"(" two\nlines\n </parameter> \"\\\t")"},
      {"city", "\n</param", R"("\n</param")"},
      {"days", "5", "5"},
      {"days", " -12 ", "-12"},
      {"exact", "true", "true"},
      {"share", "0.25", "0.25"},
      {"share", "null", "null"},
      {"where", "12", "12"},
      {"where", "12.5", "\"12.5\""},
      {"where", "true", "\"true\""},
      {"where", " Bonn ", "\" Bonn \""},
      {"tags", "[\"a\", \"b\"]", "[\"a\", \"b\"]"},
      {"more", "{\"a\": {}}", "{\"a\": {}}"},
      {"unknown", "null", "null"},
      {"unknown", "word", "\"word\""},
  };
  for (const auto& [name, value, json] : cases) {
    ExpectParts(ToolFormat::kXml, call(name, value),
                {Call("weather"), Arguments("{\"" + name + "\": " + json + "}")});
  }
}

TEST(XmlReader, TakesCallsOutOfTheText) {
  ExpectParts(ToolFormat::kXml,
              "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRom\n</parameter>\n"
              "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
              "<function=now>\n</function>\n</tool_call>",
              {Text("I look."), Call("weather"), Arguments("{\"city\": \"Rom\", \"days\": 3}"),
               Call("now", 1), Arguments("{}", 1)});
  ExpectParts(ToolFormat::kXml, "a <tool_call>\n<fun>", {Text("a <tool_call>\n<fun>")});
}

TEST(XmlReader, TellsWhatThereIsOfACallThatIsCut) {
  ExpectParts(ToolFormat::kXml, "<tool_call>\n<function=wea", {});
  ExpectParts(ToolFormat::kXml, "<tool_call>\n<function=weather>\n<par", {Call("weather")});
  ExpectParts(ToolFormat::kXml, "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
              {Call("weather"), Arguments("{\"city\": \"Par")});
  ExpectParts(ToolFormat::kXml, "<tool_call>\n<function=weather>\n<parameter=days>\n1",
              {Call("weather"), Arguments("{\"days\": ")});
}

// A string leaves as it comes, what may be a number when it is complete.
TEST(XmlReader, StreamsWhatItKnowsTheTypeOf) {
  AnswerSplitter::Options options;
  options.calls = MakeToolReader(ToolFormat::kXml, Tools());
  AnswerSplitter splitter(options);
  splitter.Push("<tool_call>\n<function=weather>\n<parameter=city>\n");
  EXPECT_EQ(Shown(splitter.Push("Par")), Shown({Arguments("Par")}));
  EXPECT_EQ(Shown(splitter.Push("is\n")), Shown({Arguments("is")}));
  EXPECT_EQ(Shown(splitter.Push("</parameter>\n<parameter=where>\n12")),
            Shown({Arguments("\""), Arguments(", \"where\": ")}));
  EXPECT_EQ(Shown(splitter.Push("3\n</parameter>")), Shown({Arguments("123")}));
}

TEST(LlamaReader, ReadsAWholeAnswer) {
  const std::string call = "{\"name\": \"weather\", \"parameters\": {\"city\": \"{Rom\"}}";
  const std::vector<AnswerPart> told = {Call("weather"), Arguments("{\"city\": \"{Rom\"}")};
  ExpectParts(ToolFormat::kLlama3, call, told);
  ExpectParts(ToolFormat::kLlama3, "\n " + call + "\n", told);
  ExpectParts(ToolFormat::kLlama3, "<|python_tag|>" + call, told);
  ExpectParts(ToolFormat::kLlama3, " <|python_tag|> " + call, told);
  ExpectParts(ToolFormat::kLlama3, " Hello " + call, {Text(" Hello " + call)});
  ExpectParts(ToolFormat::kLlama3, "<|pyth", {Text("<|pyth")});
  ExpectParts(ToolFormat::kLlama3, "<b>", {Text("<b>")});
  ExpectParts(ToolFormat::kLlama3, "{\"city\": \"Rom\"}", {Text("{\"city\": \"Rom\"}")});
  ExpectParts(ToolFormat::kLlama3, "{\"name\": \"wea", {});
  ExpectParts(ToolFormat::kLlama3, "{\"name\": \"weather\", \"parameters\": {\"ci",
              {Call("weather"), Arguments("{\"ci")});
}

// What a model thinks is never a call, whether its thoughts come apart or stay in the text.
TEST(AnswerSplitter, LeavesThinkingAlone) {
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  AnswerSplitter::Options options;
  options.in_reasoning = true;
  options.calls = MakeToolReader(ToolFormat::kHermes, Tools());
  const std::string thought = "I might " + call + " or \xC3\xBC </thin";
  ExpectParts(options, thought + "</think>\n\n" + call,
              {Text(thought + "</think>"), Call("now"), Arguments("{}")});
  ExpectParts(options, thought, {Text(thought)});
  options.split_reasoning = true;
  ExpectParts(options, thought + "\n</think>\n\n" + call,
              {{Kind::kReasoning, thought}, Call("now"), Arguments("{}")});
}

// The grammar holds from the mark on, also where the model itself began to think.
TEST(AnswerSplitter, EndsThinkingOfTheAnswersOwnWithACall) {
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  AnswerSplitter::Options options;
  options.split_reasoning = true;
  options.calls = MakeToolReader(ToolFormat::kHermes, Tools());
  ExpectParts(options, "<think>\nso <tool </thin \n" + call,
              {{Kind::kReasoning, "so <tool </thin"}, Call("now"), Arguments("{}")});
  ExpectParts(options, "<think>so</think>\n" + call,
              {{Kind::kReasoning, "so"}, Call("now"), Arguments("{}")});
  // Where the grammar waits for the end of the thinking, the mark does not end it.
  options.may_open_reasoning = true;
  ExpectParts(options, "<think>so " + call + "</think>\n" + call,
              {{Kind::kReasoning, "so " + call}, Call("now"), Arguments("{}")});
}

TEST(PlainValues, AreReadInTheOrderOfTypes) {
  const OrderedJson root = OrderedJson::parse(
      R"({"$defs": {"colour": {"enum": ["red", "5", 5]}, "loop": {"$ref": "#/$defs/loop"}}})");
  const auto types = [&](const char* schema) {
    return PlainValueOf(OrderedJson::parse(schema), root).types;
  };
  EXPECT_EQ(types(R"({"type": "string"})"), kStringValue);
  EXPECT_EQ(types(R"({"type": ["integer", "null"]})"), kIntegerValue | kNullValue);
  EXPECT_EQ(types(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})"),
            kStringValue | kNullValue);
  EXPECT_EQ(types(R"({})"), kAnyValue);
  EXPECT_EQ(types("true"), kAnyValue);
  EXPECT_EQ(types(R"({"$ref": "#/$defs/loop"})"), kAnyValue);
  EXPECT_EQ(types(R"({"$ref": "#/nowhere"})"), kAnyValue);
  // Whatever text comes would be read as a number, and not every number is allowed.
  EXPECT_EQ(types(R"({"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string"}]})"),
            kStringValue);
  const PlainValue colour = PlainValueOf(OrderedJson::parse(R"({"$ref": "#/$defs/colour"})"), root);
  EXPECT_EQ(colour.types, kStringValue | kIntegerValue);
  EXPECT_EQ(colour.texts, std::vector<std::string>{"red"});
  const PlainValue pattern = PlainValueOf(
      OrderedJson::parse(R"({"type": "string", "pattern": "a", "maxLength": 3})"), root);
  // In quotes, where JSON's own rules hold it to the pattern.
  EXPECT_EQ(pattern.types, kQuotedValue);
  EXPECT_EQ(pattern.json.size(), 1u);
  EXPECT_TRUE(pattern.ignored.empty());
  EXPECT_EQ(ReadPlainValue("\"abc\"", kQuotedValue), "\"abc\"");
  EXPECT_EQ(types(R"({"allOf": [{"properties": {}}, {"required": ["a"]}]})"), kObjectValue);
  EXPECT_EQ(types(R"({"items": {}})"), kArrayValue);
  const PlainValue length = PlainValueOf(OrderedJson::parse(R"({"maxLength": 3})"), root);
  EXPECT_EQ(length.types, kStringValue);
  EXPECT_EQ(length.text->max, 3u);
}

TEST(ToolFormats, AreKnownByTheirTemplates) {
  const OrderedJson none = OrderedJson::object();
  EXPECT_EQ(ToolFormatOf("{{ tools }}<tool_call>{\"name\"", none), ToolFormat::kHermes);
  EXPECT_EQ(ToolFormatOf("{{ tools }}<tool_call>\n<function=", none), ToolFormat::kXml);
  EXPECT_EQ(ToolFormatOf("{{ tools }} ipython {\"name\": , \"parameters\": ", none),
            ToolFormat::kLlama3);
  EXPECT_EQ(ToolFormatOf("{{ tools }} [TOOL_CALLS]", none), ToolFormat::kGeneric);
  EXPECT_EQ(ToolFormatOf("{{ messages }}", none), ToolFormat::kGeneric);
}

}  // namespace
}  // namespace loopspec

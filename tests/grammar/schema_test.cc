// JSON Schema: for each keyword texts that are valid and texts that are not; what is refused; and
// masks along random texts.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "tests/grammar/vocabularies.h"

namespace loopspec::grammar {
namespace {

bool Valid(Grammar& grammar, const std::string& text) {
  State state = grammar.Start();
  return state.Advance(text) && state.MayEnd();
}

struct Row {
  std::string schema;
  std::vector<std::string> valid, invalid;
};

void ExpectRows(std::span<const Row> rows, const SchemaOptions& options = {}) {
  for (const Row& row : rows) {
    const auto grammar = Grammar::FromSchema(row.schema, nullptr, options);
    for (const std::string& text : row.valid) {
      EXPECT_TRUE(Valid(*grammar, text)) << row.schema << " refuses " << text;
    }
    for (const std::string& text : row.invalid) {
      EXPECT_FALSE(Valid(*grammar, text)) << row.schema << " takes " << text;
    }
  }
}

std::string SchemaError(const std::string& schema) {
  try {
    Grammar::FromSchema(schema, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GrammarSchema, Types) {
  const Row rows[] = {
      {R"({})",
       {"null", "1", "-0.5e+10", R"("a")", "[]", R"({"a":[1,{}]})", "[ 1 , 2 ]"},
       {"", "nul", "01", "1.", "+1", "'a'", "[1,]", R"({"a":1,})", "{a:1}", " 1", "1 "}},
      {R"(true)", {"1"}, {""}},
      {R"({"type":"null"})", {"null"}, {"0", "\"\""}},
      {R"({"type":["boolean","string"]})", {"true", "\"x\""}, {"1"}},
      {R"({"type":"integer"})", {"0", "-12", "99999999999999999999"}, {"1.5", "1e3", "01"}},
      {R"({"type":"string"})",
       {R"("")", R"("\u00e9\n\"\\\/")", R"("\ud83d\ude00")", "\"\xC3\xA9\""},
       {R"("\x")", R"("\ud83d")", R"("\u12")", "\"\n\"", "\"\xC3\"", "\"\xED\xA0\x80\""}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, Strings) {
  const Row rows[] = {
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", "\"\xC3\xA9\xF0\x9F\x98\x80\"", R"("\u00e9\ud83d\ude00\n")"},
       {R"("a")", R"("abcd")", "\"\xC3\xA9\""}},
      {R"({"type":"string","pattern":"^a.c$","maxLength":9})",
       {R"("abc")", R"("a\u0062c")"},
       {R"("ac")", R"("abcd")"}},
      {R"({"type":"string","pattern":"b"})", {R"("abc")"}, {R"("ac")"}},
      {R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":4})",
       {R"("ab")"},
       {R"("a")", R"("abcde")"}},
      {R"({"format":"date"})", {R"("2024-02-29")", "1"}, {R"("2023-02-29")", R"("2024-13-01")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T23:59:59.5+01:00")"},
       {R"("2024-02-29")", R"("2024-02-29T24:00:00Z")"}},
      {R"({"type":"string","format":"ipv4"})",
       {R"("255.0.0.1")"},
       {R"("256.0.0.1")", R"("1.2.3")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::1")", R"("1:2:3:4:5:6:7:8")"},
       {R"("1::2::3")", R"("12345::")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@c.de")"}, {R"("a@")", R"("a..b@c.de")"}},
      {R"({"type":"string","format":"hostname"})", {R"("a-b.example")"}, {R"("-a")", R"("a..b")"}},
      {R"({"type":"string","format":"uri"})",
       {R"("https://a.b/c?d#e")", R"("mailto:a@b")"},
       {R"("a b")", R"("/x")"}},
      {R"({"type":"string","format":"no-such-format"})", {R"("anything")"}, {"1"}},
      {R"({"type":"string","not":{"enum":["a"]}})", {R"("b")", R"("")"}, {R"("a")", R"("\u0061")"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, Numbers) {
  const Row rows[] = {
      {R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-9", "0", "7", "99", "105"},
       {"-13", "106", "1000", "007"}},
      {R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":6.5})", {"4", "6"}, {"3", "7"}},
      {R"({"type":"integer","minimum":2,"exclusiveMinimum":true})", {"3"}, {"2"}},
      {R"({"type":"number","minimum":-1.5,"maximum":2.25})",
       {"-1.5", "-1.49", "0", "2.25", "2.2500", "1e-5", "-0.0"},
       {"-1.51", "2.26", "2.250001", "1e5"}},
      {R"({"type":"number","exclusiveMinimum":0})",
       {"0.001", "5", "1e-05", "3e8"},
       {"0", "0.0", "-1"}},
      {R"({"type":"number","exclusiveMaximum":1})",
       {"0.99", "-100"},
       {"1", "1.0", "0.99999999999999999999"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "14", "-21", "700"}, {"1", "15"}},
      {R"({"type":"number","multipleOf":0.25})", {"0.5", "1", "2.750", "-0.25"}, {"0.3", "0.251"}},
      {R"({"type":"number","multipleOf":3})", {"3", "6.0", "-9.00"}, {"4", "3.1"}},
      {R"({"type":"integer","multipleOf":10,"minimum":95,"maximum":120})",
       {"100", "120"},
       {"90", "95", "110.0", "130"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, Objects) {
  const Row rows[] = {
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"],"type":"object"})",
       {R"({"a":1,"b":"x"})", R"({"b":"x"})", R"({ "b" : "x" , "c" : [] })",
        R"({"b":"","c":1,"d":2})"},
       {R"({"a":1})", R"({"a":"x","b":"x"})", R"({"b":"x","a":1})", R"({"b":"x","b":"y"})",
        R"({"b":"x","\u0061":"x"})", "{,}"}},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":false})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})", R"({"a":1,"a":2})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"type":"object","patternProperties":{"^x":{"type":"integer"},"y$":{"minimum":5}},"additionalProperties":false})",
       {R"({"xy":5})", R"({"x":1})", R"({"zy":"s"})"},
       {R"({"xy":4})", R"({"x":"s"})", R"({"a":1})"}},
      {R"({"type":"object","propertyNames":{"maxLength":2},"maxProperties":1})",
       {R"({"ab":1})", "{}"},
       {R"({"abc":1})", R"({"a":1,"b":2})"}},
      {R"({"type":"object","minProperties":1})", {R"({"ab":1})"}, {"{}"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2})",
       {R"({"a":1,"c":1})"},
       {R"({"c":1})", R"({"b":1})"}},
      {R"({"type":"object","required":["z"],"properties":{"a":{}}})",
       {R"({"a":1,"z":2})"},
       {R"({"a":1})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"dependentRequired":{"a":["b"]},"additionalProperties":false})",
       {"{}", R"({"b":null})", R"({"a":null,"b":null})"},
       {R"({"a":null})"}},
      {R"({"type":"object","properties":{"a":false,"b":{}},"additionalProperties":false})",
       {"{}", R"({"b":1})"},
       {R"({"a":1})"}},
      {R"({"type":"object","properties":{"a":{}},"unevaluatedProperties":false})",
       {R"({"a":1})"},
       {R"({"b":1})"}},
  };
  ExpectRows(rows);
  SchemaOptions any;
  any.order = PropertyOrder::kAny;
  const Row unordered[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"]})",
       {R"({"b":"x","a":1})", R"({"c":0,"b":"x","a":1})"},
       {R"({"a":1})", R"({"b":"x","b":"x"})", R"({"b":"x","a":"x"})"}},
  };
  ExpectRows(unordered, any);
  SchemaOptions compact;
  compact.space = JsonSpace::kNone;
  const Row spaceless[] = {{R"({"type":"object"})", {R"({"b":[1,2]})"}, {R"({"b": 1})", "{ }"}}};
  ExpectRows(spaceless, compact);
  SchemaOptions usual;
  usual.space = JsonSpace::kUsual;
  const std::string indent = "\n" + std::string(32, ' ');
  const Row spaced[] = {
      {R"({"type":"object"})",
       {R"({"b":[1,2]})", R"({ "b": [ 1, 2 ], "c": {} })", "{\n  \"b\": [\n\t\t1,\n    2\n  ]\n}",
        "{" + indent + "\"b\": {}" + indent + "}"},
       {"{\"b\" :1}", "{\"b\":1 ,\"c\":2}", "{\"b\":  1}", "{\n\n}", "{\"b\":\n1}", "{\r\n}", " {}",
        "{} ", "{" + indent + " }"}}};
  ExpectRows(spaced, usual);
  SchemaOptions any_space;  // any that JSON allows
  const Row loose[] = {{R"({"type":"object"})",
                        {"{\"b\" \r\n:\t1 ,\"c\":2" + std::string(64, '\n') + "}"},
                        {"{" + std::string(65, ' ') + "}", " {}", "{} "}}};
  ExpectRows(loose, any_space);
}

TEST(GrammarSchema, Arrays) {
  const Row rows[] = {
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2,3]"},
       {"[]", "[1,2,3,4]", "[1,\"a\"]", "[1,]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
       {"[]", "[1]", "[1,\"a\"]"},
       {"[\"a\"]", "[1,\"a\",1]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":2,"maxItems":3,"items":{"type":"null"}})",
       {"[1,\"a\"]", "[1,\"a\",null]"},
       {"[1]", "[1,\"a\",null,null]"}},
      {R"({"type":"array","items":[{"type":"integer"}],"additionalItems":{"type":"null"}})",
       {"[1,null]"},
       {"[1,1]"}},
      {R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})",
       {R"(["a","b"])", R"(["c","a","b"])"},
       {R"(["a"])", R"(["a","a"])"}},
      {R"({"type":"array","contains":{"const":3},"items":{"type":"integer"}})",
       {"[3]", "[1,3,2]"},
       {"[]", "[1]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, Contains) {
  const Row rows[] = {
      {R"({"type":"array","contains":{"type":"string"},"minItems":2,"maxItems":3})",
       {R"([1,"a"])", R"(["a",1])", R"([1,2,"a"])"},
       {"[1,2]", R"(["a"])", R"([1,2,3,"a"])", "[]"}},
      {R"({"type":"array","contains":{"const":1},"minContains":2,"maxContains":3,"items":{"type":"integer"}})",
       {"[1,1]", "[2,1,1,3,1]"},
       {"[1]", "[1,2]", "[1,1,1,1]", "[]"}},
      {R"({"type":"array","contains":{"const":1},"minContains":0})", {"[]", "[2]", "[1]"}, {"1"}},
      {R"({"type":"array","prefixItems":[{"type":"string"}],"contains":{"type":"integer"}})",
       {R"(["a",1])", R"(["a",null,1])"},
       {R"(["a"])", "[1]"}},
      {R"({"type":"array","allOf":[{"contains":{"const":1}},{"contains":{"const":2}}]})",
       {"[1,2]", "[2,3,1]"},
       {"[1]", "[2,2]"}},
      {R"({"type":"array","not":{"contains":{"const":1}}})", {"[]", "[2,3]"}, {"[1]", "[2,1]"}},
      {R"({"type":"array","not":{"items":{"type":"string"}}})", {"[1]", R"(["a",1])"}, {"[]"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, Unevaluated) {
  const Row rows[] = {
      {R"({"type":"object","allOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"b":{}}}],"properties":{"c":{}},"unevaluatedProperties":false})",
       {R"({"a":1,"b":2})", R"({"c":1})", "{}"},
       {R"({"d":1})", R"({"a":"x"})"}},
      {R"({"$defs":{"base":{"properties":{"a":{}},"required":["a"]}},"$ref":"#/$defs/base","type":"object","properties":{"b":{}},"unevaluatedProperties":{"type":"integer"}})",
       {R"({"a":"x","b":"y","c":1})"},
       {R"({"a":1,"c":"x"})", R"({"b":1})"}},
      {R"({"type":"object","anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":1}},"required":["b"]}],"unevaluatedProperties":false})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"},
       {R"({"a":1,"b":2})", R"({"a":1,"c":1})", "{}"}},
      {R"({"type":"object","if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"properties":{"x":{}}},"else":{"properties":{"y":{}}},"unevaluatedProperties":false})",
       {R"({"k":1,"x":1})", R"({"y":1})", "{}"},
       {R"({"k":1,"y":1})", R"({"x":1})", R"({"k":2})"}},
      {R"({"type":"object","allOf":[{"properties":{"a":{}},"additionalProperties":true}],"unevaluatedProperties":false})",
       {R"({"a":1,"z":1})"},
       {"[]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"allOf":[{"prefixItems":[{},{"type":"string"}]}],"unevaluatedItems":false})",
       {"[]", R"([1,"a"])"},
       {R"([1,"a",2])", "[1,2]"}},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{}},"unevaluatedProperties":false})",
       {R"({"b":1})"},
       {"1"}},
  };
  SchemaOptions any;
  any.order = PropertyOrder::kAny;
  ExpectRows(rows, any);
}

TEST(GrammarSchema, Negations) {
  const Row rows[] = {
      {R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", {"1.5", "-0.25"}, {"1", "2.0"}},
      {R"({"type":"object","not":{"additionalProperties":false,"properties":{"a":{}}}})",
       {R"({"b":1})", R"({"a":1,"b":1})", R"({"c":1,"b":1})"},
       {"{}", R"({"a":1})"}},
      {R"({"type":"object","not":{"patternProperties":{"^x":{"type":"integer"}}}})",
       {R"({"x":"a"})", R"({"a":1,"x":"a"})"},
       {"{}", R"({"x":1})", R"({"a":"a"})"}},
      {R"({"type":"object","not":{"propertyNames":{"maxLength":2}}})",
       {R"({"abc":1})", R"({"a":1,"abc":1})"},
       {"{}", R"({"ab":1})"}},
      {R"({"type":"array","not":{"const":[1,2]}})", {"[]", "[1]", "[1,3]", "[1,2,3]"}, {"[1,2]"}},
      {R"({"type":"object","not":{"enum":[{},{"a":1}]}})",
       {R"({"a":2})", R"({"b":1})", R"({"a":1,"b":1})"},
       {"{}", R"({"a":1})"}},
      {R"({"type":"string","not":{"format":"date"}})", {R"("x")"}, {R"("2024-02-29")"}},
      {R"({"type":"object","properties":{"a":{},"b":{}},"not":{"dependentRequired":{"a":["b"]}}})",
       {R"({"a":1})"},
       {"{}", R"({"a":1,"b":1})"}},
      {R"({"not":{"oneOf":[{"type":"integer"},{"minimum":5}]},"type":"number"})",
       {"6", "1.5"},
       {"1", "5.5"}},
      {R"({"type":"integer","not":{"minimum":5,"exclusiveMinimum":true}})", {"5", "4"}, {"6"}},
      // A text of many digits may be another number when it is read as a double.
      {R"({"type":"number","not":{"type":"integer"}})",
       {"0.5", "-1.5", "1.999", "12.50000000000000000001", "99999999999999.5"},
       {"1", "1.0", "4503599627370497.5", "1.00000000000000000001", "0.99999999999999999999",
        "-7.00000000000000000001", "999999999999999.5"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":5}]})",
       {"4", "5.5"},
       {"5", "9007199254740993.5", "7.00000000000000000001"}},
      {R"({"type":"number","not":{"const":0.5}})",
       {"0.25", "1", "0.50000000000001", "123456789012345678901"},
       {"0.5", "0.50", "0.50000000000000000001", "0.49999999999999999999"}},
      {R"({"type":"number","not":{"const":9007199254740992}})",
       {"900719925474099", "0.5"},
       {"9007199254740992", "9007199254740993", "9007199254740992.5"}},
      {R"({"type":"array","not":{"prefixItems":[{"type":"integer"},{"type":"string"}]}})",
       {R"(["a"])", "[1,2]"},
       {"[]", "[1]", R"([1,"a"])"}},
      // One branch is open, the other closed.
      {R"({"oneOf":[{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false},{"type":"object","properties":{"b":{"type":"integer"}}}]})",
       {R"({"b":1})", R"({"a":"x"})", R"({"a":1,"c":1})"},
       {"{}", R"({"a":1})", R"({"b":"x"})"}},
  };
  SchemaOptions any;
  any.order = PropertyOrder::kAny;
  ExpectRows(rows, any);
}

TEST(GrammarSchema, References) {
  const Row rows[] = {
      {R"({"$id":"https://example.org/s/root.json","properties":{"a":{"$ref":"item.json"},"b":{"$ref":"/s/item.json#/$defs/x"},"c":{"$ref":"root.json#/$defs/i/$defs/x"}},"type":"object","$defs":{"i":{"$id":"item.json","type":"integer","$defs":{"x":{"type":"null"}}}}})",
       {R"({"a":1,"b":null,"c":null})"},
       {R"({"a":"x"})", R"({"b":1})", R"({"c":1})"}},
      {R"({"$id":"https://example.org/tree","$dynamicAnchor":"node","type":"object","properties":{"children":{"type":"array","items":{"$dynamicRef":"#node"}}},"additionalProperties":false})",
       {R"({"children":[{"children":[]},{}]})"},
       {R"({"children":[1]})"}},
      {R"({"$recursiveAnchor":true,"type":"object","properties":{"c":{"$recursiveRef":"#"}},"additionalProperties":false})",
       {R"({"c":{"c":{}}})"},
       {R"({"c":1})"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, UniqueItems) {
  const Row rows[] = {
      {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
       {"[]", R"(["a"])",
        R"(["a","b", "ab" ,"","\"")"
        "]",
        R"(["a","A","a\u0062","c"])"},
       {R"(["a","a"])", R"(["a","b","a"])", R"(["a","\u0061"])", R"(["","x",""])",
        R"([ "a" , "a" ])", R"(["a",])"}},
      {R"({"type":"array","items":{"type":"number"},"uniqueItems":true})",
       {"[1,2,1.5]", "[0,1e5,1e-5,10]", "[12,1,2]", "[1, 10, 100]"},
       {"[1,1]", "[1,1.0]", "[10,1e1]", "[0,-0]", "[0.5,5e-1]", "[1,2,1.00]",
        "[100000000000000000000,1e20]"}},
      {R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":3},"uniqueItems":true})",
       {"[1,2,3]", "[3,1]"},
       {"[1,1]", "[1,2,3,1]", "[1,2,3,"}},
      {R"({"type":"array","uniqueItems":true})",
       {R"([1,"1",true,[],{},[1],{"a":1},[[]],null])", R"([{"a":1,"b":2},{"a":1},{"a":2,"b":2}])"},
       {R"([{"a":1,"b":2},{"b":2,"a":1}])", R"([[],[]])", R"([[1,2],[1, 2]])",
        R"([{"a":[1]},{"a":[1.0]}])", "[true,false,true]"}},
      {R"({"type":"array","uniqueItems":true,"items":{"type":"object","properties":{"k":{"type":"boolean"}},"required":["k"],"additionalProperties":false}})",
       {"[]", R"([{"k":true}])", R"([{"k":true},{"k":false}])"},
       {R"([{"k":true},{"k":true}])", R"([{"k":true},{"k":false},)", R"([{"k":true},{"k":t)"}},
      // An array within an item, and one that is no such array.
      {R"({"type":"array","uniqueItems":true,"items":{"type":"array","uniqueItems":true,"items":{"type":"integer"}}})",
       {"[[1,2],[2,1],[]]"},
       {"[[1,1]]", "[[1,2],[1,2]]", "[[1],[2,2]]", "[[],[]]"}},
      {R"({"anyOf":[{"type":"array","uniqueItems":true,"items":{"type":"integer"}},{"type":"array","maxItems":2}]})",
       {"[1,1]", "[1,2,3]", R"(["a","a"])"},
       {"[1,1,2]", "[1,2,1]"}},
      {R"({"type":"array","uniqueItems":true,"minItems":2,"maxItems":3,"prefixItems":[{"type":"string"}],"items":{"type":["string","integer"]}})",
       {R"(["a",1])", R"(["a","b","c"])"},
       {R"(["a"])", R"(["a","a"])", R"([1,2])", R"(["a",1,2,3])"}},
      {R"({"type":"array","uniqueItems":true,"items":{"type":["boolean","null"]}})",
       {"[true,null,false]"},
       {"[true,true]", "[null,null]"}},
      {R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true,"items":{"type":"string","maxLength":1}},"b":{"type":"array","items":{"type":"string"}}}})",
       {R"({"a":["x","y"],"b":["x","x"]})"},
       {R"({"a":["x","x"],"b":["x","x"]})"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, Combinations) {
  const Row rows[] = {
      {R"({"enum":["a",1,null,{"x":[1,2]},2.5]})",
       {R"("a")", "1", "null", R"({"x": [1,2]})", "2.5"},
       {R"("b")", "2", "[1]", R"({"x":[1]})"}},
      {R"({"const":"\"\n"})", {R"("\"\n")"}, {R"("x")"}},
      {R"({"enum":["a","b",3],"type":"string","maxLength":1})", {R"("a")"}, {"3"}},
      {R"({"anyOf":[{"type":"string","maxLength":2},{"type":"integer","minimum":5}]})",
       {R"("ab")", "5"},
       {R"("abc")", "4"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":5}}}]})",
       {R"({"a":5})"},
       {R"({"a":4})", "{}"}},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}],"type":"object"})",
       {R"({"a":1})"},
       {R"({"b":1})"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","v":1})", R"({"k":"b","v":"s"})"},
       {R"({"k":"a","v":"s"})", R"({"k":"c"})"}},
      {R"({"type":"object","properties":{"a":{},"b":{}},"oneOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})"},
       {R"({"a":1,"b":1})", "{}"}},
      {R"({"oneOf":[{"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false},{"type":"object","properties":{"a":{},"c":{}},"additionalProperties":false}]})",
       {R"({"b":1})", R"({"a":1,"c":1})"},
       {"{}", R"({"a":1})", R"({"d":1})"}},
      {R"({"oneOf":[{"type":"string"},{"type":["object","null"],"patternProperties":{"^a":{"type":"integer"}}}]})",
       {R"("x")", R"({"a":1})", "null"},
       {R"({"a":"x"})"}},
      {R"({"not":{"type":["string","object","array"]}})", {"1", "null"}, {"\"a\"", "[]"}},
      {R"({"type":"object","properties":{"k":{},"v":{},"w":{}},"if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["v"]},"else":{"required":["w"]}})",
       {R"({"k":1,"v":0})", R"({"k":2,"w":0})", R"({"w":0})"},
       {R"({"k":1,"w":0})", R"({"k":2,"v":0})", R"({"k":1.0,"w":0})"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
       {R"({"next":{"next":null}})"},
       {R"({"next":{}})", "null"}},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/definitions/s","maxLength":1}},"type":"object"})",
       {R"({"a":"abc"})"},
       {R"({"a":1})"}},
      {R"({"type":"object","properties":{"a":{"$ref":"#thing"}},"$defs":{"x":{"$anchor":"thing","type":"null"}}})",
       {R"({"a":null})"},
       {R"({"a":1})"}},
      // A branch that can never end is no branch.
      {R"({"type":"object","properties":{"a":{"$ref":"#/$defs/r"},"b":{}},"$defs":{"r":{"type":"object","properties":{"r":{"$ref":"#/$defs/r"}},"required":["r"]}},"additionalProperties":false})",
       {"{}", R"({"b":1})"},
       {R"({"a":{}})"}},
  };
  ExpectRows(rows);
}

TEST(GrammarSchema, WhatCannotBeEnforcedIsNamed) {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":3},"minItems":2,"uniqueItems":true})",
       "uniqueItems"},
      {R"({"$dynamicRef":"#x","$defs":{"a":{"$dynamicAnchor":"x"},"b":{"$dynamicAnchor":"x"}}})",
       "$dynamicRef"},
      {R"({"type":"object","minProperties":3})", "minProperties"},
      {R"({"$ref":"https://example.org/other.json"})", "$ref"},
      {R"({"$ref":"#"})", "itself"},
      {R"({"$ref":"#/nowhere"})", "leads nowhere"},
      {R"({"type":"text"})", "type"},
      {R"({"type":"string","pattern":"(a)\\1"})", "backreference"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "no text"},
      {R"({"minLength":-1})", "minLength"},
      {"[]", "expected an object or a boolean"},
      {"{", "the schema"},
  };
  for (const auto& [schema, named] : rows) {
    EXPECT_NE(SchemaError(schema).find(named), std::string::npos)
        << schema << ": " << SchemaError(schema);
  }
  SchemaOptions loose;
  loose.strict = false;
  const auto grammar = Grammar::FromSchema(
      R"({"type":"array","items":{"type":"array"},"contains":{},"uniqueItems":true})", nullptr,
      loose);
  EXPECT_EQ(grammar->ignored(), std::vector<std::string>{"uniqueItems"});
  EXPECT_TRUE(Valid(*grammar, "[[],[]]"));
}

TEST(GrammarSchema, ForcedBytes) {
  const auto grammar = Grammar::FromSchema(
      R"({"type":"object","properties":{"name":{"type":"string"},"x":{"const":17}},"required":["name","x"],"additionalProperties":false})",
      nullptr);
  State state = grammar->Start();
  EXPECT_EQ(state.ForcedBytes(100), "{");
  EXPECT_EQ(state.ForcedBytes(100, true), R"({"name":")");
  ASSERT_TRUE(state.Advance(R"({"name":"a")"));
  EXPECT_EQ(state.ForcedBytes(100, true), R"(,"x":17})");
}

TEST(GrammarSchema, LargeAndHostileSchemasStayBounded) {
  Json large = {{"enum", Json::array()}};
  for (int i = 0; i < 10'000; ++i) large["enum"].push_back("value number " + std::to_string(i * 7));
  const auto many = Grammar::FromSchema(large.dump(), nullptr);
  EXPECT_TRUE(Valid(*many, "\"value number 69993\""));
  EXPECT_FALSE(Valid(*many, "\"value number 69994\""));
  Json wide = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 1500; ++i) {
    wide["properties"]["property" + std::to_string(i)] = {{"type", "string"}, {"maxLength", i + 1}};
  }
  EXPECT_TRUE(Valid(*Grammar::FromSchema(wide.dump(), nullptr), R"({"property7":"a"})"));
  const auto deep = Grammar::FromSchema("{}", nullptr);
  EXPECT_TRUE(Valid(*deep, std::string(3000, '[') + std::string(3000, ']')));
  // 2^20 combinations.
  Json product = {{"allOf", Json::array()}};
  for (int i = 0; i < 20; ++i) {
    product["allOf"].push_back(
        {{"anyOf",
          {{{"required", {"a" + std::to_string(i)}}}, {{"required", {"b" + std::to_string(i)}}}}}});
  }
  EXPECT_NE(SchemaError(product.dump()).find("the most allowed"), std::string::npos);
  EXPECT_NE(SchemaError(std::string(5 << 20, ' ')).find("the most allowed"), std::string::npos);
  Json needs = {{"type", "object"}, {"dependentRequired", Json::object()}};
  // References that double 40 times.
  Json doubling = {{"$ref", "#/$defs/d0"}, {"$defs", {{"d40", {{"type", "integer"}}}}}};
  for (int i = 0; i < 40; ++i) {
    const auto name = [](int k) { return std::to_string(k); };
    needs["dependentRequired"]["a" + name(i)] = {"b" + name(i)};
    const Json next = {{"$ref", "#/$defs/d" + name(i + 1)}};
    doubling["$defs"]["d" + name(i)] = {{"allOf", {next, next}}};
  }
  EXPECT_NE(SchemaError(needs.dump()).find("2000 shapes"), std::string::npos);
  EXPECT_NE(SchemaError(doubling.dump()).find("1000000 steps"), std::string::npos);
}

// A random allowed token at each place; the mask of the place equals trying every token.
TEST(GrammarSchema, MasksEqualBruteForce) {
  const char* schemas[] = {
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":30},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"enum":["a","bc","bcd"]},"maxItems":3}},"required":["name","age"]})",
      R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"number","minimum":-1,"maximum":1}},"additionalProperties":{"type":"string","pattern":"^[A-Za-z ]{2,40}$"}})",
      R"({"anyOf":[{"type":"object","properties":{"x":{"type":"string","format":"date"}},"required":["x"]},{"type":"array","items":{"type":["string","null"]}}]})",
      R"({"type":"array","uniqueItems":true,"items":{"type":["string","boolean"],"maxLength":2}})",
      R"({"type":"array","uniqueItems":true,"items":{"type":"integer","minimum":-2,"maximum":11}})",
      R"({"type":"array","uniqueItems":true,"items":{"type":"object","properties":{"a":{"enum":["x","xy"]},"b":{"type":"boolean"}},"additionalProperties":false}})",
      R"({"type":"array","uniqueItems":true})",
      R"({"type":"array","uniqueItems":true,"items":{"type":"array","uniqueItems":true,"items":{"type":"boolean"}}})",
      R"({})"};
  const auto vocabulary = DemoVocabulary();
  for (const char* schema : schemas) {
    const auto grammar = Grammar::FromSchema(schema, vocabulary);
    for (uint32_t seed = 0; seed < 4; ++seed) {
      std::mt19937 random(seed);
      State state = grammar->Start();
      for (int step = 0; step < 20 && !state.ended(); ++step) {
        const Mask mask = state.NextTokens();
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < vocabulary->size(); ++id) {
          State next = state;
          const bool in = ((*mask)[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
          ASSERT_EQ(next.AdvanceToken(id), in) << schema << " token " << vocabulary->bytes(id);
          if (in) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty()) << schema;
        ASSERT_TRUE(state.AdvanceToken(allowed[random() % allowed.size()]));
      }
    }
  }
}

// How many rules a schema makes.
uint32_t RulesOf(const std::string& schema) {
  const OrderedJson json = ParseOrderedJson(schema, "a schema");
  Rules rules;
  rules.start = CompileSchema(json, {}, rules).texts;
  return rules.expressions.AddRule();
}

// One `contains` that is referred to twice is counted once.
TEST(GrammarSchema, EqualContainsAreCountedOnce) {
  const std::string fits = R"({"type": "object", "required": ["a"]})";
  const std::string again =
      R"({"$defs": {"c": {"contains": )" + fits +
      R"(}}, "type": "array", "allOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/c"}]})";
  const std::string once = R"({"$defs": {"c": {"contains": )" + fits +
                           R"(}}, "type": "array", "allOf": [{"$ref": "#/$defs/c"}]})";
  EXPECT_EQ(RulesOf(again), RulesOf(once));
}

}  // namespace
}  // namespace loopspec::grammar

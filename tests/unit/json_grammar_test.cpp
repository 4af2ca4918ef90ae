// What a grammar of JSON lets through, byte by byte and token by token.
#include "llm/constrain/json_grammar.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "error_of.hpp"
#include "io/json_text.hpp"
#include "llm/constrain/grammar_constraint.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

std::shared_ptr<const ByteGrammar> of_schema(const std::string& schema) {
  return json_schema_grammar(io::parse_json(schema, "schema"));
}

// "": it is whole; else what was wrong, and where. `forget`: with all other states forgotten before each byte.
std::string fault(const ByteGrammar& grammar, const std::string& text, bool forget = false) {
  ByteAutomaton automaton(grammar);
  ByteAutomaton::State state = automaton.start();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (forget) automaton.forget_others(std::vector<ByteAutomaton::State*>{&state});
    state = automaton.next(state, static_cast<std::uint8_t>(text[i]));
    if (state == ByteAutomaton::kDead) return "refused at byte " + std::to_string(i);
  }
  return automaton.accepts(state) ? "" : "not whole";
}

TEST(JsonGrammar, AnyObject) {
  const auto grammar = json_object_grammar();
  for (const char* text :
       {"{}", "{ }", R"({"a":1})", R"({"a": -0.5e-3, "b": [true, false, null, {}], "c": {"d": "x"}})",
        "{\n  \"a\": [\n    1,\n    2\n  ]\n}", R"({"\u00e9\n\\\"": "\ud83d\ude00 ü 你 😀"})", R"({"a":[[[[[1]]]]]})"})
    EXPECT_EQ(fault(*grammar, text), "") << text;
  for (const char* text : {"",
                           "[]",
                           "1",
                           "{",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":01})",
                           R"({"a":1,})",
                           R"({'a':1})",
                           "{}{}",
                           "{} ",
                           R"({"a":"\x"})",
                           R"({"a":"\ud83d"})",
                           R"({"a":"\udc00"})",
                           "{\"a\":\"\n\"}",
                           R"({"a":.5})",
                           R"({"a":1.})",
                           R"({"a":+1})",
                           R"({"a":tru})",
                           "{\"a\":\"\xff\"}",
                           "{\"a\":\"\xc0\xaf\"}",
                           "{\"a\":\"\xed\xa0\x80\"}",
                           R"({"a":nan})"})
    EXPECT_NE(fault(*grammar, text), "") << text;
}

struct SchemaCase {
  const char* schema;
  std::vector<const char*> good, bad;
};

TEST(JsonGrammar, Schemas) {
  const std::vector<SchemaCase> cases = {
      {R"({"type":"string"})", {R"("")", R"("abc")"}, {"1", "null", "{}"}},
      {R"({"type":"integer"})", {"0", "-12", "1234567890123456"}, {"1.5", "01", "-", "\"1\"", "12345678901234567"}},
      {R"({"type":"number"})", {"0", "-1.25", "1e10", "3E-2"}, {"1.", "e1", "--1", "1e100"}},
      {R"({"type":["string","null"]})", {"\"a\"", "null"}, {"1", "true"}},
      {R"({"enum":["red","green",3,null,{"a":[1]}]})",
       {"\"red\"", "\"green\"", "3", "null", R"({"a":[1]})"},
       {"\"re\"", "4", "\"redx\""}},
      {R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"}},
      {R"({"const":"x"})", {"\"x\""}, {"\"y\""}},
      {R"({"anyOf":[{"type":"integer"},{"type":"boolean"}]})", {"1", "true", "false"}, {"null", "\"1\""}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1, 2, 3]", "[\n 1,\n 2\n]"},
       {"[]", "[1]", "[1,2,3,4]", "[1,2,]", "[true,1]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2})", {"[1,2]", "[1,2,3,4,5,6]"}, {"[1]", "[]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a","b"],"additionalProperties":false})",
       {R"({"a":1,"b":"x"})", R"({ "a": 1, "b": "x" })"},
       {R"({"a":1})", R"({"b":"x"})", R"({"b":"x","a":1})", "{}", R"({"a":1,"b":"x","c":1})", R"({"a":1"b":"x"})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},"required":["b"]})",
       {R"({"b":1})", R"({"a":1,"b":2})", R"({"b":1,"c":2})", R"({"a":1, "b":2, "c":3})"},
       {R"({"a":1})", R"({"a":1,"c":2})", "{}", R"({,"b":1})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}}})", {"{}", R"({"a":1})"}, {R"({"a":"x"})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"x":1,"y":2})"}, {R"({"x":"y"})"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"x":1})"}},
      {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}},"required":["v","next"]}}})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
       {R"({"v":1})", R"({"v":1,"next":{}})"}},
      {R"({"type":"object","properties":{"x":{"type":"array","items":{"$ref":"#"}}},"required":["x"]})",
       {R"({"x":[]})", R"({"x":[{"x":[]},{"x":[]}]})"},
       {R"({"x":[1]})"}},
      {"{}", {"1", "\"a\"", "[]", "{\"a\":[1]}"}, {"", "x"}},
      {"true", {"null"}, {""}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":1})", {"[true]"}, {"[]", "[true,true]"}},
      {R"({"type":"array","items":{"type":"array","items":{"const":1},"maxItems":2},"minItems":1})",
       {"[[]]", "[[1],[1,1],[]]"},
       {"[]", "[[1,1,1]]", "[1]"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("abc")", R"("é你")", R"("\u00e9\n")", R"("\ud83d\ude00😀x")"},
       {R"("a")", R"("abcd")", R"("é")", R"("\ud83d\ude00")", R"("")"}},
      {R"({"type":"string","maxLength":0})", {R"("")"}, {R"("a")"}},
      {R"({"type":"string","minLength":1})", {R"("a")", R"("abcdefghijkl")"}, {R"("")"}},
      {R"({"minLength":1})", {R"("a")"}, {R"("")"}},
      {R"({"type":["string","integer"],"minLength":2,"minimum":5})", {R"("ab")", "5"}, {R"("a")", "4"}},
      {R"({"type":"string","pattern":"^[a-c]+$","minLength":2,"maxLength":3})",
       {R"("ab")", R"("ccc")"},
       {R"("a")", R"("abcd")", R"("ad")"}},
      {R"({"type":"string","pattern":"^(yes|no)$"})", {R"("yes")", R"("no")"}, {R"("maybe")", R"("")", R"("yesno")"}},
      {R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")", R"("é\nb你")"}, {R"("")", R"("ac")"}},
      {R"({"type":"string","pattern":"^[^\"\\\\]$"})",
       {R"("a")", R"("é")", R"("😀")", R"("\n")"},
       {R"("\"")", R"("\\")"}},
      {R"({"type":"string","pattern":"^[\"\\\\\u0000-\u001f]{2}$"})",
       {R"("\"\\")", R"("\u0001\t")", R"("\u001f\u000b")"},
       {R"("ab")", R"("\"")"}},
      {R"({"type":"string","pattern":"^[à-ü你]$"})", {R"("é")", R"("你")", R"("ü")"}, {R"("e")", R"("ý")", R"("他")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("2023-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2023-04-31")", R"("2023-13-01")", R"("2023-1-01")"}},
      {R"({"type":"string","format":"time"})",
       {R"("23:59:59Z")", R"("00:00:00.25+01:00")"},
       {R"("24:00:00Z")", R"("12:00:00")", R"("12:60:00Z")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T12:00:00Z")"},
       {R"("2024-02-30T12:00:00Z")", R"("2024-02-29 12:00:00Z")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-A456-426614174000")"},
       {R"("123e4567-e89b-12d3-a456-42661417400")", R"("123e4567e89b12d3a456426614174000")"}},
      {R"({"type":"string","format":"ipv4"})",
       {R"("192.168.0.255")"},
       {R"("256.1.1.1")", R"("1.1.1")", R"("01.1.1.1")"}},
      {R"({"type":"string","format":"email"})", {R"("whatever")"}, {"1"}},
      {R"({"type":"string","format":"date","maxLength":10,"pattern":"^2024"})",
       {R"("2024-01-01")"},
       {R"("2023-01-01")"}},
      {R"({"title":"t","description":"d","default":1,"examples":[1],"$schema":"s","x-order":3,"type":"integer"})",
       {"1"},
       {"\"a\""}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null"}},
      {R"({"oneOf":[{"const":"a","title":"A"},{"const":"b"},{"enum":["c",1]}]})",
       {"\"a\"", "\"b\"", "\"c\"", "1"},
       {"\"d\""}},
      {R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],"$defs":{
            "cat":{"type":"object","properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}}},
            "dog":{"type":"object","properties":{"kind":{"const":"dog"},"name":{"type":"string"}},"required":["name"]}}})",
       {R"({"kind":"cat"})", R"({"kind":"cat","lives":9})", R"({"kind":"dog","name":"x"})"},
       {"{}", R"({"lives":9})", R"({"name":"x"})", R"({"kind":"dog","lives":9})"}},
      {R"({"allOf":[{"$ref":"#/$defs/a"}],"description":"d","$defs":{"a":{"type":"integer"}}})", {"1"}, {"\"a\""}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                    {"properties":{"b":{"type":"null"}},"required":["b"]}]})",
       {R"({"a":1,"b":null})"},
       {R"({"a":1})", R"({"b":null})"}},
      {R"({"$ref":"#/$defs/a","maxLength":2,"$defs":{"a":{"type":"string","minLength":1}}})",
       {"\"ab\""},
       {"\"\"", "\"abc\""}},
      {R"({"allOf":[{"type":"integer","minimum":1},{"maximum":3}]})", {"1", "3"}, {"0", "4"}},
      {R"({"$ref":"#/$defs/a~1b~0c~01","$defs":{"a/b~c~1":{"const":1},"a/b~c/":{"const":2}}})", {"1"}, {"2"}},
      {R"({"type":"object","properties":{"n":{"allOf":[{"$ref":"#"}],"title":"next"}}})",
       {R"({"n":{"n":{}}})"},
       {R"({"n":1})"}},
      {R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":false})", {"[1,1]"}, {"[3]"}},
  };
  for (const SchemaCase& c : cases) {
    const auto grammar = of_schema(c.schema);
    for (const char* text : c.good) EXPECT_EQ(fault(*grammar, text), "") << c.schema << "\n" << text;
    for (const char* text : c.bad) EXPECT_NE(fault(*grammar, text), "") << c.schema << "\n" << text;
    for (const auto& texts : {c.good, c.bad})
      for (const char* text : texts)
        EXPECT_EQ(fault(*grammar, text, true), fault(*grammar, text)) << c.schema << "\n" << text;
  }
}

TEST(JsonGrammar, WhatIsNotSupportedIsNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type":"object","propertyNames":{}})", "schema: the keyword \"propertyNames\" is not supported"},
      {R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
       "schema.properties.a: the keyword \"uniqueItems\""},
      {R"({"type":"string","pattern":"(?=a)b"})", "look-ahead"},
      {R"({"type":"string","pattern":"(a)\\1"})", "\\1 is not supported"},
      {R"({"type":"string","pattern":"\\bword"})", "\\b is not supported"},
      {R"({"type":"string","pattern":"\\p{L}"})", "\\p is not supported"},
      {R"({"type":"string","pattern":"a^b"})", "^ is supported at the beginning"},
      {R"j({"type":"string","pattern":"(a$)"})j", "$ is supported at the end"},
      {R"({"type":"string","pattern":"(a"})", "a group is not closed"},
      {R"j({"type":"string","pattern":"a)"})j", "closes nothing"},
      {R"({"type":"string","pattern":"[a"})", "it ends too early"},
      {R"({"type":"string","pattern":"*"})", "nothing to repeat"},
      {R"({"type":"string","pattern":"a**"})", "follows another"},
      {R"({"type":"string","pattern":"a{3,2}"})", "out of order"},
      {R"({"type":"string","pattern":"[b-a]"})", "out of order"},
      {R"({"type":"string","pattern":"^(a|b){1,60000}c{1,60000}$"})", "too large an automaton"},
      {R"({"type":"string","pattern":"(a|b)*a(a|b){18}$"})", "too large an automaton"},
      {R"({"type":"string","pattern":"^abc$","maxLength":2})", "no string has its pattern"},
      {R"({"type":"string","pattern":"^[]$"})", "no string has its pattern"},
      {R"({"type":"string","pattern":7})", "schema.pattern: expected a string"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "maxLength is less"},
      {R"({"type":"string","minLength":100000})", "schema.minLength"},
      {R"({"type":"string","maxLength":-1})", "schema.maxLength"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no number is within"},
      {R"({"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":5})", "no number is within"},
      {R"({"type":"integer","minimum":1,"maximum":9,"multipleOf":10})", "no number is within"},
      {R"({"type":"integer","minimum":"1"})", "schema.minimum: expected a number"},
      {R"({"type":"number","exclusiveMinimum":true})", "schema.exclusiveMinimum: expected a number"},
      {R"({"type":"number","multipleOf":0.3})", "schema.multipleOf"},
      {R"({"type":"number","multipleOf":0})", "above 0"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "a value may be of alternatives 0 and 1"},
      {R"({"oneOf":[{"const":1},{"enum":[2,1]}]})", "a value may be of alternatives 0 and 1"},
      {R"({"oneOf":[{"type":"object","properties":{"a":{"const":1}}},{"type":"object","properties":{"b":{"const":2}}}]})",
       "a value may be of"},
      {R"({"allOf":[{"type":"integer"},{"type":"string"}]})", "two parts of allOf differ"},
      {R"({"allOf":[{"properties":{"a":{"const":1}}},{"properties":{"b":{}},"additionalProperties":false}]})",
       "additionalProperties together with allOf"},
      {R"({"allOf":[]})", "schema.allOf: expected"},
      {R"({"$ref":"#","minLength":1})", "nest deeper"},
      {R"({"type":"strin"})", "schema.type: got \"strin\""},
      {R"({"oneOf":[]})", "schema.oneOf: expected"},
      {R"({"anyOf":[]})", "schema.anyOf: expected"},
      {R"({"type":7})", "schema.type: expected"},
      {R"({"$ref":"#"})", "refers to itself"},
      {R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}})",
       "refers to itself"},
      {R"({"$ref":"http://example.com"})", "expected a place in this schema"},
      {R"({"$ref":"#/$defs/none"})", "there is no"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "maxItems is less"},
      {R"({"type":"array","minItems":100000})", "schema.minItems"},
      {R"({"type":"array","minItems":-1})", "schema.minItems"},
      {R"({"type":"object","required":["a"]})", "not among the properties"},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":{"type":"string"}})", "additionalProperties"},
      {R"({"enum":[]})", "schema.enum"},
      {R"({"type":"string","enum":[1]})", "none of its values"},
      {"false", "allows no value"},
      {"3", "got a whole number"},
      {R"({"type":"string","enum":["a"],"items":{}})", "together with enum"},
  };
  for (const auto& [schema, part] : cases) {
    const std::string error = error_of([&] { (void)of_schema(schema); });
    EXPECT_NE(error.find(part), std::string::npos) << schema << "\n" << error;
  }
}

TEST(JsonGrammar, LargeAndDeepSchemasEndInAnError) {
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 2000; ++i)
    chain += "\"d" + std::to_string(i) + R"(":{"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"},";
  chain += R"("d2000":{}}})";
  EXPECT_NE(error_of([&] { (void)of_schema(chain); }), "");
  std::string values = R"({"enum":[)";
  for (int i = 0; i < 9000; ++i) values += "\"" + std::to_string(i * 7919) + "-" + std::to_string(i) + "-long\",";
  values += "0]}";
  EXPECT_NE(error_of([&] { (void)of_schema(values); }).find("states"), std::string::npos);
  const auto many = [](int count, const std::string& one) {
    std::string all;
    for (int i = 0; i < count; ++i) {
      std::string next = one;
      next.replace(next.find('#'), 1, std::to_string(i));
      all += (i == 0 ? "" : ",") + next;
    }
    return all;
  };
  for (const int count : {256, 257}) {
    const std::string anys = "{\"anyOf\":[" + many(count, R"({"type":"string","maxLength":#})") + "]}";
    const std::string optional = "{\"properties\":{" + many(count, "\"a#\":{}") + "}}";
    EXPECT_EQ(error_of([&] { (void)of_schema(anys); }).find("more than 256 different") != std::string::npos,
              count > 256);
    EXPECT_EQ(error_of([&] { (void)of_schema(optional); }).find("more than 256 in a row") != std::string::npos,
              count > 256);
  }
  // Each level merges the one below twice.
  std::string doubled = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 30; ++i) {
    const std::string next = "{\"$ref\":\"#/$defs/d" + std::to_string(i + 1) + "\"}";
    doubled += "\"d" + std::to_string(i) + "\":{\"allOf\":[" + next + "," + next + "]},";
  }
  EXPECT_NE(error_of([&] { (void)of_schema(doubled + R"("d30":{}}})"); }).find("compare too much"), std::string::npos);
}

// Bounds against integer arithmetic: every hundredth from -12.50 to 12.50, as a number and with zeros at its end.
TEST(JsonGrammar, NumbersKeepToTheirBounds) {
  const std::vector<int> bounds = {-1000, -925, -900, -1, 0, 1, 75, 100, 925, 999, 1000, 1001};  // hundredths
  const auto written = [](int hundredths, int digits) {
    std::string text = (hundredths < 0 ? "-" : "") + std::to_string(std::abs(hundredths) / 100);
    const int rest = std::abs(hundredths) % 100;
    if (digits > 0) text += "." + std::to_string(rest / 10);
    if (digits > 1) text += std::to_string(rest % 10);
    return text;
  };
  for (const int low : bounds) {
    for (const int high : bounds) {
      for (const bool exclusive : {false, true}) {
        const auto inside = [&](int x) { return exclusive ? x > low && x < high : x >= low && x <= high; };
        const std::string names = std::string(",\"") + (exclusive ? "exclusiveMinimum" : "minimum") +
                                  "\":" + written(low, 2) + ",\"" + (exclusive ? "exclusiveMaximum" : "maximum") +
                                  "\":" + written(high, 2);
        std::shared_ptr<const ByteGrammar> number, integer;
        const std::string no_number = error_of([&] { number = of_schema(R"({"type":"number")" + names + "}"); });
        const std::string no_integer = error_of([&] { integer = of_schema(R"({"type":"integer")" + names + "}"); });
        const bool any = low < high || (low == high && !exclusive);
        bool any_integer = false;
        for (int x = -1250; x <= 1250; ++x) {
          if (x % 100 == 0) any_integer |= inside(x);
          for (const int digits : {0, 1, 2}) {
            if ((digits < 2 && x % 10 != 0) || (digits < 1 && x % 100 != 0)) continue;
            const std::string text = written(x, digits);
            ASSERT_EQ(number && fault(*number, text).empty(), inside(x)) << names << " " << text;
            ASSERT_EQ(integer && fault(*integer, text).empty(), digits == 0 && inside(x)) << names << " " << text;
          }
        }
        EXPECT_EQ(no_number.empty(), any) << names;
        EXPECT_EQ(no_integer.empty(), any_integer) << names;
      }
    }
  }
}

TEST(JsonGrammar, BoundsOfAnyLength) {
  const std::vector<SchemaCase> cases = {
      {R"({"type":"integer","minimum":0})", {"0", "7", "1234567890123456"}, {"-1", "-0", "01", "1.0", "1e3"}},
      {R"({"type":"integer","minimum":95,"maximum":1005})",
       {"95", "99", "100", "999", "1000", "1005"},
       {"94", "9", "1006", "10000"}},
      {R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})",
       {"-9223372036854775808", "9223372036854775807", "0"},
       {"-9223372036854775809", "9223372036854775808"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.001", "1", "5.25"}, {"0", "0.0", "-1", "0.", "1e5"}},
      {R"({"type":"number","minimum":1e-3,"maximum":1.5e2})",
       {"0.001", "150", "150.0", "0.0011"},
       {"0.0009", "150.01"}},
      {R"({"type":"number","maximum":-2})", {"-2", "-2.0", "-3.5"}, {"-1.99", "0", "2"}},
      {R"({"type":"number","minimum":1,"exclusiveMinimum":1,"maximum":2})", {"1.5", "2"}, {"1", "1.0"}},
      {R"({"type":"integer","multipleOf":5})", {"0", "5", "-10", "1000000000000005"}, {"1", "12", "5.0"}},
      {R"({"type":"integer","multipleOf":7,"minimum":10,"maximum":30})", {"14", "21", "28"}, {"7", "10", "35", "15"}},
      {R"({"type":"number","multipleOf":0.01})", {"1", "1.2", "-1.25", "0.05"}, {"1.255", "1e2"}},
      {R"({"type":"integer","multipleOf":0.1,"maximum":1})", {"1", "-3"}, {"0.5", "2"}},
  };
  for (const SchemaCase& c : cases) {
    const auto grammar = of_schema(c.schema);
    for (const char* text : c.good) EXPECT_EQ(fault(*grammar, text), "") << c.schema << "\n" << text;
    for (const char* text : c.bad) EXPECT_NE(fault(*grammar, text), "") << c.schema << "\n" << text;
  }
}

// Against the regular expressions of the standard library: every text of up to five of five characters.
TEST(JsonGrammar, PatternsMatchAsThoseOfEcmaScript) {
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (texts[i].size() < 5)
      for (const char c : {'a', 'b', '1', '-', ' '}) texts.push_back(texts[i] + c);
  for (const char* pattern : {"^a",
                              "b$",
                              "^$",
                              "",
                              "^(a|b)*1$",
                              "^[a-b]+-?[0-9]{1,2}$",
                              "a{2}",
                              "^a{2,}b{0,1}$",
                              "^(?:ab|a)(?:b1|1)$",
                              "[^a]",
                              "^[^a-b1]*$",
                              "^a|b$",
                              "^\\w+\\s\\d$",
                              "^\\W\\S\\D?$",
                              "^.{3}$",
                              "^(a*)*b$",
                              "^(a|ab)(1|b1)?$",
                              "^a+?b*?$",
                              "\\x61\\u0062",
                              "^[a\\-]+$",
                              "^[\\w-]+$",
                              "^((a|)b){2}$",
                              "^(?:a(?:b(?:1)?)?)?$",
                              "^[ab]{0}1$"}) {
    const auto grammar = of_schema(R"({"type":"string","pattern":)" + io::json_quoted(pattern) + "}");
    const std::regex truth(pattern);
    for (const std::string& text : texts)
      ASSERT_EQ(fault(*grammar, "\"" + text + "\"").empty(), std::regex_search(text, truth))
          << pattern << " on " << text;
  }
}

// Tokens drawn at random among those allowed always end in a value of the schema.
TEST(GrammarConstraint, RandomTokensBecomeValues) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  const auto schema = of_schema(
      R"({"type":"object","properties":{"name":{"type":"string"},"ages":{"type":"array","items":{"type":"integer"},"maxItems":3},
          "kind":{"enum":["cat","dog"]},"more":{"anyOf":[{"type":"null"},{"type":"number"}]}},
          "required":["name","ages","kind","more"],"additionalProperties":false})");
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    for (const auto& grammar : {schema, json_object_grammar()}) {
      GrammarConstraint constraint(std::make_shared<GrammarMasks>(grammar, trie), tokenizer);
      std::string text;
      std::uint64_t index = 0;
      while (!constraint.must_end()) {
        const auto allowed = constraint.allowed();
        std::vector<Token> tokens;
        for (std::size_t i = 0; i < allowed.size(); ++i)
          if (allowed[i] != 0) tokens.push_back(static_cast<Token>(i));
        ASSERT_FALSE(tokens.empty()) << text;
        // Towards the end, whatever closes something.
        Token token = tokens[static_cast<std::size_t>(uniform(seed, index++) * static_cast<double>(tokens.size()))];
        if (index > 60)
          for (const char* wanted : {"]", "}", "\""})
            for (const Token t : tokens)
              if (tokenizer.piece(t) == wanted) token = t;
        constraint.take(token);
        text += tokenizer.piece(token);
        ASSERT_LT(index, 4000U) << text;
      }
      EXPECT_TRUE(constraint.may_end());
      const io::Json value = io::parse_json(text, "answer", {.depth = 300});
      ASSERT_NE(value.object(), nullptr);
      if (grammar == schema) {
        EXPECT_EQ(value.object()->size(), 4U) << text;
        EXPECT_LE(value.find("ages")->array()->size(), 3U);
      }
    }
  }
}

// Every token that the walk through the trie allows is one whose bytes the automaton takes, and no other is.
TEST(GrammarConstraint, TheMaskIsThatOfEachTokenAlone) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const TokenTrie trie(tokenizer);
  const auto grammar =
      of_schema(R"({"type":"object","properties":{"a b":{"type":"string"},"n":{"type":"number"}},"required":["a b"]})");
  for (const char* before : {"", "{", "{\"", "{\"a", "{\"a b\":", "{\"a b\": \"x", "{\"a b\":\"\", \"n\": 1"}) {
    ByteAutomaton automaton(*grammar);
    ByteAutomaton::State state = automaton.start();
    for (const char c : std::string(before)) state = automaton.next(state, static_cast<std::uint8_t>(c));
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(trie.vocabulary()));
    trie.mark(automaton, state, mask);
    automaton.forget_others(std::vector<ByteAutomaton::State*>{&state});
    for (Token token = 0; token < trie.vocabulary(); ++token) {
      ByteAutomaton::State at = state;
      for (const char c : tokenizer.piece(token))
        if (at != ByteAutomaton::kDead) at = automaton.next(at, static_cast<std::uint8_t>(c));
      const bool may = at != ByteAutomaton::kDead && !tokenizer.is_special(token) && !tokenizer.piece(token).empty();
      EXPECT_EQ(mask[static_cast<std::size_t>(token)] != 0, may) << before << " then " << tokenizer.piece(token);
    }
  }
}

}  // namespace
}  // namespace attend::llm::test

// What a grammar of JSON lets through, byte by byte and token by token.
#include "llm/constrain/json_grammar.hpp"

#include <gtest/gtest.h>

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

// "": it is whole; else what was wrong, and where.
std::string fault(const ByteGrammar& grammar, const std::string& text) {
  ByteAutomaton automaton(grammar);
  ByteAutomaton::State state = automaton.start();
  for (std::size_t i = 0; i < text.size(); ++i) {
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
  };
  for (const SchemaCase& c : cases) {
    const auto grammar = of_schema(c.schema);
    for (const char* text : c.good) EXPECT_EQ(fault(*grammar, text), "") << c.schema << "\n" << text;
    for (const char* text : c.bad) EXPECT_NE(fault(*grammar, text), "") << c.schema << "\n" << text;
  }
}

TEST(JsonGrammar, WhatIsNotSupportedIsNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type":"string","pattern":"a+"})", "schema: the keyword \"pattern\" is not supported"},
      {R"({"type":"object","properties":{"a":{"type":"number","minimum":0}}})",
       "schema.properties.a: the keyword \"minimum\""},
      {R"({"type":"strin"})", "schema.type: got \"strin\""},
      {R"({"oneOf":[]})", "\"oneOf\""},
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
      {R"({"type":"string","enum":["a"],"items":{}})", "beside enum"},
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
      GrammarConstraint constraint(grammar, trie, tokenizer);
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
    state = automaton.forget_others(state);
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

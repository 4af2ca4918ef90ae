// What a schema can cost: positions and steps are counted, for schemas that are made to be expensive.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
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
  return json_schema_grammar(io::parse_json(schema, "schema", {.depth = 400}));
}

// So many copies, with # replaced by a number.
std::string many(int count, const std::string& one, const std::string& between = ",") {
  std::string all;
  for (int i = 0; i < count; ++i) {
    std::string next = one;
    for (std::size_t at = 0; (at = next.find('#', at)) != std::string::npos;) next.replace(at, 1, std::to_string(i));
    all += (i == 0 ? "" : between) + next;
  }
  return all;
}

// 9,700 texts in an enum, next to 2,000 alternatives that are any string.
std::string enum_and_strings() {
  std::string texts;
  for (int i = 0; i < 9700; ++i)
    texts += std::string(i == 0 ? "" : ",") + "\"" + std::to_string(i * 7919 % 99991) + "\"";
  return "{\"anyOf\":[{\"enum\":[" + texts + "]}," + many(2000, R"({"type":"string"})") + "]}";
}

std::string any_of(const std::string& all) {
  return "{\"anyOf\":[" + all + "]}";
}

// Every text is another set of readings: which characters are at which of the first 60 places.
std::string telling_texts_apart() {
  std::string all;
  for (const char c : {'a', 'b', 'c', '1'})
    all += (all.empty() ? "" : ",") + many(60, std::string(R"({"type":"string","pattern":"^.{#})") + c + "\"}");
  return any_of(all);
}

std::vector<std::string> expensive_schemas() {
  const std::string nested =
      R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"array","items":{"$ref":"#"},"maxItems":7},
      {"type":"object","properties":{"a":{"$ref":"#"}}},{"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"null"}}},{"type":"null"}]})";
  return {
      any_of(many(256, R"({"type":"string","maxLength":1#})")),
      any_of(many(256, R"({"type":"string","minLength":1#})")),
      any_of(many(256, R"({"type":"string","minLength":#,"maxLength":100#})")),
      any_of(many(60, R"({"type":"string","pattern":"^[a-z]{#}(a|b)*c"})")),
      any_of(many(90, R"({"type":"string","pattern":"x{#}$"})")),
      R"({"type":"string","pattern":"^(a|b|c|d)*a(a|b){8}$"})",
      R"({"type":"string","pattern":"^((a{1,9}){1,9}b?){1,5}$"})",
      R"({"type":"string","pattern":"^.{0,4000}$"})",
      R"({"type":"string","pattern":"^[\\w.-]+@[\\w.-]+$","maxLength":320,"minLength":3})",
      any_of(many(120, R"({"type":"integer","minimum":#})")),
      any_of(many(60, R"({"type":"number","minimum":#.5,"maximum":1000000#.25})")),
      any_of(many(100, R"({"type":"integer","maximum":#})")),
      R"({"type":"integer","multipleOf":997,"minimum":-99999999,"maximum":99999999})",
      any_of(many(8, R"({"type":"integer","multipleOf":1#})")),
      any_of(many(256, R"({"type":"array","items":{"type":"string"},"maxItems":#})")),
      any_of(many(256,
                  R"({"type":"object","properties":{"name":{"type":"string"},"p#":{"type":"string","maxLength":#}}})")),
      "{\"type\":\"object\",\"properties\":{" + many(256, R"("property_number_#":{"type":"string"})") + "}}",
      nested,
      telling_texts_apart(),
      any_of(any_of(many(256, R"({"type":"string","maxLength":1#})")) + "," +
             any_of(many(256, R"({"type":"string","minLength":#})")) + "," + telling_texts_apart()),
      R"({"type":"array","items":{"type":"array","items":{"type":"array","items":{"type":"string","maxLength":4000},
          "maxItems":4000},"maxItems":4000},"maxItems":4000})",
      any_of(many(250, R"({"type":"object","additionalProperties":{"type":"string","minLength":#}})")),
      R"({"type":"array","minItems":4096,"items":{"type":"number","minimum":0.000001,"exclusiveMaximum":123456.789}})",
  };
}

// Tokens of one character, and all of two to six of a few of them: many texts that a schema tells apart.
Tokenizer dense_tokenizer() {
  std::vector<std::string> all;
  for (char c = '!'; c <= '~'; ++c) all.emplace_back(1, c);
  std::vector<std::string> last = {""};
  for (int length = 1; length <= 6; ++length) {
    std::vector<std::string> next;
    for (const std::string& text : last)
      for (const char c : {'a', 'b', 'c', '1', '"'}) next.push_back(text + c);
    if (length > 1) all.insert(all.end(), next.begin(), next.end());
    last = std::move(next);
  }
  std::string vocabulary;
  for (std::size_t i = 0; i < all.size(); ++i)
    vocabulary += (i == 0 ? "" : ",") + io::json_quoted(all[i]) + ":" + std::to_string(i);
  return tokenizer_from_json(
      R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},
          "model":{"type":"BPE","merges":[],"vocab":{)" +
          vocabulary + "}}}",
      "t.json");
}

struct Worst {
  std::size_t positions = 0, visits = 0, bytes = 0;
};

// An answer that the masks allow, written token by token: the largest work of a step.
Worst walked(const std::shared_ptr<const ByteGrammar>& grammar, const TokenTrie& trie, const Tokenizer& tokenizer,
             std::uint64_t seed, int steps, std::string& text) {
  Worst worst;
  ByteAutomaton automaton(*grammar);
  ByteAutomaton::State state = automaton.start();
  for (int step = 0; step < steps && automaton.continues(state); ++step) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(trie.vocabulary()));
    worst.visits = std::max(worst.visits, trie.mark(automaton, state, mask));
    worst.bytes = std::max(worst.bytes, automaton.bytes());
    std::vector<Token> tokens;
    for (std::size_t i = 0; i < mask.size(); ++i)
      if (mask[i] != 0) tokens.push_back(static_cast<Token>(i));
    if (tokens.empty()) {
      ADD_FAILURE() << "no way on: " << text;
      break;
    }
    const double draw = uniform(seed, static_cast<std::uint64_t>(step));
    const Token token = tokens[static_cast<std::size_t>(draw * static_cast<double>(tokens.size()))];
    text += tokenizer.piece(token);
    for (const char c : tokenizer.piece(token)) {
      state = automaton.next(state, static_cast<std::uint8_t>(c));
      worst.positions = std::max(worst.positions, automaton.positions(state));
    }
    automaton.forget_others(std::vector<ByteAutomaton::State*>{&state});
  }
  return worst;
}

// What one step may cost: TokenTrie::kMaxVisits, one state more, and each single byte after that.
constexpr std::size_t kMaxStep =
    TokenTrie::kMaxVisits + 257 * (ByteAutomaton::kMaxVisits + ByteAutomaton::kMaxPositions);

TEST(GrammarWork, EnumAndStringsAreTwoReadings) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const TokenTrie trie(tokenizer);
  // The strings of the second differ in what says nothing about values.
  for (const std::string& schema :
       {enum_and_strings(), "{\"anyOf\":[" + many(256, R"({"type":"string","title":"#"})") + "]}"}) {
    const auto grammar = of_schema(schema);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      std::string text;
      const Worst worst = walked(grammar, trie, tokenizer, seed, 20, text);
      EXPECT_LE(worst.positions, 8U);
      EXPECT_LE(worst.visits, std::size_t{20'000});
      EXPECT_LE(worst.bytes, std::size_t{8} << 20);
    }
  }
}

TEST(GrammarWork, ExpensiveSchemasAreBounded) {
  const std::vector<std::string> schemas = expensive_schemas();
  EXPECT_GE(schemas.size(), 20U);
  std::size_t most = 0;
  for (const Tokenizer& tokenizer : {golden_tokenizer("gpt2"), dense_tokenizer()}) {
    const TokenTrie trie(tokenizer);
    for (const std::string& schema : schemas) {
      SCOPED_TRACE(schema.substr(0, 200));
      const auto grammar = of_schema(schema);
      for (std::uint64_t seed = 0; seed < 2; ++seed) {
        std::string text;
        const Worst worst = walked(grammar, trie, tokenizer, seed, 12, text);
        EXPECT_LE(worst.positions, ByteAutomaton::kMaxPositions);
        EXPECT_LE(worst.visits, kMaxStep);
        EXPECT_LE(worst.bytes, std::size_t{24} << 20);
        most = std::max(most, worst.visits);
      }
    }
  }
  EXPECT_GT(most, TokenTrie::kMaxVisits);  // else nothing here is expensive
}

// Where the work of a step is cut, what is one byte long can still come.
TEST(GrammarWork, WhatIsCutLeavesSingleBytes) {
  const Tokenizer tokenizer = dense_tokenizer();
  const TokenTrie trie(tokenizer);
  const auto grammar = of_schema(telling_texts_apart());
  ByteAutomaton automaton(*grammar);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(trie.vocabulary()));
  const std::size_t visits = trie.mark(automaton, automaton.next(automaton.start(), '"'), mask);
  EXPECT_GE(visits, TokenTrie::kMaxVisits);
  EXPECT_LE(visits, kMaxStep);
  const auto allowed = [&](const char* text) { return mask[static_cast<std::size_t>(*tokenizer.find(text))] == 1; };
  EXPECT_TRUE(allowed("a"));
  EXPECT_TRUE(allowed("z"));
  EXPECT_FALSE(allowed("cccccc"));
}

// Calls nest to a bound: deeper arrays cannot begin, and those that are open can end.
TEST(GrammarWork, DeepValuesEnd) {
  const auto grammar = of_schema("{}");
  ByteAutomaton automaton(*grammar);
  ByteAutomaton::State state = automaton.start();
  std::size_t depth = 0;
  for (; depth < 1000; ++depth) {
    const ByteAutomaton::State next = automaton.next(state, '[');
    if (next == ByteAutomaton::kDead) break;
    state = next;
  }
  EXPECT_GE(depth, 250U);
  EXPECT_LE(depth, 260U);
  for (; depth > 0; --depth) {
    ASSERT_FALSE(automaton.accepts(state));
    state = automaton.next(state, ']');
    ASSERT_NE(state, ByteAutomaton::kDead) << depth;
  }
  EXPECT_TRUE(automaton.accepts(state));
}

// Callers at the same byte share a call: two ways at each level are not 2^n readings.
TEST(GrammarWork, AmbiguousLevelsDoNotMultiply) {
  const auto grammar = of_schema(R"({"anyOf":[{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]},
      {"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"null"}},"required":["a"]},{"type":"null"}]})");
  ByteAutomaton automaton(*grammar);
  ByteAutomaton::State state = automaton.start();
  const auto take = [&](const std::string& text) {
    for (const char c : text) {
      ASSERT_NE(state, ByteAutomaton::kDead);
      state = automaton.next(state, static_cast<std::uint8_t>(c));
      EXPECT_LE(automaton.positions(state), 16U);
    }
  };
  for (int level = 0; level < 60; ++level) take("{\"a\":");
  take("null");
  for (int level = 0; level < 60; ++level) take(level % 2 == 0 ? "}" : ",\"b\":null}");
  EXPECT_TRUE(automaton.accepts(state));
  EXPECT_FALSE(automaton.continues(state));
}

// Schemas as programs write them stay far below the bound, so all their tokens are tried.
TEST(GrammarWork, OrdinarySchemasAreTriedInFull) {
  const Tokenizer tokenizer = dense_tokenizer();
  const TokenTrie trie(tokenizer);
  const std::string tools =
      many(60, R"({"type":"object","properties":{"tool":{"const":"tool_#"},"query":{"type":"string",
      "minLength":1,"maxLength":200},"limit":{"type":"integer","minimum":1,"maximum":100},"when":{"type":"string","format":"date-time"}},
      "required":["tool","query"]})");
  for (const std::string& schema : std::vector<std::string>{
           "{}", R"({"type":"object"})", "{\"anyOf\":[" + tools + "]}", "{\"oneOf\":[" + tools + "]}",
           "{\"type\":\"object\",\"properties\":{" +
               many(100, R"("field_#":{"type":["string","null"],"maxLength":50})") + "}}",
           R"({"type":"string","pattern":"^[\\w.+-]+@[\\w-]+\\.[\\w.]+$","maxLength":254})",
           R"({"type":"array","items":{"type":"number","minimum":-90,"maximum":90},"maxItems":1000})"}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      std::string text;
      const Worst worst = walked(of_schema(schema), trie, tokenizer, seed, 40, text);
      EXPECT_LE(worst.visits, TokenTrie::kMaxVisits / 2) << schema.substr(0, 200) << "\n" << text;
    }
  }
}

// A mask depends on the text, not on what was computed before; also where the bounds cut it.
TEST(GrammarWork, MasksDoNotDependOnWhatWasComputedBefore) {
  const Tokenizer tokenizer = dense_tokenizer();
  const TokenTrie trie(tokenizer);
  for (const std::string& schema : expensive_schemas()) {
    const auto grammar = of_schema(schema);
    ByteAutomaton used(*grammar), fresh(*grammar);
    std::vector<std::uint8_t> first(static_cast<std::size_t>(trie.vocabulary())), second = first;
    for (const char byte : {'"', '1', '[', '{', '-'}) {
      const ByteAutomaton::State side = used.next(used.start(), static_cast<std::uint8_t>(byte));
      if (side != ByteAutomaton::kDead) trie.mark(used, side, first);
    }
    ByteAutomaton::State of_used = used.start(), of_fresh = fresh.start();
    for (const char byte : std::string("\"aab")) {
      std::fill(first.begin(), first.end(), 0);
      std::fill(second.begin(), second.end(), 0);
      EXPECT_EQ(trie.mark(used, of_used, first), trie.mark(fresh, of_fresh, second)) << schema.substr(0, 200);
      EXPECT_EQ(first, second) << schema.substr(0, 200);
      of_used = used.next(of_used, static_cast<std::uint8_t>(byte));
      of_fresh = fresh.next(of_fresh, static_cast<std::uint8_t>(byte));
      if (of_used == ByteAutomaton::kDead || of_fresh == ByteAutomaton::kDead) break;
    }
  }
}

// Choices of a request share an automaton, whose memory is bounded: each gets what it would get without the others.
TEST(GrammarWork, ChoicesShareMasks) {
  const Tokenizer tokenizer = dense_tokenizer();
  const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  const auto grammar = of_schema(telling_texts_apart());
  const auto shared = std::make_shared<GrammarMasks>(grammar, trie);
  std::vector<std::unique_ptr<GrammarConstraint>> together, apart;
  for (int i = 0; i < 4; ++i) {
    together.push_back(std::make_unique<GrammarConstraint>(shared, tokenizer));
    apart.push_back(std::make_unique<GrammarConstraint>(std::make_shared<GrammarMasks>(grammar, trie), tokenizer));
  }
  for (std::uint64_t step = 0; step < 25; ++step) {
    for (std::size_t i = 0; i < together.size(); ++i) {
      const auto allowed = together[i]->allowed();
      const auto expected = apart[i]->allowed();
      ASSERT_TRUE(std::equal(allowed.begin(), allowed.end(), expected.begin(), expected.end())) << step << " " << i;
      std::vector<Token> tokens;
      for (std::size_t t = 0; t < allowed.size(); ++t)
        if (allowed[t] != 0 && tokenizer.piece(static_cast<Token>(t)).find('"', 1) == std::string::npos)
          tokens.push_back(static_cast<Token>(t));
      // The string stays open.
      if (step > 0) std::erase_if(tokens, [&](Token t) { return tokenizer.piece(t).front() == '"'; });
      ASSERT_FALSE(tokens.empty());
      const Token token = tokens[static_cast<std::size_t>(uniform(i, step) * static_cast<double>(tokens.size()))];
      together[i]->take(token);
      apart[i]->take(token);
      ASSERT_EQ(together[i]->may_end(), apart[i]->may_end());
      ASSERT_EQ(together[i]->must_end(), apart[i]->must_end());
    }
    if (step == 10) together.pop_back(), apart.pop_back();  // one that ends leaves the others as they are
  }
}

}  // namespace
}  // namespace attend::llm::test

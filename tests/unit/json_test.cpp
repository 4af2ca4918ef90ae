// The strict JSON reader: what it takes, and what it refuses with which words.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "io/json.hpp"

namespace attend::io {
namespace {

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "it", limits);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

TEST(Json, ReadsEveryKind) {
  const Json json =
      parse_json(R"( {"a": [null, true, -7, 2.5, "x\u00e9\n"], "b": {}, "c": 9223372036854775807} )", "it");
  const Json::Array& a = *json.find("a")->array();
  EXPECT_TRUE(a[0].is_null());
  EXPECT_TRUE(*a[1].boolean());
  EXPECT_EQ(*a[2].integer(), -7);
  double x = 0;
  EXPECT_TRUE(a[3].number(x) && x == 2.5);
  EXPECT_TRUE(a[2].number(x) && x == -7);
  EXPECT_EQ(a[3].integer(), nullptr);
  EXPECT_EQ(*a[4].string(), "x\xC3\xA9\n");
  EXPECT_TRUE(json.find("b")->object()->empty());
  EXPECT_EQ(*json.find("c")->integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(json.find("d"), nullptr);
  EXPECT_EQ(a[0].find("a"), nullptr);
  EXPECT_STREQ(json.kind(), "an object");
  EXPECT_EQ(json.object()->front().first, "a");  // the order of the text
}

TEST(Json, SaysWhatIsWrong) {
  for (const auto& [text, word] : {std::pair<std::string, std::string>{"", "unexpected end"},
                                   {"{", "unexpected end"},
                                   {"[1,]", "byte"},
                                   {"{\"a\":1} x", "byte"},
                                   {"{\"a\":1,\"b\":{\"a\":2,\"a\":3}}", "twice"},
                                   {"{'a':1}", "byte"},
                                   {"NaN", "byte"},
                                   {"\"\xFF\"", "UTF-8"},
                                   {"\"\\ud800\"", "surrogate"},
                                   {"\"a\nb\"", "control character"},
                                   {"// no\n1", "byte"}}) {
    const std::string said = refusal(text);
    EXPECT_NE(said.find("it: "), std::string::npos) << text;
    EXPECT_NE(said.find(word), std::string::npos) << text << " -> " << said;
  }
}

// Python writes numbers without bound (model_max_length is often 10^30): a file must not be refused for one nobody
// needs.
TEST(Json, NumbersBeyondTheirTypesAreReadOver) {
  const auto value = [](const std::string& text) {
    const Json json = parse_json("[\"a \\\" 1e999\", " + text + ", 7]", "it");
    const Json::Array& list = *json.array();
    EXPECT_EQ(*list[0].string(), "a \" 1e999") << text;
    EXPECT_EQ(list[1].integer(), nullptr) << text;
    EXPECT_EQ(*list[2].integer(), 7) << text;
    double x = 0;
    EXPECT_TRUE(list[1].number(x)) << text;
    return x;
  };
  EXPECT_EQ(value("1000000000000000019884624838656"), 1e30);
  EXPECT_EQ(value("-1000000000000000019884624838656"), -1e30);
  EXPECT_EQ(value("9223372036854775808"), 0x1p63);
  EXPECT_EQ(value("-9223372036854775809"), -0x1p63);
  EXPECT_EQ(value("18446744073709551616"), 0x1p64);
  EXPECT_EQ(value("1e999"), 1e308);
  EXPECT_EQ(value("-1.5E+999"), -1e308);
  EXPECT_EQ(value("1" + std::string(400, '0')), 1e308);
  EXPECT_EQ(value("1e-999"), 0);
  EXPECT_NE(refusal("[1e999, 2"), "");
  EXPECT_NE(refusal("[1e999, x]"), "");
  EXPECT_NE(refusal("[1e999e5]"), "");
  for (const char* number : {"1.e999", "-.5e999", "01e999", "-01e999"})
    EXPECT_NE(refusal(std::string("[1e999, ") + number + "]"), "") << number;
}

TEST(Json, KeepsItsLimits) {
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(refusal(deep), "");
  EXPECT_NE(refusal("[" + deep + "]").find("64 levels"), std::string::npos);
  EXPECT_NE(refusal(std::string(1'000'000, '[')).find("levels"), std::string::npos);
  EXPECT_NE(refusal("[1, 2]", {.bytes = 5}).find("expected at most 5"), std::string::npos);
}

// The parser beneath takes a zero byte for the end of the text: what stands behind it would never be looked at.
TEST(Json, AZeroByteIsNoEnd) {
  using namespace std::string_literals;
  for (const std::string& text : {"{\"a\":1}\0"s, "{\"a\":1}\0garbage"s, "{\"a\":1\0}"s, "\0"s, "\0{}"s, "\"a\0b\""s}) {
    const std::string said = refusal(text);
    EXPECT_NE(said.find("byte " + std::to_string(text.find('\0')) + " is zero"), std::string::npos) << said;
  }
}

// Many keys must not cost their square.
TEST(Json, ManyKeys) {
  std::string text = "{";
  for (int n = 0; n < 200'000; ++n) text += (n > 0 ? ",\"" : "\"") + std::to_string(n) + "\":0";
  EXPECT_EQ(parse_json(text + "}", "it").object()->size(), 200'000U);
  EXPECT_NE(refusal(text + ",\"7\":0}").find("\"7\" stands twice"), std::string::npos);
}

TEST(Json, QuotesWhatItPrints) {
  EXPECT_EQ(json_quoted("a\"b\n"), "\"a\\\"b\\n\"");
  EXPECT_EQ(json_quoted("\xFF"), "\"\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace attend::io

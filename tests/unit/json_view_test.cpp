// JSON read in place: it accepts, means and refuses what the tree does, with the same words.
#include "io/json_view.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "io/json_text.hpp"

namespace attend::io {
namespace {

Json tree(const JsonView& view) {
  if (view.is_string()) return Json(view.string());
  if (const std::optional<bool> x = view.boolean()) return Json(*x);
  if (const std::optional<std::int64_t> x = view.integer()) return Json(*x);
  if (const std::optional<double> x = view.number()) return Json(*x);
  if (view.is_array()) {
    Json::Array items;
    for (JsonCursor c(view); c.next();) items.push_back(tree(c.value()));
    return Json(std::move(items));
  }
  if (view.is_object()) {
    Json::Object fields;
    for (JsonCursor c(view); c.next();) fields.emplace_back(c.key().string(), tree(c.value()));
    return Json(std::move(fields));
  }
  return Json();
}

std::string said(const std::function<std::string()>& read) {
  try {
    return read();
  } catch (const FileError& error) {
    return std::string("error: ") + error.what();
  }
}
void expect_as_the_tree(const std::string& text, const JsonLimits& limits = {}) {
  EXPECT_EQ(said([&] { return json_text(tree(view_json(text, "it", limits))); }),
            said([&] { return json_text(parse_json(text, "it", limits)); }))
      << text;
}

const std::vector<std::string> kTexts = {
    R"( {"a": [null, true, -7, 2.5, "x\u00e9\n\\\"\/\b\f\r\t"], "b": {}, "c": 9223372036854775807, "": [[], {"": ""}]} )",
    R"([0, -0, 1e5, 1E+5, -1.25e-3, 0.0, 123456789012345678901234567890, -9223372036854775809, 1e999, -1E999, 1e-999])",
    R"({"\ud83d\ude00": "\u0041", "A": "\u0000\u001f\u007f\u0800\uFFFF", "é": "中😀"})",
    R"({"k1":1,"k2":2,"k3":3,"k4":4,"k5":5,"k6":6,"k7":7,"k8":8,"k9":9,"\u006b10":{"k1":[true,false]},"k11":"}]"})",
    "\xEF\xBB\xBF[1]",
    "\"only a string\"",
    "17",
    "null"};

TEST(JsonView, ReadsWhatTheTreeReads) {
  for (const std::string& text : kTexts) {
    expect_as_the_tree(text);
    EXPECT_NO_THROW(view_json(text, "it"));
  }
  for (const char* number :
       {"", "-", "01", "1.", ".5", "1e", "1e+", "--1", "+1", "0x1", "1.5.", "Infinity", "-Infinity"})
    expect_as_the_tree(number);
  for (const char* word :
       {"tru", "truee", "nul", "False", "[true false]", "[1 2]", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}"})
    expect_as_the_tree(word);
  for (const char* text :
       {R"("\ud800")", R"("\udc00")", R"("\ud800\u0041")", R"("\ud800\ud800")", R"("\u12g4")", R"("\x")", "\"\\",
        "\"\\u12", "\"a\nb\"", "\"\x7F\"", "\xEF\xBB", "\xEF\xBB\xBF", " \xEF\xBB\xBF[1]"})
    expect_as_the_tree(text);
  for (const char* text : {"\"\x80\"", "\"\xC0\x80\"", "\"\xC3\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"",
                           "\"\xF0\x9F\x98\"", "\"\xC3\\n\"", "[\xC3\xA9]"})
    expect_as_the_tree(text);
}

TEST(JsonView, RefusesWhatTheTreeRefuses) {
  std::mt19937 random(11);
  const std::string bytes = "\"\\{}[],:0123456789eE+-.utfn x\n\xC3\xA9\x80\xED\xA0";
  for (const std::string& good : kTexts) {
    for (std::size_t size = 0; size < good.size(); ++size) expect_as_the_tree(good.substr(0, size));
    for (int round = 0; round < 1500; ++round) {
      std::string text = good;
      for (auto n = random() % 3 + 1; n > 0; --n) {
        const std::size_t at = random() % text.size();
        const char byte = bytes[random() % bytes.size()];
        switch (random() % 3) {
          case 0:
            text[at] = byte;
            break;
          case 1:
            text.insert(at, 1, byte);
            break;
          default:
            text.erase(at, text.size() > 1 ? 1 : 0);
        }
      }
      expect_as_the_tree(text);
    }
  }
}

TEST(JsonView, KeepsTheLimitsOfTheTree) {
  for (const int depth : {63, 64, 65}) {
    const auto levels = static_cast<std::size_t>(depth);
    expect_as_the_tree(std::string(levels, '[') + std::string(levels, ']'));
    std::string objects = "0";
    for (int n = 0; n < depth; ++n) objects = "{\"a\":" + objects + "}";
    expect_as_the_tree(objects);
  }
  expect_as_the_tree("[1, 2]", {.bytes = 5});
  for (const std::size_t values : {1U, 2U, 3U, 4U, 5U})
    expect_as_the_tree(R"([1, {"a": "b"}, []])", {.values = values});
  expect_as_the_tree(std::string("[1]\0", 4));
}

TEST(JsonView, FindsKeysThatRepeat) {
  expect_as_the_tree(R"({"a":1,"b":{"a":2,"\u0061":3}})");
  for (const int count : {2, 7, 8, 9, 10, 100, 5000}) {
    std::string keys;
    for (int n = 0; n < count; ++n) keys += (n == 0 ? "\"k" : ",\"k") + std::to_string(n) + "\":0";
    EXPECT_EQ(view_json("{" + keys + "}", "it").size(), static_cast<std::size_t>(count));
    for (const int again : {0, count / 2, count - 1}) {
      expect_as_the_tree("{" + keys + ",\"k" + std::to_string(again) + "\":0}");
      expect_as_the_tree("{" + keys + ",\"\\u006B" + std::to_string(again) + "\":0}");
      expect_as_the_tree("{" + keys + ",\"k" + std::to_string(again) + "x\":0,\"k\":0}");
    }
  }
}

TEST(JsonView, FindsFields) {
  const std::string text = R"({"a": 1, "b\n": {"c": [5, "x"]}, "\u00e9": null})";
  const JsonView view = view_json(text, "it");
  EXPECT_EQ(view.find("a")->integer(), 1);
  EXPECT_EQ(view.find("b\n")->find("c")->size(), 2U);
  EXPECT_TRUE(view.find("é")->is_null());
  for (const char* key : {"", "b", "b\\n", "c", "é "}) EXPECT_FALSE(view.find(key)) << key;
  EXPECT_FALSE(view.find("a")->find("a"));
  EXPECT_EQ(view.find("a")->size(), 0U);
  EXPECT_STREQ(view.find("a")->kind(), "a whole number");
  EXPECT_EQ(view.find("b\n")->text(), R"({"c": [5, "x"]})");
}

}  // namespace
}  // namespace attend::io

// Which functions a C++ source defines, for sources of every shape and size.
#include <gtest/gtest.h>

#include "labs/exercises/check.hpp"

namespace attend::labs {
namespace {

using Names = std::vector<std::string>;

TEST(LabFunctions, DefinitionsAreFound) {
  EXPECT_EQ(functions_in("void softmax(const float*x){}"), Names{"softmax"});
  EXPECT_EQ(functions_in("static void\n\t softmax \n (int) {}"), Names{"softmax"});
  EXPECT_EQ(functions_in("void /* here */ rope // and\n(int) {}"), Names{"rope"});
  EXPECT_EQ(functions_in("struct KVCache {};"), Names{"KVCache"});
  EXPECT_EQ(functions_in("class KVCache{};"), Names{"KVCache"});
  EXPECT_EQ(functions_in("void rope(int){}\nvoid causal_mask(bool*){}"), (Names{"rope", "causal_mask"}));
  EXPECT_EQ(functions_in("void rope(int);\nvoid rope(int){}"), Names{"rope"});  // once
  EXPECT_EQ(functions_in("void softmax("), Names{"softmax"});                   // up to the last character
}

TEST(LabFunctions, OtherUsesOfTheNamesAreNot) {
  for (const char* source : {"",
                             "void",
                             "softmax",
                             "void softmax",
                             "void softmax;",
                             "int softmax(int){}",
                             "void my_softmax(int){}",
                             "void softmax2(int){}",
                             "avoid softmax(int)",
                             "KVCache cache;",
                             "enum KVCache {}",
                             "void KVCache(){}",
                             "struct KVCache2 {};",
                             "// void softmax(int){}",
                             "/* void softmax(int){} */",
                             "/* void softmax(int){}",
                             "\"void softmax(int){}\"",
                             "'\"' + \"void softmax(int)\"",
                             "R\"(void softmax(int){})\"",
                             "u8R\"x(\" void softmax(int){} )y\" )x\"",
                             "\"\\\" void softmax(int)\""})
    EXPECT_EQ(functions_in(source), Names{}) << source;
}

TEST(LabFunctions, WhatComesBeforeDoesNotHideThem) {
  for (const char* before : {"/* it's */", "// it's\n", "char c = '\"';", "char c = '\\'';", "auto s = \"//\";",
                             "auto s = \"/*\";", "long n = 1'000'000;", "auto s = R\"(\"/*)\";",
                             "auto s = R\"x()\"/*)x\";", "auto s = \"open\n", "wchar_t c = L'\"';", "/**/", "/***/",
                             "/*/ */", "int a = 4 / 2;", "#define R\n", "R\"17 characters and more( \"\n"})
    EXPECT_EQ(functions_in(std::string(before) + " void softmax(int){}"), Names{"softmax"}) << before;
}

// A scanner that calls itself for each character, or begins again at each, does not come back from these.
TEST(LabFunctions, LargeSourcesAreScannedInOnePass) {
  const std::string function = " void softmax(int){}";
  constexpr std::size_t kLarge = 10'000'000;
  const std::string spaces(kLarge, ' '),
      comment = "/*" + std::string(kLarge, '*') + "/", line = "//" + std::string(kLarge, '/') + "\n",
      text = "\"" + std::string(kLarge, '\\') + "\"", word = std::string(kLarge, 'w');
  for (const std::string& before : {spaces, comment, line, text, word})
    EXPECT_EQ(functions_in(before + function), Names{"softmax"}) << before.substr(0, 4);
  EXPECT_EQ(functions_in("void" + spaces + "softmax" + spaces + "("), Names{"softmax"});
  std::string raw, opened, quotes;
  for (std::size_t n = 0; n < kLarge / 10; ++n) {
    raw += "R\"(";
    opened += "/* void softmax(";
    quotes += "R\"aaaaaaaaaaaaaaaaaa";
  }
  for (const std::string& source : {raw, opened, quotes}) EXPECT_EQ(functions_in(source), Names{});
}

}  // namespace
}  // namespace attend::labs

// Switches as text: what is read is written back, and what is not understood is said.
#include <gtest/gtest.h>

#include <string>

#include "attend/llm/look.hpp"
#include "error_of.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

TEST(LookSwitches, AreReadAndWrittenBack) {
  for (const char* text :
       {"scale=off", "scale=off@3", "temperature=2.5@3.11", "temperature=0.1", "mask=full", "mask=causal@0",
        "mask=window:64", "mask=sinks:4+64@1.2", "padding=3-7", "knock=zero@3.5", "knock=mean@3", "knock=zero",
        "only=layer@3.5", "only=model:mean@0.0", "positions=off", "shuffle=18446744073709551615"}) {
    const Switch one = parse_switch(text);
    EXPECT_EQ(to_text(one), text);
    EXPECT_EQ(parse_switch(to_text(one)), one);
  }
  const std::vector<Switch> some = parse_switches(" scale=off, mask=window:8@2 ,,temperature=3\n");
  ASSERT_EQ(some.size(), 3U);
  EXPECT_EQ(to_text(some), "scale=off,mask=window:8@2,temperature=3");
  EXPECT_EQ(some[1].where, (HeadPlace{2, -1}));
  EXPECT_TRUE(parse_switches("").empty());
}

TEST(LookSwitches, SayWhatTheyExpected) {
  for (const char* text :
       {"scale",           "scale=on",       "temperature=",       "temperature=0",     "temperature=nan",
        "temperature=inf", "temperature=1x", "temperature=1e-300", "temperature=1e300", "mask=window",
        "mask=window:0",   "mask=window:-3", "mask=sinks:4",       "mask=sinks:4+0",    "padding=7-3",
        "padding=3",       "knock=none@1.1", "only=layer@3",       "only=layer",        "only=all@1.1",
        "positions=on",    "shuffle=-1",     "shuffle=1@2",        "shuffle=x"})
    EXPECT_NE(error_of([&] { parse_switch(text); }).find("expected"), std::string::npos) << text;
  EXPECT_NE(error_of([] { parse_switch("knok=zero@1"); }).find("did you mean"), std::string::npos);
  for (const char* text : {"scale=off@", "scale=off@x", "scale=off@1.", "scale=off@-1", "scale=off@1.2.3"})
    EXPECT_NE(error_of([&] { parse_switch(text); }).find("LAYER.HEAD"), std::string::npos) << text;
}

}  // namespace
}  // namespace attend::llm::test

// Numbers as people read them, and names that were nearly typed right: at the edges of each unit and each limit.
#include "io/readable.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/closest.hpp"

namespace attend::io {
namespace {

TEST(Readable, BytesByUnit) {
  const std::pair<double, const char*> cases[] = {{0, "0 B"},
                                                  {1, "1 B"},
                                                  {1023, "1023 B"},
                                                  {1024, "1.0 KiB"},
                                                  {1536, "1.5 KiB"},
                                                  {10239, "10.0 KiB"},
                                                  {10240, "10 KiB"},
                                                  {1047552, "1023 KiB"},
                                                  {1 << 20, "1.0 MiB"},
                                                  {64 << 20, "64 MiB"},
                                                  {1073741824, "1.0 GiB"},
                                                  {1.5 * 1099511627776, "1.5 TiB"},
                                                  {3377699720527872, "3.0 PiB"},
                                                  {1024.0 * 1125899906842624, "1024 PiB"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(readable_bytes(bytes), text) << bytes;
}

TEST(Readable, TimeByUnit) {
  const std::pair<double, const char*> cases[] = {{0, "0.0 us"},    {12.5e-6, "12.5 us"}, {999e-6, "999.0 us"},
                                                  {1e-3, "1.0 ms"}, {0.25, "250.0 ms"},   {0.999, "999.0 ms"},
                                                  {1, "1.00 s"},    {75.5, "75.50 s"}};
  for (const auto& [seconds, text] : cases) EXPECT_EQ(readable_time(seconds), text) << seconds;
}

TEST(Readable, CountsByThousands) {
  const std::pair<std::int64_t, const char*> cases[] = {{0, "0"},
                                                        {7, "7"},
                                                        {999, "999"},
                                                        {1000, "1,000"},
                                                        {100000, "100,000"},
                                                        {134515008, "134,515,008"},
                                                        {-1, "-1"},
                                                        {-999, "-999"},
                                                        {-1000, "-1,000"},
                                                        {-100000, "-100,000"},
                                                        {INT64_MAX, "9,223,372,036,854,775,807"},
                                                        {INT64_MIN, "-9,223,372,036,854,775,808"}};
  for (const auto& [count, text] : cases) EXPECT_EQ(readable_count(count), text);
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(2, "token"), "2 tokens");
}

TEST(Readable, Joined) {
  EXPECT_EQ(joined({}, ", "), "");
  const std::vector<std::string> one = {"a"}, three = {"a", "b", "c"};
  EXPECT_EQ(joined(one, ", "), "a");
  EXPECT_EQ(joined(three, " or "), "a or b or c");
}

TEST(Closest, CountsSlips) {
  const std::vector<std::string> names = {"length", "heads", "seed", "kv_heads", "generate"};
  for (const auto& [typed, meant] : {std::pair{"length", "length"},  // as it is
                                     {"lenght", "length"},           // neighbours swapped: one slip
                                     {"lengt", "length"},            // a beginning
                                     {"engths", "length"},           // two slips in six letters
                                     {"LENGTH", "length"},           // case does not count
                                     {"gen", "generate"},
                                     {"ge", ""},  // too short to be a beginning
                                     {"sed", "seed"},
                                     {"sexx", "seed"},  // two slips: one for a word, one for its three letters
                                     {"sxxx", ""},      // three
                                     {"xylophone", ""},
                                     {"", ""}})
    EXPECT_EQ(closest(typed, names), meant) << typed;
}

TEST(Closest, FindsTheWordsOfANameAmongOthers) {
  const std::vector<std::string> options = {"--last-rate", "--rate", "--batch", "--decay", "--hidden", "--held-out"};
  for (const auto& [typed, meant] : {std::pair{"--learning-rate", "--rate"},
                                     {"--learning_rate", "--rate"},
                                     {"--last-rates", "--last-rate"},  // one slip is nearer
                                     {"--weight-decay", "--decay"},
                                     {"--per-device-batch-size", "--batch"},
                                     {"--held-out-share", "--held-out"},
                                     {"--learning-ratio", ""}})
    EXPECT_EQ(closest(typed, options), meant) << typed;
  EXPECT_EQ(closest("learning_rate", std::vector<std::string>{"last_rate", "rate"}), "rate");
}

TEST(Closest, OfEquallyNearNamesTheFirst) {
  const std::vector<std::string> names = {"beta1", "beta2"}, turned = {"beta2", "beta1"};
  EXPECT_EQ(closest("beta3", names), "beta1");
  EXPECT_EQ(closest("beta3", turned), "beta2");
  EXPECT_EQ(closest("beta2", names), "beta2");
  EXPECT_EQ(did_you_mean("beta3", names), "; did you mean 'beta1'?");
  EXPECT_EQ(did_you_mean("xylophone", names), "");
  EXPECT_EQ(closest("a", {}), "");
}

TEST(Closest, LongWordsAreNotCompared) {
  const std::string typed(64, 'a');
  const std::vector<std::string> same(1, typed), longer(1, typed + "a");
  EXPECT_EQ(closest(typed, same), typed);
  EXPECT_EQ(closest(typed + "a", same), "") << "neither what is typed";
  EXPECT_EQ(closest(typed, longer), "") << "nor a name";
}

}  // namespace
}  // namespace attend::io

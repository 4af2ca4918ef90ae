// Prompt look-up: what followed the last tokens where they were before, and how many tokens are guessed.
#include "llm/generate/prompt_lookup.hpp"

#include <gtest/gtest.h>

namespace attend::llm {
namespace {

using Tokens = std::vector<Token>;

TEST(LookUp, GivesWhatFollowedTheLastTokens) {
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 9, 1, 2}, 2), (Tokens{3, 4}));
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 9, 1, 2}, 1), (Tokens{3}));
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 9, 1, 2}, 100), (Tokens{3, 4, 9, 1, 2}));  // as far as there is text
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 9, 1, 2}, 0), Tokens{});
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 5, 6}, 4), Tokens{});
}

TEST(LookUp, PrefersFourTokensToThreeAndTheLatestPlace) {
  // The last two were later than the last four, which count more.
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 50, 7, 3, 4, 60, 1, 2, 3, 4}, 1), (Tokens{50}));
  EXPECT_EQ(look_up(Tokens{2, 3, 4, 50, 7, 3, 4, 60, 1, 2, 3, 4}, 1), (Tokens{50}));
  EXPECT_EQ(look_up(Tokens{3, 4, 50, 7, 3, 4, 60, 1, 2, 3, 4}, 1), (Tokens{60}));
  EXPECT_EQ(look_up(Tokens{1, 2, 3, 4, 50, 1, 2, 3, 4, 60, 1, 2, 3, 4}, 1), (Tokens{60}));
  EXPECT_EQ(look_up(Tokens{4, 50, 7, 9, 4}, 1), Tokens{});  // one token is no reason
}

TEST(LookUp, TheEndIsNotAPlaceOfItsOwn) {
  EXPECT_EQ(look_up(Tokens{}, 3), Tokens{});
  EXPECT_EQ(look_up(Tokens{1}, 3), Tokens{});
  EXPECT_EQ(look_up(Tokens{1, 2}, 3), Tokens{});
  EXPECT_EQ(look_up(Tokens{1, 1}, 3), Tokens{});
  EXPECT_EQ(look_up(Tokens{1, 1, 1}, 3), (Tokens{1}));  // overlapping itself by one
  EXPECT_EQ(look_up(Tokens{1, 2, 1, 2}, 3), (Tokens{1, 2}));
}

std::int64_t next(DraftLength& length) {
  return length.next(64);
}

TEST(DraftLength, DoublesWhileGuessesAreRight) {
  DraftLength length;
  for (const std::int64_t expected : {2, 4, 8, 16, 16, 16}) {
    EXPECT_EQ(next(length), expected);
    length.learn(expected, expected);
  }
  EXPECT_EQ(length.next(5), 5);
  length.learn(16, 3);  // some are right: as many
  EXPECT_EQ(next(length), 3);
  length.learn(3, 1);
  EXPECT_EQ(next(length), 2);  // two at least
  length.learn(2, 2);
  EXPECT_EQ(next(length), 4);
}

TEST(DraftLength, PausesAfterAGuessThatWasWrong) {
  DraftLength length;
  length.learn(2, 2);
  for (const std::int64_t pause : {1, 3, 7, 15, 31, 63, 63}) {
    length.learn(4, 0);
    for (std::int64_t n = 0; n < pause; ++n) ASSERT_EQ(next(length), 0) << pause << " " << n;
    EXPECT_EQ(next(length), 2) << pause;
  }
  length.learn(2, 1);  // one is right: the next pause is the shortest
  length.learn(2, 0);
  EXPECT_EQ(next(length), 0);
  EXPECT_EQ(next(length), 2);
  length.learn(0, 0);  // nothing was guessed: nothing is learned
  EXPECT_EQ(next(length), 2);
}

}  // namespace
}  // namespace attend::llm

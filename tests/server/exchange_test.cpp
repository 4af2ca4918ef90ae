// What is called when a client leaves: once, at once where it has left, and not kept after its answer.
#include "apps/server/exchange.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace attend::server {
namespace {

TEST(Exchange, CallsOnceWhenTheClientLeaves) {
  Exchange exchange;
  int calls = 0;
  exchange.when_gone([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  exchange.leave();
  exchange.leave();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(exchange.gone());
}

TEST(Exchange, CallsAtOnceWhereTheClientHasLeft) {
  Exchange exchange;
  exchange.leave();
  int calls = 0;
  exchange.when_gone([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

// A short job is answered before its handler says what to call; that owns the job, which owns the reply and so this.
TEST(Exchange, KeepsNothingOfAnAnsweredRequest) {
  for (const bool before : {false, true}) {
    const auto job = std::make_shared<int>(0);
    Exchange exchange;
    const auto say = [&] { exchange.when_gone([job] { ++*job; }); };
    if (before) say();
    exchange.answered();
    if (!before) say();
    EXPECT_EQ(job.use_count(), 1) << "said before the answer: " << before;
    exchange.leave();
    EXPECT_EQ(*job, 0);
  }
}

}  // namespace
}  // namespace attend::server

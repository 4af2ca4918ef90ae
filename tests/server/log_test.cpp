// The log never stops who writes to it, and what is lost is counted.
#include "apps/server/log.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace attend::server {
namespace {

std::array<int, 2> new_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return ends;
}

// False at the end.
bool read_more(int descriptor, std::string& text) {
  char some[65536];
  const ssize_t count = ::read(descriptor, some, sizeof some);
  text.append(some, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return count > 0;
}

std::int64_t lines_with(const std::string& text, const std::string& words) {
  std::int64_t lines = 0;
  for (std::size_t at = 0; (at = text.find(words, at)) != std::string::npos; at += words.size()) ++lines;
  return lines;
}

TEST(Log, WritesEachEventAsALine) {
  const auto [reader, writer] = new_pipe();
  {
    Log lines(LogForm::lines, writer);
    lines.say("request", {{"path", "/a b"}, {"status", "200"}});
    Log none(LogForm::none, writer);
    none.say("request");
  }
  {
    Log json(LogForm::json, writer);
    json.say("request", {{"path", "/a\nb"}, {"long", std::string(20'000, 'x')}});
  }
  (void)::close(writer);
  std::string text;
  while (read_more(reader, text)) {
  }
  EXPECT_NE(text.find(" request path=\"/a b\" status=200\n"), std::string::npos) << text;
  EXPECT_NE(text.find("/a\\nb"), std::string::npos) << text;
  EXPECT_EQ(lines_with(text, "\n"), 2);
  EXPECT_LT(text.size(), 4096U);
  (void)::close(reader);
}

TEST(Log, AReaderThatHasGoneEndsNothing) {
  const auto [reader, writer] = new_pipe();
  (void)::close(reader);
  Log log(LogForm::lines, writer);
  for (int n = 0; n < 100; ++n) log.say("request");
}

std::int64_t dropped_in(const std::string& text) {
  const std::string mark = R"("event": "log_dropped", "lines": ")";
  std::int64_t dropped = 0;
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos;)
    dropped += std::stoll(text.substr(at += mark.size(), 10));
  return dropped;
}

// Every event is either in the text or counted as dropped, and the thread that logs does not wait.
TEST(Log, AStalledReaderLosesLinesThatAreCounted) {
  constexpr std::int64_t kLines = 50'000;  // more than the pipe and the buffer hold
  const auto [reader, writer] = new_pipe();
  std::string text;
  {
    Log log(LogForm::json, writer);
    for (std::int64_t n = 0; n < kLines; ++n) log.say("request", {{"path", "/health"}});
    do ASSERT_TRUE(read_more(reader, text));
    while (lines_with(text, R"("event": "request")") + dropped_in(text) < kLines);
  }
  (void)::close(writer);
  while (read_more(reader, text)) {
  }
  (void)::close(reader);
  EXPECT_GT(dropped_in(text), 0);
  EXPECT_EQ(lines_with(text, R"("event": "request")") + dropped_in(text), kLines);
}

TEST(Log, AReaderThatNeverReadsHoldsUpNobody) {
  const auto [reader, writer] = new_pipe();
  {
    Log log(LogForm::lines, writer);
    for (int n = 0; n < 50'000; ++n) log.say("request", {{"path", "/health"}});
  }
  (void)::close(writer);
  (void)::close(reader);
}

}  // namespace
}  // namespace attend::server

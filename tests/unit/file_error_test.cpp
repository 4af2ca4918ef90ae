// Text from files in messages: fit for a terminal, and short.
#include "io/file_error.hpp"

#include <gtest/gtest.h>

#include "golden_models.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {
namespace {

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("plain, \"quoted\", 词, é, 🙂"), "plain, \"quoted\", 词, é, 🙂");
  EXPECT_EQ(printable("\x1b[31mred\x07\r\n\t\x7f"), "\\u001b[31mred\\u0007\\u000d\\u000a\\u0009\\u007f");
  EXPECT_EQ(printable("\u009b2J"), "\\u009b2J");  // C1: an escape of one character
  EXPECT_EQ(printable("a\u202eb\u2066\u200b\ufeff"), "a\\u202eb\\u2066\\u200b\\ufeff");
  EXPECT_EQ(printable("\U000E0041"), "\\u{e0041}");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\u0000b");
  // Broken, overlong, surrogate, beyond the last, cut.
  EXPECT_EQ(printable("\xff\x80"), "\\xff\\x80");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xe8\xaf"), "\\xe8\\xaf");
}

TEST(Printable, LeavesOutTheMiddle) {
  const std::string letters = std::string(600, 'a') + std::string(100'000, 'x') + std::string(300, 'b');
  const std::string text = printable(letters);
  EXPECT_LT(text.size(), 1100U);
  EXPECT_TRUE(text.starts_with(std::string(600, 'a')));
  EXPECT_TRUE(text.ends_with(std::string(300, 'b')));
  EXPECT_NE(text.find("[... 99900 bytes ...]"), std::string::npos) << text;
  std::string characters;
  for (int i = 0; i < 1000; ++i) characters += "词";
  for (std::size_t most = 90; most < 100; ++most)
    EXPECT_EQ(printable(characters, most).find('\\'), std::string::npos) << "a character was cut in two";
  EXPECT_EQ(printable(std::string(1000, 'a')), std::string(1000, 'a'));
}

TEST(PrintableText, KeepsLinesAndJoiners) {
  EXPECT_EQ(printable_text("a\n\tb\u200d\u200c词🙂"), "a\n\tb\u200d\u200c词🙂");
  EXPECT_EQ(printable_text("a\r\nb\rc"), "a\nbc");
  EXPECT_EQ(printable_text("\x1b]0;title\x07\x1b[2J\u009b31m\x7f\b"),
            "\\u001b]0;title\\u0007\\u001b[2J\\u009b31m\\u007f\\u0008");
  EXPECT_EQ(printable_text("a\u202eb\u2066\u200b\ufeff\xff"), "a\\u202eb\\u2066\\u200b\\ufeff\\xff");
  EXPECT_EQ(printable_text(std::string(5000, 'a')), std::string(5000, 'a')) << "nothing is cut";
  EXPECT_EQ(printable_text(""), "");
}

TEST(Printable, EveryFileErrorIs) {
  EXPECT_STREQ(FileError("m.gguf: \x1b[2J").what(), "m.gguf: \\u001b[2J");
  EXPECT_LT(std::string(FileError(std::string(1 << 20, '\x1b')).what()).size(), 8000U);
}

TEST(MappedFile, KnowsWhoseAddressItIs) {
  const llm::test::TempFolder place;
  const auto path = place.path() / "file";
  llm::test::write_text(path, std::string(10'000, 'x'));
  const std::byte* inside = nullptr;
  {
    MappedFile file(path);
    MappedFile moved(std::move(file));
    inside = moved.bytes().data() + 9'999;
    EXPECT_EQ(std::string(mapped_path(inside)), path.string());
    int mine = 0;
    EXPECT_EQ(mapped_path(&mine), nullptr);
  }
  EXPECT_EQ(mapped_path(inside), nullptr);
  const auto hostile = place.path() / "\x1b[2Jfile";
  llm::test::write_text(hostile, "x");
  const MappedFile file(hostile);
  EXPECT_EQ(std::string(mapped_path(file.bytes().data())), (place.path() / "\\u001b[2Jfile").string())
      << "a signal handler prints it as it is";
}

TEST(LinesOf, ATextWithoutTheirEnds) {
  using Lines = std::vector<std::string_view>;
  EXPECT_EQ(lines_of(""), Lines{});
  EXPECT_EQ(lines_of("\n"), Lines{""});
  EXPECT_EQ(lines_of("a"), Lines{"a"});
  EXPECT_EQ(lines_of("a\n"), Lines{"a"});
  EXPECT_EQ(lines_of("\na\r\n\nb"), (Lines{"", "a\r", "", "b"}));
}

}  // namespace
}  // namespace attend::io

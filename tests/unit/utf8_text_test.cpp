// Text that must be UTF-8: what is taken, where it is wrong, and which encoding it probably has.
#include "io/utf8_text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/file_error.hpp"

namespace attend::io {
namespace {

using namespace std::string_literals;

// "" if the text is taken.
std::string refusal(std::string_view text, const TextOrigin& origin = {"t.txt", true}) {
  try {
    (void)utf8_text(text, origin);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

// The first byte that the message names.
std::string byte_of(const std::string& said) {
  const std::size_t at = said.find(": byte ") + 7;
  return said.substr(at, said.find(' ', at) - at);
}

TEST(Utf8Text, DropsAMarkAndReadsCrlfAsLf) {
  const TextOrigin origin{"t", false};
  EXPECT_EQ(utf8_text("", origin), "");
  EXPECT_EQ(utf8_text("\xEF\xBB\xBF", origin), "");
  EXPECT_EQ(utf8_text("\xEF\xBB\xBF词\r\nb\n", origin), "词\nb\n");
  EXPECT_EQ(utf8_text("a\xEF\xBB\xBF", origin), "a\xEF\xBB\xBF") << "only at the beginning it is a mark";
  EXPECT_EQ(utf8_text("\xEF\xBB\xBF\xEF\xBB\xBFx", origin), "\xEF\xBB\xBFx") << "only one";
  EXPECT_EQ(utf8_text("a\r\n\r\nb\r\n", origin), "a\n\nb\n");
  EXPECT_EQ(utf8_text("a\rb\n\rc\r", origin), "a\rb\n\rc\r") << "a lone CR is a character";
  EXPECT_EQ(utf8_text("a\r\r\n", origin), "a\r\n");
  EXPECT_EQ(byte_order_mark("\xEF\xBB\xBF"), 3U);
  EXPECT_EQ(byte_order_mark("\xEF\xBB"), 0U);
}

TEST(Utf8Text, NamesFileLineAndByte) {
  const std::string said = refusal("one\ntwo\nthr\xE9\x65\n");
  EXPECT_EQ(said,
            "t.txt:3: byte 11 is 0xe9, expected text in UTF-8; it looks like ISO-8859-1; convert it: "
            "iconv -f ISO-8859-1 -t UTF-8 t.txt > t.utf8.txt");
  EXPECT_EQ(refusal("one \xE9", {"standard input", false}),
            "standard input:1: byte 4 is 0xe9, expected text in UTF-8; it looks like ISO-8859-1; convert it: "
            "iconv -f ISO-8859-1 -t UTF-8");
  EXPECT_EQ(byte_of(refusal("\xFF")), "0");
  EXPECT_EQ(byte_of(refusal("ab\xC3")), "2") << "a character that is cut by the end";
  EXPECT_EQ(byte_of(refusal("\xEF\xBB\xBF"
                            "a\xFF")),
            "4")
      << "bytes of the file, the mark included";
  for (const char* bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xF8\x88\x80\x80\x80"})
    EXPECT_EQ(byte_of(refusal("ab"s + bad)), "2") << "overlong, surrogate, too large, stray, five bytes";
}

TEST(Utf8Text, ChecksARangeAlone) {
  const std::string all = "\xFF one \xFF";
  EXPECT_NO_THROW(check_utf8(all, 1, all.size() - 1, {"t", true}));
  EXPECT_THROW(check_utf8(all, 0, 2, {"t", true}), FileError);
  EXPECT_THROW(check_utf8(all, 1, all.size(), {"t", true}), FileError);
  EXPECT_THROW(check_utf8("词", 0, 2, {"t", true}), FileError) << "cut by the end of the range";
  EXPECT_NO_THROW(check_utf8(all, 3, 3, {"t", true}));
}

struct Encoded {
  const char* encoding;
  std::string bytes;
};

// Of "你好，世界" and of "naïve café", as iconv writes them.
const std::vector<Encoded> kEncoded = {
    {"GB18030", "\xC4\xE3\xBA\xC3\xA3\xAC\xCA\xC0\xBD\xE7\n"},
    {"GB18030", "line of ASCII\n\xC4\xE3\xBA\xC3\n"},
    {"GB18030", "\xC4\xE3\xBA\xC3\x81\x39\xEF\x30\n"},  // with a character of four bytes
    {"UTF-16LE", "\xFF\xFE\x60\x4F\x7D\x59"s},
    {"UTF-16BE", "\xFE\xFF\x4F\x60\x59\x7D"s},
    {"UTF-16LE", "h\0i\0\n\0"s},
    {"UTF-16BE", "\0h\0i\0\n"s},
    {"UTF-16LE", "\x60\x4F\x7D\x59\x0A\0"s},  // a line end is all that tells
    {"UTF-16BE", "\x4F\x60\x59\x7D\0\x0A"s},
    {"UTF-16LE", "\0\x4E\x4F\x4F\xCE\x4E\x4D\x52\x02\x30\x0A\0"s},  // U+4E00 has a zero byte on the other side
    {"UTF-16BE", "\x4E\0\x4F\x4F\x4E\xCE\x52\x4D\x30\x02\0\x0A"s},
    {"UTF-32LE", "\xFF\xFE\0\0h\0\0\0"s},
    {"UTF-32BE", "\0\0\xFE\xFF\0\0\0h"s},
    {"ISO-8859-1", "na\xEFve caf\xE9, \xA3 5\n"},
    {"WINDOWS-1252", "\x93na\xEFve\x94 caf\xE9, 5 \x80, it\x92s\n"},
    {"UTF-8",
     "你好，世界，再见\n"
     "abc\xE4\xBD"},
    {"", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0"s},
    {"",
     "\x7F"
     "ELF\x02\x01\x01\xFF\x03"},
    {"", "\xD1\x03\x9C\x1F\xE8\x85\x02\xB4"},
};

TEST(Utf8Text, GuessesTheEncoding) {
  for (const Encoded& e : kEncoded) {
    const std::string said = refusal(e.bytes);
    EXPECT_NE(said, "") << e.encoding;
    const std::string expected = e.encoding == ""s        ? "it does not look like text"s
                                 : e.encoding == "UTF-8"s ? "it looks like UTF-8 with damaged bytes"s
                                                          : "it looks like "s + e.encoding + "; convert it: iconv -f " +
                                                                e.encoding + " -t UTF-8 t.txt > t.utf8.txt";
    EXPECT_NE(said.find(expected), std::string::npos) << "expected: " << expected << "\ngot: " << said;
  }
}

// A gigabyte costs no more than the bytes around the one that is wrong.
TEST(Utf8Text, GuessesFromTheBytesAroundTheWrongOne) {
  std::string chinese;
  while (chinese.size() < 300'000) chinese += "ASCII first, \xC4\xE3\xBA\xC3\xA3\xAC\xCA\xC0\xBD\xE7\n";
  std::string late(200'000, 'a');
  EXPECT_EQ(likely_encoding(late + "\n" + chinese, 200'014), "GB18030");
  EXPECT_EQ(likely_encoding(chinese, 13), "GB18030");
  late += "caf\xE9 au lait\n";
  EXPECT_EQ(likely_encoding(late + std::string(200'000, '\1'), 200'003), "");
  EXPECT_EQ(likely_encoding(late + std::string(40'000, 'b') + std::string(200'000, '\1'), 200'003), "ISO-8859-1");
}

// Pairs of bytes are those of the file, wherever the bytes that are looked at begin.
TEST(Utf8Text, KeepsThePairsOfUtf16) {
  std::string little, big;
  for (int n = 0; n < 60'000; ++n) little += "h\0"s, big += "\0h"s;
  for (const std::size_t at : {1U, 32'768U, 32'769U, 40'000U, 40'001U, 40'002U, 119'999U}) {
    EXPECT_EQ(likely_encoding(little, at), "UTF-16LE") << at;
    EXPECT_EQ(likely_encoding(big, at), "UTF-16BE") << at;
  }
}

TEST(Utf8Text, QuotesTheNameForTheShell) {
  const auto command = [](const std::string& name) {
    const std::string said = refusal("caf\xE9", {name, true});
    return said.substr(said.find("iconv"));
  };
  EXPECT_EQ(command("a b/it's.md"), "iconv -f ISO-8859-1 -t UTF-8 'a b/it'\\''s.md' > 'a b/it'\\''s.utf8.md'");
  EXPECT_EQ(command("$(reboot).txt"), "iconv -f ISO-8859-1 -t UTF-8 '$(reboot).txt' > '$(reboot).utf8.txt'");
  EXPECT_EQ(command("-x"), "iconv -f ISO-8859-1 -t UTF-8 -- '-x' > '-x.utf8'");
  EXPECT_EQ(command("folder.d/name"), "iconv -f ISO-8859-1 -t UTF-8 folder.d/name > folder.d/name.utf8");
}

}  // namespace
}  // namespace attend::io

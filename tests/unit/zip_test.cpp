// Zip: stored and deflated entries come back; broken, dangerous and greedy archives are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/zip.hpp"
#include "support/make_zip.hpp"

namespace attend::io {
namespace {

using test::little_endian;
using test::make_zip;
using test::ZipMember;

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

std::vector<ZipMember> good_members() {
  std::string text;
  for (int n = 0; n < 100; ++n) text += "line " + std::to_string(n % 10) + "\n";
  return {{"folder/", ""},
          {"folder/stored", "some bytes", false, 0, std::string("\xAA\xAA\x03\0abc", 7)},
          {"deflated", text, true},
          {"empty", ""},
          {"empty too", "", true}};
}

// Parses and unpacks everything: what an archive can do to us.
std::string refusal(const std::string& file, std::uint64_t most = 1 << 20) {
  try {
    const Zip zip = parse_zip(bytes_of(file), "z");
    for (const ZipEntry& entry : zip.entries()) (void)zip.read(entry, most);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

std::string changed(std::string file, std::size_t at, const std::string& bytes) {
  return file.replace(at, bytes.size(), bytes);
}

TEST(Zip, EveryKindOfEntryComesBack) {
  const std::vector<ZipMember> members = good_members();
  for (const bool zip64 : {false, true})
    for (const std::string comment : {"", "a comment PK\x05\x06"}) {
      const std::string file = make_zip(members, zip64, comment);
      const Zip zip = parse_zip(bytes_of(file), "z");
      ASSERT_EQ(zip.entries().size(), members.size());
      for (const ZipMember& m : members) {
        const ZipEntry* entry = zip.find(m.name);
        ASSERT_NE(entry, nullptr) << m.name;
        EXPECT_EQ(as_text(zip.read(*entry, 10000)), m.bytes) << m.name;
        EXPECT_EQ(entry->is_folder(), m.name == "folder/");
        if (!m.deflated) {
          EXPECT_EQ(as_text(zip.view(*entry)), m.bytes);
        }
      }
      EXPECT_EQ(zip.find("nothing"), nullptr);
      EXPECT_THROW((void)zip.view(*zip.find("deflated")), FileError);
    }
  EXPECT_TRUE(parse_zip(bytes_of(make_zip({})), "z").entries().empty());
}

TEST(Zip, ReadsAFileFromDisk) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "attend_zip_test.zip";
  std::ofstream(path, std::ios::binary) << make_zip(good_members());
  EXPECT_EQ(Zip(path).entries().size(), 5U);
  std::filesystem::remove(path);
}

TEST(Zip, LargeEntriesComeInPieces) {
  std::string text(3000000, '\0');
  for (std::size_t n = 0; n < text.size(); ++n) text[n] = static_cast<char>(n * n >> 7);
  const std::string file = make_zip({{"large", text, true}});
  const Zip zip = parse_zip(bytes_of(file), "z");
  std::string out;
  std::size_t pieces = 0, most = 0;
  zip.unpack(zip.entries()[0], text.size(), [&](std::span<const std::byte> bytes) {
    out += as_text(bytes);
    ++pieces;
    most = std::max(most, bytes.size());
  });
  EXPECT_EQ(out, text);
  EXPECT_GT(pieces, 5U);
  EXPECT_LE(most, std::size_t{1} << 18);
}

TEST(Zip, RefusesDangerousNames) {
  for (const std::string name :
       {"..", "../x", "a/../x", "a/..", "/x", "/", "a//b", "./x", "a/.", "C:x", "c:/x", "a\\b", "..\\x", "", "a/../"})
    EXPECT_NE(refusal(make_zip({{name, ""}})).find("has a name that"), std::string::npos) << name;
  EXPECT_NE(refusal(make_zip({{std::string("a\0b", 3), ""}})).find("zero byte"), std::string::npos);
  for (const std::string name : {"a..b", "..a", "a/b..", "...", "a/b/c/", ".hidden"})
    EXPECT_EQ(refusal(make_zip({{name, ""}})), "") << name;
}

TEST(Zip, RefusesBrokenArchivesEachInItsOwnWords) {
  const ZipMember stored{"s", "0123456789"}, packed{"d", std::string(1000, 'x'), true};
  const std::string one = make_zip({stored}), two = make_zip({packed}), large = make_zip({stored}, true);
  const std::size_t directory = 41, end = directory + 47;  // of `one`
  const std::size_t directory2 = 31 + test::deflated(packed.bytes).size();
  ASSERT_EQ(one.size(), end + 22);
  ASSERT_EQ(one.substr(directory, 4), "PK\x01\x02");
  ASSERT_EQ(two.substr(directory2, 4), "PK\x01\x02");
  const std::string all32 = little_endian(0xFFFFFFFF, 4);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not end as"},
      {std::string(100, 'x'), "does not end as"},
      {one + "x", "does not end as"},
      {changed(one, end + 4, "\1"), "split"},
      {changed(one, end + 10, "\2"), "2 entries"},
      {changed(one, end + 10, std::string(1, '\0')), "belong to no entry"},
      {changed(one, end + 12, little_endian(48, 4)), "should have 48 bytes"},
      {changed(one, end + 16, little_endian(40, 4)), "from 40 on"},
      {changed(one, end + 16, all32), "from 4294967295 on"},
      {"x" + one, "expected it to reach"},
      {changed(one, directory, "X"), "directory is broken"},
      {changed(one, directory + 28, little_endian(2000, 2)), "ends inside an entry"},
      {changed(one, directory + 8, "\1"), "encrypted"},
      {changed(one, directory + 10, "\x0C"), "method 12"},
      {changed(one, directory + 10, "\x08"), "header of its own that differs"},
      {changed(one, directory + 42, little_endian(1, 4)), "header of its own that differs"},
      {changed(one, directory + 42, little_endian(40, 4)), "behind the last"},
      {changed(one, directory + 42, all32), "zip64 sizes"},
      {changed(one, directory + 24, little_endian(11, 4)), "stored in 10 bytes and should have 11"},
      {changed(one, directory + 20, little_endian(11, 4)), "should have 11 bytes"},
      {changed(one, 30, "t"), "another name"},
      {changed(one, 26, little_endian(60000, 2)), "another name"},
      {changed(one, 28, little_endian(60000, 2)), "should have 10 bytes"},
      {changed(one, 35, "x"), "checksum"},
      {changed(two, directory2 + 24, little_endian(999, 4)), "more than the 999"},
      {changed(two, directory2 + 24, little_endian(1001, 4)), "inflates to 1000 bytes, expected 1001"},
      {changed(two, directory2 + 24, little_endian(1U << 31, 4)), "more than can be packed"},
      {changed(two, 31, "\7"), "cannot be inflated"},
      {make_zip({stored, stored}), "stands twice"},
      {make_zip({{"f/", "x"}}), "a folder with bytes"},
      {changed(large, large.size() - 22 - 12, little_endian(~0ULL, 8)), "where none is"},
      {changed(large, large.size() - 22 - 20 - 52, little_endian(45, 8)), "wrong length"},
      {changed(large, large.size() - 22 - 20 - 24, little_endian(~0ULL, 8)), "18446744073709551615 entries"},
  };
  for (const auto& [file, words] : cases)
    EXPECT_NE(refusal(file).find(words), std::string::npos) << "expected: " << words << "\ngot: " << refusal(file);
  EXPECT_NE(refusal(two, 999).find("expected at most 999"), std::string::npos);
  // A byte between the end of the deflated bytes and the directory, which counts it as the entry's.
  std::string longer = two;
  longer.insert(directory2, "x");
  const auto add_one = [&](std::size_t at) { longer[at] = static_cast<char>(longer[at] + 1); };
  add_one(directory2 + 1 + 20), add_one(longer.size() - 22 + 16);
  EXPECT_NE(refusal(longer).find("has 1 bytes behind its end"), std::string::npos) << refusal(longer);
}

// Two directory entries over the same bytes: the trick of archives that unpack to petabytes.
TEST(Zip, RefusesEntriesThatShareBytes) {
  const std::string inner = "PK\x03\x04" + little_endian(20, 2) + little_endian(0, 12) + little_endian(0, 8) +
                            little_endian(1, 2) + little_endian(0, 2) + "b";
  std::string file = make_zip({{"a", inner + "xx"}, {"b", ""}});
  const std::size_t second = file.rfind("PK\x01\x02");
  EXPECT_EQ(refusal(file), "");
  file.replace(second + 42, 4, little_endian(31, 4));
  EXPECT_NE(refusal(file).find("shares bytes"), std::string::npos) << refusal(file);
}

// No truncation is taken for the archive, and no flipped bit ends anywhere but in an error or in the same bytes.
TEST(Zip, EveryTruncationAndEveryBitFlip) {
  for (const bool zip64 : {false, true}) {
    const std::vector<ZipMember> members = good_members();
    const std::string file = make_zip(members, zip64);
    for (std::size_t size = 0; size < file.size(); ++size)
      EXPECT_NE(refusal(file.substr(0, size)), "") << size << " of " << file.size();
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
      std::string flipped = file;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      try {
        const Zip zip = parse_zip(bytes_of(flipped), "z");
        for (std::size_t n = 0; n < zip.entries().size(); ++n)
          ASSERT_EQ(as_text(zip.read(zip.entries()[n], 10000)), members[n].bytes) << "bit " << bit;
      } catch (const FileError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 4 * file.size());  // most bits matter; times, versions and attributes do not
  }
}

}  // namespace
}  // namespace attend::io

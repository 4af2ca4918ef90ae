// Files of rows: JSON arrays and CSV, compressed files, what is not text, and hostile ones.
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "io/unpack.hpp"
#include "llm/train/record_reader.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

using Texts = std::vector<std::string>;

std::string gzip(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.erase(z.total_out);
  deflateEnd(&z);
  return out;
}

// A zstd frame of blocks that repeat one byte.
std::string zstd_of_runs(char c, std::size_t blocks, std::size_t each) {
  std::string out("\x28\xB5\x2F\xFD\x00\x58", 6);  // a window of 2 MiB, no size, no checksum
  for (std::size_t n = 0; n < blocks; ++n) {
    const std::size_t head = (n + 1 == blocks ? 1U : 0U) | 1U << 1 | each << 3;
    for (const int shift : {0, 8, 16}) out += static_cast<char>(head >> shift & 0xFF);
    out += c;
  }
  return out;
}

class RowFiles : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    write_text(place_.path() / name, text);
    return place_.path() / name;
  }
  Texts texts(const std::string& name, const std::string& text, bool skip = false, const std::string& column = "") {
    RecordReader reader({write(name, text)}, skip, column);
    Texts all;
    reader.read([&](const Record& r) { all.push_back(r.text); }, {}, "");
    report_ = reader.report();
    EXPECT_EQ(report_.rows - report_.skipped, std::ssize(all));
    return all;
  }
  std::string refusal(const std::string& name, const std::string& text) {
    return refusal_of([&] { (void)texts(name, text); });
  }
  fs::path folder() const { return place_.path(); }

  ReadReport report_;

 private:
  TempFolder place_;
};

TEST_F(RowFiles, JsonArrays) {
  const Texts expected = {"a", "b [\"], {", "c"};
  const std::string array = "[{\"text\": \"a\"},\n {\"text\": \"b [\\\"], {\"}\n,{\"other\": [[]], \"text\": \"c\"}]";
  EXPECT_EQ(texts("a.json", array), expected);
  EXPECT_EQ(texts("a.jsonl", "\xEF\xBB\xBF \n" + array + "\n"), expected);
  EXPECT_EQ(texts("a.json", "[\"one\", \"two\"\n]"), (Texts{"one", "two"}));
  EXPECT_EQ(texts("a.json", "{\"text\": \"x\"}\n{\"text\": \"y\"}"), (Texts{"x", "y"}));
  EXPECT_EQ(texts("a.json", "[]"), Texts{});
  std::string many = "[";
  Texts numbers;
  for (int n = 0; n < 20000; ++n) {
    numbers.push_back("number " + std::to_string(n) + "，漢字");
    many += (n > 0 ? "," : "") + std::string("{\"text\":\"") + numbers.back() + "\"}";
  }
  EXPECT_EQ(texts("many.json", many + "]"), numbers) << "one line, cut into pieces wherever";
  EXPECT_EQ(texts("many.json.gz", gzip(many + "]")), numbers);
}

TEST_F(RowFiles, BrokenItemsOfArraysAreNamedOrSkipped) {
  const std::string array =
      "[{\"text\": \"a\"},\n{\"text\": 5},\n{\"text\" \"x\"}, 7, {\"text\": \"\xFF\"}, {\"text\": \"b\"}]";
  expect_in(refusal("a.json", array), "a.json:2: item 2: \"text\" is a whole number");
  EXPECT_EQ(texts("a.json", array, true), (Texts{"a", "b"}));
  EXPECT_EQ(report_.rows, 6);
  EXPECT_EQ(report_.skipped, 4);
  ASSERT_EQ(report_.reasons.size(), 4U);
  EXPECT_EQ(report_.reasons[0].reason, "\"text\" is a whole number, expected a string");
  EXPECT_EQ(report_.reasons[0].count, 1);
  for (const auto& [text, said] : {std::pair{"[{\"text\": \"a\"}", "does not end with ]"},
                                   {"[{\"text\": \"a\"}, {\"text\": \"b", "ends inside this item"},
                                   {"[{\"text\": \"a\"}] x", "text after the end of the array"},
                                   {"[{\"text\": \"a\"} {\"text\": \"b\"}]", "expected , or ]"},
                                   {"[{\"text\": \"a\"},]", "expected a value, not ]"},
                                   {"[{\"text\": \"a\"},,{\"text\": \"b\"}]", "expected a value, not ,"}}) {
    expect_in(refusal("a.json", text), said);
    EXPECT_EQ(texts("a.json", text, true), Texts{"a"});
    EXPECT_EQ(report_.skipped, 1) << text;
  }
}

TEST_F(RowFiles, Csv) {
  const std::string csv = "id,text\r\n1,plain\r\n2,\"with, comma\"\r\n3,\"two\nlines \"\"quoted\"\"\"\r\n\r\n4,last";
  EXPECT_EQ(texts("a.csv", csv), (Texts{"plain", "with, comma", "two\nlines \"quoted\"", "last"}));
  EXPECT_EQ(texts("a.csv.gz", gzip(csv)).size(), 4U);
  EXPECT_EQ(texts("a.csv", "review,text\nr,t\n", false, "review"), Texts{"r"});
  const std::string broken = "id,text\n1,a\n2\n3,\"x\"y\n4,\"b\nb\"\n";
  expect_in(refusal("a.csv", broken), "a.csv:3: has 1 fields, expected 2 as the first row");
  EXPECT_EQ(texts("a.csv", broken, true), (Texts{"a", "b\nb"}));
  EXPECT_EQ(report_.skipped, 2);
  expect_in(refusal("a.csv", "text\n\"never closed\n"), "a.csv:2: a quote is never closed");
  expect_in(refusal("a.csv", "text,text\na,b\n"), "two columns are named \"text\"");
  expect_in(refusal("a.csv", "title,body\na,b\n"), "a.csv:2: has the fields \"title\", \"body\", expected one of");
  expect_in(refusal("a.csv", "text\ncaf\xE9\n"), "a.csv:2: byte 8 is 0xe9, expected text in UTF-8");
  expect_in(refusal("a.csv", "text\n" + std::string(5000, ',') + "\n"), "has more than 4096 fields");
  RecordReader reader({write("alpaca.csv", "instruction,input,output\nAdd,1 2,3\n")}, false);
  reader.read([&](const Record& r) { EXPECT_EQ(r.chat.at(0).content, "Add\n1 2"); }, {}, "");
}

TEST_F(RowFiles, CompressedFiles) {
  const std::string text = "one\n<|endoftext|>\ntwo\n", rows = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  for (const char* name : {"a.txt.gz", "a.gz", "a.txt"})
    EXPECT_EQ(texts(name, gzip(text)), (Texts{"one", "two"})) << name;
  EXPECT_EQ(texts("a.jsonl.gz", gzip(rows) + gzip(rows)).size(), 4U) << "files that follow one another";
  const std::string packed = gzip(rows);
  for (const std::size_t size : {packed.size() - 1, packed.size() / 2, std::size_t{12}, std::size_t{2}})
    expect_in(refusal("a.jsonl.gz", packed.substr(0, size)), "is cut short");
  expect_in(refusal("a.jsonl.gz", packed + "more"), "has 4 bytes after its gzip data");
  std::string damaged = packed;
  damaged[packed.size() / 2] ^= 0x40;
  EXPECT_NE(refusal("a.jsonl.gz", damaged), "");
  expect_in(refusal("a.txt.gz", gzip(std::string(300000, 'x') + "\nb\xFF\n")), "a.txt.gz:2: byte 300002 is 0xff");
}

TEST_F(RowFiles, ZstdIsReadWhereItsLibraryIs) {
  const std::string packed = zstd_of_runs('x', 3, 5);
  const std::string said = refusal("a.txt.zst", packed);
  if (!said.empty()) return expect_in(said, "unpack it first: zstd -d ");
  EXPECT_EQ(texts("a.txt.zst", packed), Texts{std::string(15, 'x')});
  expect_in(refusal("a.txt.zst", packed.substr(0, packed.size() - 1)), "is cut short");
  expect_in(refusal("a.txt.zst", packed + "more"), "is damaged zstd data");
  expect_in(refusal("bomb.txt.zst", zstd_of_runs('x', 800, 128 << 10)), "unpacks to more than 250 times its size");
}

TEST_F(RowFiles, BombsAreRefused) {
  const std::string bomb = gzip(std::string(std::size_t{72} << 20, 'x'));
  expect_in(refusal("bomb.jsonl.gz", bomb), "bomb.jsonl.gz: unpacks to more than 250 times its size");
  std::size_t most = 0;
  const std::string said = refusal_of([&] {
    RecordReader reader({write("bomb.txt.gz", bomb)}, false);
    reader.read([&](const Record& r) { most = std::max(most, r.text.size()); }, {}, "");
  });
  expect_in(said, "bomb.txt.gz: unpacks to more than 250 times its size");
  EXPECT_LE(most, std::size_t{2} << 20) << "it is read in pieces";
}

TEST_F(RowFiles, HostileArraysAreRefusedInBoundedMemory) {
  const std::string open = "[{\"text\": \"a\"}, ";
  expect_in(refusal("a.json", open + std::string(2000000, '[')), "item 2: ");
  expect_in(refusal("a.json", open + std::string(500, '[') + std::string(500, ']') + "]"),
            "nests deeper than 64 levels");
  expect_in(refusal("a.json", open + "{\"text\": \"" + std::string(20U << 20, 'x') + "\"}]"), "longer than 16 MiB");
  EXPECT_EQ(texts("a.json", open + "{\"text\": \"" + std::string(20U << 20, 'x') + "\"}, {\"text\": \"b\"}]", true),
            (Texts{"a", "b"}))
      << "the next item is found";
}

// KiB of mapped files in memory.
std::int64_t mapped_kib() {
  std::ifstream status("/proc/self/status");
  std::string field;
  while (status >> field)
    if (field == "RssFile:") break;
  std::int64_t kib = 0;
  status >> kib;
  return kib;
}

TEST_F(RowFiles, AFileThatWasReadDoesNotStayInMemory) {
  std::string array = "[";
  for (int n = 0; n < 96; ++n) array += "{\"text\": \"" + std::string(std::size_t{1} << 20, 'x') + "\"},";
  const fs::path file = write("large.json", array + "\"end\"]");
  const std::int64_t before = mapped_kib();
  ASSERT_GT(before, 0);
  std::int64_t most = 0;
  RecordReader reader({file}, false);
  reader.read([&](const Record&) { most = std::max(most, mapped_kib() - before); }, {}, "");
  EXPECT_EQ(reader.report().rows, 97);
  EXPECT_LE(most, 40 << 10);
}

TEST_F(RowFiles, WhatIsNotTextIsRefusedWithTheWayOut) {
  for (const auto& [name, begin, said] : {std::tuple{"a.parquet", "PAR1\x15\x04", "attend.llm.prepare"},
                                          {"a.txt", "PK\x03\x04 and more", "unzip"},
                                          {"a.jsonl",
                                           "\xFD"
                                           "7zXZ and more",
                                           "xz -d"},
                                          {"a.txt", "%PDF-1.7", "pdftotext"},
                                          {"a.txt",
                                           "\x7F"
                                           "ELF",
                                           "is a program"},
                                          {"a.jsonl", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
                                          {"a.txt", "\n <!DOCTYPE HTML>\n<p>x", "is HTML, expected text"},
                                          {"a.jsonl", "<html><body>404", "is HTML, expected text"}}) {
    expect_in(refusal(name, begin), said);
    expect_in(refusal("packed.gz", gzip(begin)), said);
  }
  EXPECT_EQ(texts("a.txt", "<p>a fragment"), Texts{"<p>a fragment"});
}

TEST_F(RowFiles, AReadThatSkipsEveryRowCanBeStopped) {
  std::string rows;
  for (int n = 0; n < 100; ++n) rows += "{\"text\": 5}\n";
  RecordReader reader({write("a.jsonl", rows)}, true);
  const auto stop = [&](const char*, std::int64_t done, std::int64_t all) {
    if (done > all / 2) throw std::runtime_error("stop");
  };
  EXPECT_THROW(reader.read([](const Record&) {}, stop, ""), std::runtime_error);
  EXPECT_LT(reader.report().rows, 100);
}

TEST_F(RowFiles, AReportNamesFormsReasonsAndFilesThatAreNotRead) {
  write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n{\"text\": 2}\n{\"q\": \"q\", \"a\": \"a\"}\n");
  write("b.csv", "text\nb\n");
  write("c.bin", "c"), write("d.bin", "d"), write("e", "e");
  RecordReader reader({folder()}, true);
  reader.read([](const Record&) {}, {}, "");
  const std::string first = (folder() / "a.jsonl").string() + ":2";
  EXPECT_EQ(reader.report().lines(),
            (Texts{"read 5 records: 2 text, 1 question and answer, 2 skipped",
                   "skipped 2: \"text\" is a whole number, expected a string (first: " + first + ")",
                   "not read: 1 file without an extension", "not read: 2 files with the extension .bin"}));
}

}  // namespace
}  // namespace attend::llm::test

// Safetensors: what is written comes back; every broken file is refused with its own words, and none is believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "io/safetensors.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;

std::string file_of(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string file;
  for (int n = 0; n < 8; ++n) file += static_cast<char>(length >> (8 * n) & 0xFF);
  return file + header + data;
}
std::string file_of(const std::string& header, const std::string& data = "") {
  return file_of(header, data, header.size());
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string refusal(const std::string& file) {
  try {
    Metadata metadata;
    parse_safetensors(bytes_of(file), "m", metadata);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

class SafetensorsFile : public testing::Test {
 protected:
  fs::path path_ = fs::path(testing::TempDir()) / "attend_safetensors_test.safetensors";
  void TearDown() override { fs::remove(path_); }
};

TEST_F(SafetensorsFile, ComesBackAsItWasWritten) {
  const std::string a(24, 'a'), b(6, 'b'), half("\x12\x34", 2);
  const std::vector<StoredTensor> tensors = {{"model.layers.0.w", "F32", {2, 3}, bytes_of(a)},
                                             {"empty", "I64", {0, 7}, {}},
                                             {"name \"quoted\" \xC3\xA9", "BF16", {3, 1}, bytes_of(b)},
                                             {"scalar", "F16", {}, bytes_of(half)}};
  write_safetensors(path_, tensors, {{"format", "pt"}, {"note", "line\nbreak"}});
  const Safetensors file(path_);
  ASSERT_EQ(file.tensors().size(), 4U);
  for (const StoredTensor& expected : tensors) {
    const StoredTensor* got = file.find(expected.name);
    ASSERT_NE(got, nullptr) << expected.name;
    EXPECT_EQ(got->dtype, expected.dtype);
    EXPECT_EQ(got->shape, expected.shape);
    EXPECT_TRUE(std::ranges::equal(got->data, expected.data));
  }
  EXPECT_EQ(file.find("other"), nullptr);
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"note", "line\nbreak"}}));
  std::ifstream raw(path_, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(raw), std::istreambuf_iterator<char>()};
  EXPECT_EQ((all.size() - a.size() - b.size() - half.size()) % 8, 0U);  // the tensors begin aligned
}

// Sizes whose product overflows before its last factor: 2^64 elements are 0 in 64 bits.
TEST(SafetensorsShapes, EveryProductIsChecked) {
  for (const char* shape : {"4294967296,4294967296", "4294967296,4294967296,1", "1,4294967296,4294967296,1,1",
                            "4294967296,2147483648,1", "4294967296,4294967296,0"})
    EXPECT_NE(refusal(file_of(R"({"a":{"dtype":"F32","shape":[)" + std::string(shape) + R"(],"data_offsets":[0,0]}})"))
                  .find("its shape has more elements than 2^63"),
              std::string::npos)
        << shape;
  EXPECT_EQ(refusal(file_of(R"({"a":{"dtype":"F32","shape":[0,4294967296,1],"data_offsets":[0,0]}})")), "");
}

// The bits of each dtype, as the format's own documentation has them.
TEST(SafetensorsDTypes, HaveTheirSizes) {
  const std::vector<std::pair<std::string, int>> sizes = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},    {"U32", 32},    {"F32", 32},    {"F64", 64},
      {"I64", 64}, {"U64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}};
  for (const auto& [dtype, bits] : sizes) {
    EXPECT_EQ(safetensors_bits(dtype), bits) << dtype;
    // Eight elements fill as many bytes as one has bits; a byte less or more is refused.
    for (const int bytes : {bits - 1, bits, bits + 1}) {
      const std::string header =
          R"({"a":{"dtype":")" + dtype + R"(","shape":[2,4],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
      EXPECT_EQ(refusal(file_of(header, std::string(static_cast<std::size_t>(bytes), 'x'))) == "", bytes == bits)
          << dtype << " in " << bytes << " bytes";
    }
  }
  for (const char* unknown : {"", "f32", "F128", "F3", "F320"}) EXPECT_EQ(safetensors_bits(unknown), 0) << unknown;
}

TEST_F(SafetensorsFile, WritesNothingThatCouldNotBeRead) {
  const std::string four(4, 'x');
  const StoredTensor good{"a", "F32", {1}, bytes_of(four)};
  EXPECT_THROW(write_safetensors(path_, std::vector{good, good}), InvalidArgument);
  EXPECT_THROW(write_safetensors(path_, std::vector{StoredTensor{"__metadata__", "F32", {1}, bytes_of(four)}}),
               InvalidArgument);
  EXPECT_THROW(write_safetensors(path_, std::vector{StoredTensor{"a", "F31", {1}, bytes_of(four)}}), InvalidArgument);
  EXPECT_THROW(write_safetensors(path_, std::vector{StoredTensor{"a", "F32", {2}, bytes_of(four)}}), InvalidArgument);
  EXPECT_THROW(write_safetensors(path_, std::vector{StoredTensor{"a", "F32", {-1}, bytes_of(four)}}), InvalidArgument);
  EXPECT_THROW(write_safetensors(path_, std::vector{StoredTensor{"a", "F4", {1}, bytes_of(four)}}), InvalidArgument);
  EXPECT_FALSE(fs::exists(path_));
}

TEST(Safetensors, RefusesBrokenFilesEachInItsOwnWords) {
  const std::string four(4, 'x'), eight(8, 'x');
  const auto entry = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
  const std::string good = entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])");
  ASSERT_EQ(refusal(file_of(good, four)), "");
  ASSERT_EQ(refusal(file_of("{}")), "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "0 bytes"},
      {std::string(7, '\0'), "7 bytes"},
      {file_of("", ""), "begin with {"},
      {file_of("{}", "", 3), "should have 3 bytes, expected at most 2"},
      {file_of("{}", "", 100'000'001), "should have 100000001"},
      {file_of("{}", "", ~std::uint64_t{0}), "18446744073709551615"},
      {file_of("[]"), "begin with {"},
      {file_of(" {}"), "begin with {"},
      {file_of("{"), "header: "},
      {file_of("{}x"), "header: "},
      {file_of("{\"t\":1}"), "is a whole number, expected an object"},
      {file_of("{\"t\":\xFF}"), "header: "},
      {file_of("{\"\xFF\":{}}"), "UTF-8"},
      {file_of("{\"t\":{\"a\":[[[[[[[[1]]]]]]]]}}"), "8 levels"},
      {file_of("{\"t\":{},\"t\":{}}"), "\"t\" stands twice"},
      {file_of(entry(R"("shape":[1],"data_offsets":[0,4])"), four), "has no \"dtype\""},
      {file_of(entry(R"("dtype":"F32","data_offsets":[0,4])"), four), "has no \"shape\""},
      {file_of(entry(R"("dtype":"F32","shape":[1])"), four), "has no \"data_offsets\""},
      {file_of(entry(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), four), "dtype is \"F33\""},
      {file_of(entry(R"("dtype":32,"shape":[1],"data_offsets":[0,4])"), four), "dtype is a whole number"},
      {file_of(entry(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), four), "shape is a whole number"},
      {file_of(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), four), "shape holds -1"},
      {file_of(entry(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), four), "shape holds a number"},
      {file_of(entry(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), four), "shape holds a string"},
      {file_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), four), "takes 8 bytes"},
      {file_of(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), four), "2^63"},
      {file_of(entry(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,4])"), four), "2^60"},
      {file_of(entry(R"("dtype":"F4","shape":[1],"data_offsets":[0,4])"), four), "no whole bytes"},
      {file_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), four), "not a pair"},
      {file_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":4)"), four), "not a pair"},
      {file_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), four), "[4, 0]"},
      {file_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), four), "data_offsets holds -4"},
      {file_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), four),
       "[4, 8], expected a range inside the 4"},
      {file_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), eight), "begins at byte 4, expected 0"},
      {file_of(good, eight), "4 bytes at the end belong to no tensor"},
      {file_of(good, ""), "inside the 0 bytes"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           four),
       "begins at byte 0, expected 4"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
           eight),
       "begins at byte 6, expected 4"},
      {file_of(R"({"__metadata__":1})"), "__metadata__ is a whole number"},
      {file_of(R"({"__metadata__":{"a":1}})"), "__metadata__ \"a\" is a whole number"},
      {file_of(R"({"__metadata__":{"a":{"b":"c"}}})"), "__metadata__ \"a\" is an object"}};
  std::set<std::string> said;
  for (const auto& [file, word] : cases) {
    const std::string text = refusal(file);
    EXPECT_NE(text.find(word), std::string::npos) << "expected \"" << word << "\", got \"" << text << "\"";
    EXPECT_EQ(text.find("m: "), 0U) << text;
    said.insert(text);
  }
  EXPECT_GE(said.size(), cases.size() - 4);  // a few share their words
}

// A file of 4 KB, cut anywhere, or with any bit of its header flipped: refused, or read as something that holds
// together.
TEST(Safetensors, EveryTruncationAndEveryBit) {
  std::string header = "{";
  for (int n = 0; n < 30; ++n)
    header += (n > 0 ? ",\"t" : "\"t") + std::to_string(n) + R"(":{"dtype":"F32","shape":[2,4],"data_offsets":[)" +
              std::to_string(32 * n) + "," + std::to_string(32 * n + 32) + "]}";
  header += "}";
  const std::string whole = file_of(header, std::string(960, 'd'));
  ASSERT_EQ(refusal(whole), "");
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(refusal(whole.substr(0, length)), "") << length;
  for (std::size_t bit = 0; bit < 8 * (8 + header.size()); ++bit) {
    std::string broken = whole;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ 1 << bit % 8);
    try {
      Metadata metadata;
      std::size_t bytes = 0;
      for (const StoredTensor& tensor : parse_safetensors(bytes_of(broken), "m", metadata)) bytes += tensor.data.size();
      EXPECT_LE(bytes, 960U);
    } catch (const FileError&) {
      continue;
    }
  }
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  EXPECT_THROW(MappedFile{"/does/not/exist"}, FileError);
  EXPECT_THROW(MappedFile{testing::TempDir()}, FileError);
  EXPECT_THROW(MappedFile{"/dev/null"}, FileError);
  const fs::path empty = fs::path(testing::TempDir()) / "attend_empty_file";
  std::ofstream(empty).close();
  EXPECT_TRUE(MappedFile{empty}.bytes().empty());
  fs::remove(empty);
}

}  // namespace
}  // namespace attend::io

// GGUF: values of every type come back; every broken file is refused with its own words.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "io/gguf.hpp"

namespace attend::io {
namespace {

template <class T>
std::string raw(T x) {
  std::string bytes(sizeof x, '\0');
  std::memcpy(bytes.data(), &x, sizeof x);
  return bytes;
}
std::string text(const std::string& s) {
  return raw(std::uint64_t{s.size()}) + s;
}
std::string setting(const std::string& key, std::uint32_t type, const std::string& value) {
  return text(key) + raw(type) + value;
}
std::string tensor(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                   std::uint64_t offset) {
  std::string info = text(name) + raw(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t size : dims) info += raw(size);
  return info + raw(type) + raw(offset);
}

struct File {
  std::vector<std::string> settings, tensors;
  std::string data;
  std::uint32_t version = 3;
  std::uint64_t tensor_count = ~std::uint64_t{0}, setting_count = ~std::uint64_t{0};  // all ones: as many as there are
  std::size_t alignment = 32;

  std::string bytes() const {
    std::string file = "GGUF" + raw(version) +
                       raw(tensor_count + 1 == 0 ? std::uint64_t{tensors.size()} : tensor_count) +
                       raw(setting_count + 1 == 0 ? std::uint64_t{settings.size()} : setting_count);
    for (const std::string& s : settings) file += s;
    for (const std::string& t : tensors) file += t;
    if (!data.empty()) file.append((alignment - file.size() % alignment) % alignment, '\0');
    return file + data;
  }
};

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}
std::string refusal(const std::string& file) {
  try {
    parse_gguf(bytes_of(file), "m");
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

File good_file() {
  return {
      {setting("a.u8", 0, raw(std::uint8_t{200})), setting("a.i8", 1, raw(std::int8_t{-3})),
       setting("a.u16", 2, raw(std::uint16_t{60000})), setting("a.i16", 3, raw(std::int16_t{-300})),
       setting("a.u32", 4, raw(std::uint32_t{4000000000})), setting("a.i32", 5, raw(std::int32_t{-70000})),
       setting("a.f32", 6, raw(1.5F)), setting("a.bool", 7, raw(std::uint8_t{1})), setting("a.string", 8, text("hi")),
       setting("a.strings", 9, raw(std::uint32_t{8}) + raw(std::uint64_t{3}) + text("x") + text("") + text("yz")),
       setting("a.ints", 9,
               raw(std::uint32_t{5}) + raw(std::uint64_t{2}) + raw(std::int32_t{-1}) + raw(std::int32_t{7})),
       setting("a.floats", 9, raw(std::uint32_t{6}) + raw(std::uint64_t{1}) + raw(0.25F)),
       setting("a.u64", 10, raw(std::uint64_t{1} << 62)), setting("a.i64", 11, raw(std::int64_t{-5})),
       setting("a.f64", 12, raw(2.5))},
      {tensor("w", {32, 3}, 2, 0), tensor("b", {5}, 0, 64), tensor("none", {0, 4}, 0, 96)},
      std::string(54, 'w') + std::string(10, '\0') + std::string(20, 'b') + std::string(12, '\0')};
}

TEST(Gguf, ReadsEveryType) {
  const std::string file = good_file().bytes();
  const Gguf gguf = parse_gguf(bytes_of(file), "m");
  EXPECT_EQ(gguf.version(), 3U);
  const auto integer = [&](const char* key) { return std::get<std::int64_t>(*gguf.value(key)); };
  EXPECT_EQ(integer("a.u8"), 200);
  EXPECT_EQ(integer("a.i8"), -3);
  EXPECT_EQ(integer("a.u16"), 60000);
  EXPECT_EQ(integer("a.i16"), -300);
  EXPECT_EQ(integer("a.u32"), 4000000000);
  EXPECT_EQ(integer("a.i32"), -70000);
  EXPECT_EQ(integer("a.u64"), std::int64_t{1} << 62);
  EXPECT_EQ(integer("a.i64"), -5);
  EXPECT_EQ(std::get<double>(*gguf.value("a.f32")), 1.5);
  EXPECT_EQ(std::get<double>(*gguf.value("a.f64")), 2.5);
  EXPECT_TRUE(std::get<bool>(*gguf.value("a.bool")));
  EXPECT_EQ(std::get<std::string_view>(*gguf.value("a.string")), "hi");
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("a.strings")).strings(), (std::vector<std::string_view>{"x", "", "yz"}));
  EXPECT_TRUE(std::get<GgufArray>(*gguf.value("a.strings")).numbers().empty());
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("a.ints")).integers(), (std::vector<std::int64_t>{-1, 7}));
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("a.ints")).numbers(), (std::vector<double>{-1, 7}));
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("a.floats")).numbers(), (std::vector<double>{0.25}));
  EXPECT_TRUE(std::get<GgufArray>(*gguf.value("a.floats")).integers().empty());
  EXPECT_EQ(gguf.value("a.nothing"), nullptr);

  const GgufTensor* w = gguf.tensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (std::vector<std::int64_t>{3, 32}));  // rows first
  EXPECT_EQ(as_text(w->data), std::string(54, 'w'));
  EXPECT_EQ(as_text(gguf.tensor("b")->data), std::string(20, 'b'));
  EXPECT_TRUE(gguf.tensor("none")->data.empty());
}

// Sizes whose product overflows before its last factor, where it is small again: 2^67 bytes are 0 in 64 bits.
TEST(Gguf, EveryProductOfSizesIsChecked) {
  const std::uint64_t huge = std::uint64_t{1} << 62;
  for (const std::vector<std::uint64_t>& dims :
       {std::vector<std::uint64_t>{8, 1, huge}, {8, huge, 1}, {huge, 1}, {huge, 0}, {4, huge, 2, 1}, {4, 1, huge, 4}})
    EXPECT_NE(refusal(File{{}, {tensor("t", dims, 0, 0)}, std::string(32, 'x')}.bytes()).find("more bytes than 2^64"),
              std::string::npos)
        << dims.size();
}

// Numbers and bytes of a block of each type, as ggml has them.
TEST(Gguf, BlocksHaveTheirSizes) {
  const struct {
    std::uint32_t type;
    const char* name;
    std::uint64_t numbers, bytes;
  } blocks[] = {{0, "F32", 1, 4},       {1, "F16", 1, 2},       {2, "Q4_0", 32, 18}, {3, "Q4_1", 32, 20},
                {6, "Q5_0", 32, 22},    {7, "Q5_1", 32, 24},    {8, "Q8_0", 32, 34}, {12, "Q4_K", 256, 144},
                {13, "Q5_K", 256, 176}, {14, "Q6_K", 256, 210}, {30, "BF16", 1, 2}};
  for (const auto& b : blocks) {
    const File file{{}, {tensor("w", {2 * b.numbers, 3}, b.type, 0)}, std::string(6 * b.bytes, 'w')};
    const std::string bytes = file.bytes();
    const Gguf gguf = parse_gguf(bytes_of(bytes), "m");
    const GgufTensor* w = gguf.tensor("w");
    ASSERT_NE(w, nullptr) << b.name;
    EXPECT_EQ(w->data.size(), 6 * b.bytes) << b.name;
    EXPECT_EQ(w->shape, (std::vector<std::int64_t>{3, static_cast<std::int64_t>(2 * b.numbers)}));
    const File shorter{{}, {tensor("w", {2 * b.numbers, 3}, b.type, 0)}, std::string(6 * b.bytes - 1, 'w')};
    EXPECT_NE(refusal(shorter.bytes()), "") << b.name;
    if (b.numbers == 1) continue;
    const File broken{{}, {tensor("w", {b.numbers + 1, 1}, b.type, 0)}, std::string(2 * b.bytes, 'w')};
    EXPECT_NE(refusal(broken.bytes()).find(std::string("for ") + b.name), std::string::npos) << refusal(broken.bytes());
  }
  for (const std::uint32_t type : {4U, 5U, 9U, 10U, 11U, 15U, 16U, 24U, 29U, 31U, 4294967295U})
    EXPECT_NE(refusal(File{{}, {tensor("w", {256}, type, 0)}, std::string(4096, 'w')}.bytes()).find("the type "),
              std::string::npos);
}

TEST(Gguf, ReadsAFileFromDisk) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "attend_gguf_test.gguf";
  const std::string bytes = good_file().bytes();
  std::ofstream(path, std::ios::binary) << bytes;
  const Gguf gguf(path);
  EXPECT_EQ(gguf.tensors().size(), 3U);
  EXPECT_EQ(gguf.values().size(), 15U);
  std::filesystem::remove(path);
}

TEST(Gguf, RefusesBrokenFilesEachInItsOwnWords) {
  const auto with_setting = [](const std::string& s) { return File{{s}, {}, ""}.bytes(); };
  const auto with_tensor = [](const std::string& t, std::size_t bytes = 64) {
    return File{{}, {t}, std::string(bytes, 'd')}.bytes();
  };
  ASSERT_EQ(refusal(good_file().bytes()), "");
  ASSERT_EQ(refusal(File{}.bytes()), "");
  ASSERT_EQ(refusal(with_tensor(tensor("t", {16}, 0, 0))), "");
  File many_tensors, many_settings, version1, big_endian, unaligned;
  many_tensors.tensor_count = std::uint64_t{1} << 60;
  many_settings.setting_count = std::uint64_t{1} << 63;
  version1.version = 1;
  big_endian.version = 3U << 24;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "begin with"},
      {"GGU", "begin with"},
      {"GGML" + raw(std::uint32_t{3}), "begin with"},
      {"GGUF", "ends inside the version"},
      {"GGUF" + raw(std::uint32_t{3}), "ends inside the number of tensors"},
      {version1.bytes(), "version is 1"},
      {big_endian.bytes(), "big-endian"},
      {many_tensors.bytes(), "1152921504606846976 tensors"},
      {many_settings.bytes(), "9223372036854775808 settings"},
      {with_setting(raw(~std::uint64_t{0}) + std::string(32, 'k')), "setting's name should have 18446744073709551615"},
      {with_setting(raw(std::uint64_t{70000}) + std::string(80000, 'k')), "expected at most 65536"},
      {with_setting(setting("k", 13, "x")), "has the type 13"},
      {with_setting(setting("k", 10, raw(~std::uint64_t{0}))), "expected less than 2^63"},
      {with_setting(setting("k", 7, raw(std::uint8_t{2}))), "a boolean of 2"},
      {with_setting(setting("k", 12, raw(1.0F))), "ends inside a setting"},
      {with_setting(setting("k", 8, raw(std::uint64_t{9}) + "x")), "should have 9 bytes, 1 are left"},
      {with_setting(setting("k", 9, raw(std::uint32_t{9}) + raw(std::uint64_t{0}))), "array of arrays"},
      {with_setting(setting("k", 9, raw(std::uint32_t{99}) + raw(std::uint64_t{0}))), "has the type 99"},
      {with_setting(setting("k", 9, raw(std::uint32_t{0}) + raw(~std::uint64_t{0}))), "elements of \"k\""},
      {with_setting(setting("k", 9, raw(std::uint32_t{12}) + raw(std::uint64_t{1} << 61))),
       "2305843009213693952 elements"},
      {with_setting(setting("k", 9, raw(std::uint32_t{8}) + raw(std::uint64_t{1}) + raw(std::uint64_t{5}))),
       "a string of an array should have 5"},
      {File{{setting("k", 0, "x"), setting("k", 0, "y")}, {}, ""}.bytes(), "\"k\" stands twice"},
      {File{{setting("general.alignment", 4, raw(std::uint32_t{0}))}, {tensor("t", {1}, 0, 0)}, "abcd"}.bytes(),
       "general.alignment is 0"},
      {File{{setting("general.alignment", 4, raw(std::uint32_t{48}))}, {tensor("t", {1}, 0, 0)}, "abcd"}.bytes(),
       "general.alignment is 48"},
      {File{{setting("general.alignment", 4, raw(std::uint32_t{1U << 31}))}, {tensor("t", {1}, 0, 0)}, "abcd"}.bytes(),
       "general.alignment is 2147483648"},
      {File{{setting("general.alignment", 8, text("32"))}, {tensor("t", {1}, 0, 0)}, "abcd"}.bytes(),
       "general.alignment is not a whole number"},
      {with_tensor(tensor("t", {1, 1, 1, 1, 1}, 0, 0)), "5 dimensions"},
      {with_tensor(tensor("t", {~std::uint64_t{0}}, 0, 0)), "a dimension of 18446744073709551615"},
      {with_tensor(tensor("t", {4, std::uint64_t{1} << 62}, 0, 0)), "more bytes than 2^64"},
      {with_tensor(tensor("t", {std::uint64_t{1} << 40}, 0, 0)), "needs 4398046511104 bytes"},
      {with_tensor(tensor("t", {17}, 0, 0)), "needs 68 bytes from 0 on, the file has 64"},
      {with_tensor(tensor("t", {33}, 2, 0)), "rows of 33, expected a multiple of 32 for Q4_0"},
      {with_tensor(tensor("t", {128}, 14, 0), 512), "expected a multiple of 256 for Q6_K"},
      {with_tensor(tensor("t", {16}, 9, 0)), "has the type 9"},
      {with_tensor(tensor("t", {16}, ~std::uint32_t{0}, 0)), "has the type 4294967295"},
      {with_tensor(tensor("t", {16}, 0, 32)), "begins at 32, expected 0"},
      {with_tensor(tensor("t", {16}, 0, ~std::uint64_t{0})), "begins at 18446744073709551615"},
      {File{{}, {tensor("t", {1}, 0, 0), tensor("t", {1}, 0, 32)}, std::string(64, 'd')}.bytes(), "\"t\" stands twice"},
      {File{{}, {tensor("s", {1}, 0, 0), tensor("t", {1}, 0, 4)}, std::string(64, 'd')}.bytes(),
       "begins at 4, expected 32"},
      {File{{}, {tensor("s", {8}, 0, 0), tensor("t", {8}, 0, 0)}, std::string(64, 'd')}.bytes(),
       "begins at 0, expected 32"},
      {File{{}, {tensor("s", {16}, 0, 0), tensor("t", {1}, 0, 64)}, std::string(64, 'd')}.bytes(), "from 64 on"},
      {File{{}, {tensor("t", {1}, 0, 0)}, ""}.bytes(), "ends before its tensors begin"}};
  std::set<std::string> said;
  for (const auto& [file, word] : cases) {
    const std::string got = refusal(file);
    EXPECT_NE(got.find(word), std::string::npos) << "expected \"" << word << "\", got \"" << got << "\"";
    said.insert(got);
  }
  EXPECT_GE(said.size(), cases.size() - 4);
}

// Cut anywhere: refused. Any bit flipped: refused, or read as something whose pieces lie inside the file.
TEST(Gguf, EveryTruncationAndEveryBit) {
  const std::string whole = good_file().bytes();
  const std::size_t needed = whole.size() - 12;  // the padding behind the last tensor is nobody's
  for (std::size_t length = 0; length < needed; ++length) EXPECT_NE(refusal(whole.substr(0, length)), "") << length;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string broken = whole;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ 1 << bit % 8);
    try {
      const Gguf gguf = parse_gguf(bytes_of(broken), "m");
      for (const GgufTensor& t : gguf.tensors()) {
        EXPECT_TRUE(t.data.empty() || (as_text(t.data).data() >= broken.data() &&
                                       as_text(t.data).data() + t.data.size() <= broken.data() + broken.size()));
      }
      for (const auto& [key, value] : gguf.values())
        if (const auto* array = std::get_if<GgufArray>(&value)) {
          array->strings();
          array->numbers();
          array->integers();
        }
    } catch (const FileError&) {
      continue;
    }
  }
}

}  // namespace
}  // namespace attend::io

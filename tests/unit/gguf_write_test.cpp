// The GGUF writer: what was written is what is read; what cannot be written is refused before the file is touched.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "io/atomic_file.hpp"
#include "io/atomic_folder.hpp"
#include "io/gguf.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;
using Ints = std::vector<std::int64_t>;
using Reals = std::vector<double>;
using Texts = std::vector<std::string>;

class GgufWrite : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "attend-gguf-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "model.gguf";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string error_of_entry(const GgufEntry& entry) const {
    return test::error_of([&] { write_gguf(file_, {{entry}}, {}); });
  }
  std::string error_of_tensor(const GgufTensor& tensor) const {
    return test::error_of([&] { write_gguf(file_, {}, {{tensor}}); });
  }
  fs::path folder_, file_;
};

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

TEST_F(GgufWrite, EveryTypeComesBack) {
  const std::vector<GgufEntry> entries = {
      {"u8", GgufType::u8, std::int64_t{255}},
      {"i8", GgufType::i8, std::int64_t{-128}},
      {"u16", GgufType::u16, std::int64_t{65535}},
      {"i16", GgufType::i16, std::int64_t{-32768}},
      {"u32", GgufType::u32, std::int64_t{4294967295}},
      {"i32", GgufType::i32, std::int64_t{-2147483648}},
      {"u64", GgufType::u64, std::numeric_limits<std::int64_t>::max()},
      {"i64", GgufType::i64, std::numeric_limits<std::int64_t>::min()},
      {"f32", GgufType::f32, 0.1},
      {"f64", GgufType::f64, 0.1},
      {"yes", GgufType::boolean, true},
      {"no", GgufType::boolean, false},
      {"text", GgufType::string, std::string("a\0b", 3)},
      {"texts", GgufType::string, Texts{"x", "", "\xC3\xA9"}},
      {"none", GgufType::string, Texts{}},
      {"ints", GgufType::i32, Ints{-1, 0, 7}},
      {"bools", GgufType::boolean, Ints{1, 0}},
      {"reals", GgufType::f32, Reals{0.25, -1e30}},
  };
  const std::string q(36, 'q'), b(12, 'b'), h(2, 'h');
  const std::vector<GgufTensor> tensors = {{"q", 2, {2, 32}, bytes_of(q)},
                                           {"b", 0, {3}, bytes_of(b)},
                                           {"empty", 0, {0, 4}, {}},
                                           {"scalar", 30, {}, bytes_of(h)}};
  write_gguf(file_, entries, tensors);

  const Gguf gguf(file_);
  EXPECT_EQ(gguf.version(), 3U);
  ASSERT_EQ(gguf.values().size(), entries.size());
  for (std::size_t n = 0; n < entries.size(); ++n) EXPECT_EQ(gguf.values()[n].first, entries[n].key);
  for (const char* key : {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"}) {
    const auto* entry =
        &*std::find_if(entries.begin(), entries.end(), [&](const GgufEntry& e) { return e.key == key; });
    EXPECT_EQ(std::get<std::int64_t>(*gguf.value(key)), std::get<std::int64_t>(entry->value)) << key;
  }
  EXPECT_EQ(std::get<double>(*gguf.value("f32")), double{0.1F});
  EXPECT_EQ(std::get<double>(*gguf.value("f64")), 0.1);
  EXPECT_TRUE(std::get<bool>(*gguf.value("yes")));
  EXPECT_FALSE(std::get<bool>(*gguf.value("no")));
  EXPECT_EQ(std::get<std::string_view>(*gguf.value("text")), std::string_view("a\0b", 3));
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("texts")).strings(), (std::vector<std::string_view>{"x", "", "\xC3\xA9"}));
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("none")).count, 0U);
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("none")).type, GgufType::string);
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("ints")).integers(), (Ints{-1, 0, 7}));
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("bools")).type, GgufType::boolean);
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("bools")).integers(), (Ints{1, 0}));
  EXPECT_EQ(std::get<GgufArray>(*gguf.value("reals")).numbers(), (Reals{0.25, double{-1e30F}}));

  ASSERT_EQ(gguf.tensors().size(), tensors.size());
  for (const GgufTensor& tensor : tensors) {
    const GgufTensor* read = gguf.tensor(tensor.name);
    ASSERT_NE(read, nullptr) << tensor.name;
    EXPECT_EQ(read->type, tensor.type);
    EXPECT_EQ(read->shape, tensor.shape);
    EXPECT_EQ(as_text(read->data), as_text(tensor.data));
    EXPECT_EQ((read->data.data() - gguf.tensors()[0].data.data()) % 32, 0);
  }
  EXPECT_EQ(fs::file_size(file_) % 32, 0U);
}

TEST_F(GgufWrite, AnEmptyFileIsAFile) {
  write_gguf(file_, {}, {});
  EXPECT_TRUE(Gguf(file_).values().empty());
}

TEST_F(GgufWrite, RefusesWhatDoesNotFit) {
  write_gguf(file_, {{{"old", GgufType::boolean, true}}}, {});
  const auto has = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << "got: " << text << "\nexpected: " << words;
  };
  has(error_of_entry({"k", GgufType::u8, std::int64_t{256}}), "is 256, expected 0 to 255");
  has(error_of_entry({"k", GgufType::u8, std::int64_t{-1}}), "is -1, expected 0 to 255");
  has(error_of_entry({"k", GgufType::i8, std::int64_t{128}}), "-128 to 127");
  has(error_of_entry({"k", GgufType::u32, Ints{1, -1}}), "is -1");
  has(error_of_entry({"k", GgufType::u64, std::int64_t{-1}}), "is -1");
  has(error_of_entry({"k", GgufType::i32, std::int64_t{1} << 31}), "is 2147483648");
  has(error_of_entry({"k", GgufType::f32, 1e39}), "beyond f32");
  has(error_of_entry({"k", GgufType::i32, 1.0}), "holds real numbers");
  has(error_of_entry({"k", GgufType::f32, std::int64_t{1}}), "holds whole numbers");
  has(error_of_entry({"k", GgufType::f32, std::string("x")}), "holds text");
  has(error_of_entry({"k", GgufType::string, std::int64_t{1}}), "holds whole numbers");
  has(error_of_entry({"k", GgufType::u8, true}), "holds a boolean");
  has(error_of_entry({"k", GgufType::boolean, std::int64_t{2}}), "a boolean of 2");
  has(error_of_entry({"k", GgufType::array, Ints{}}), "an array");
  has(error_of_entry({"k", GgufType::f32, Texts{}}), "holds text");
  has(error_of_entry({"", GgufType::boolean, true}), "0 bytes");
  has(error_of_entry({std::string(65536, 'k'), GgufType::boolean, true}), "65536 bytes");
  has(error_of_entry({"general.alignment", GgufType::u32, std::int64_t{64}}), "general.alignment");
  const GgufEntry yes{"k", GgufType::boolean, true};
  has(test::error_of([&] { write_gguf(file_, {{yes, yes}}, {}); }), "\"k\" stands twice");

  const std::string data(64, 'd'), long_name(64, 'n');
  has(error_of_tensor({"t", 0, {4}, bytes_of(data)}), "has 64 bytes, expected 16");
  has(error_of_tensor({"t", 99, {4}, bytes_of(data)}), "the type 99");
  has(error_of_tensor({"t", 2, {31}, bytes_of(data)}), "rows of 31");
  has(error_of_tensor({"t", 0, {-1, -16}, bytes_of(data)}), "dimension of -1");
  has(error_of_tensor({"t", 0, {1, 1, 1, 1, 16}, bytes_of(data)}), "5 dimensions");
  has(error_of_tensor({"t", 0, {std::int64_t{1} << 62, 16}, bytes_of(data)}), "more bytes than 2^64");
  has(error_of_tensor({long_name, 0, {16}, bytes_of(data)}), "expected 1 to 63");
  has(error_of_tensor({"", 0, {16}, bytes_of(data)}), "expected 1 to 63");
  const GgufTensor t{"t", 0, {16}, bytes_of(data)};
  has(test::error_of([&] { write_gguf(file_, {}, {{t, t}}); }), "\"t\" stands twice");

  EXPECT_NE(Gguf(file_).value("old"), nullptr);  // none of them touched it
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(GgufWrite, ContentThatThrowsLeavesTheOldFile) {
  write_file_atomically(file_, bytes_of(std::string("old")));
  EXPECT_THROW(stream_file_atomically(file_,
                                      [](const PutBytes& put) {
                                        put(bytes_of(std::string(100000, 'n')));
                                        throw std::runtime_error("no more");
                                      }),
               std::runtime_error);
  EXPECT_EQ(as_text(MappedFile(file_).bytes()), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(GgufWrite, AFolderIsMovedWholeAndReplacesTheOldOne) {
  fs::create_directories(folder_ / "new" / "inner");
  write_file_atomically(folder_ / "new" / "inner" / "a", bytes_of(std::string("1")));
  move_folder_atomically(folder_ / "new", folder_ / "final");
  EXPECT_EQ(as_text(MappedFile(folder_ / "final" / "inner" / "a").bytes()), "1");
  fs::create_directories(folder_ / "new");
  move_folder_atomically(folder_ / "new", folder_ / "final");
  EXPECT_TRUE(fs::is_empty(folder_ / "final"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_THROW(move_folder_atomically(folder_ / "new", folder_ / "final"), FileError);
  EXPECT_TRUE(fs::exists(folder_ / "final"));
}

}  // namespace
}  // namespace attend::io

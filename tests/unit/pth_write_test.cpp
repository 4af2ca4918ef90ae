// State dicts as torch.save writes them, read back.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "io/pth.hpp"
#include "training_files.hpp"

namespace attend::io {
namespace {

using llm::test::read_text;
using llm::test::TempFolder;
using llm::test::write_text;

std::vector<std::byte> some_bytes(std::size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + seed * 17 + i / 7) & 255);
  return bytes;
}

struct Dict {
  std::vector<StoredTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;

  void add(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape) {
    std::size_t count = dtype == "F32" ? 4 : 2;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    bytes.push_back(some_bytes(count, static_cast<unsigned>(bytes.size())));
    tensors.push_back({name, dtype, shape, {}});
  }
  void write(const std::filesystem::path& path) const {
    write_pth(path, tensors, [&](std::size_t n, const PutBytes& put) {
      const std::span all(bytes[n]);  // in two pieces
      put(all.first(all.size() / 3));
      put(all.subspan(all.size() / 3));
    });
  }
};

Dict odd_dict() {
  Dict dict;
  dict.add("nothing around", "F32", {});
  dict.add("one", "F32", {1});
  dict.add("a.b.weight", "F16", {7, 13});
  dict.add("deep", "BF16", {2, 1, 3, 1, 5});
  dict.add("\xE5\x90\x8D\xE5\xAD\x97", "F32", {3});
  dict.add(std::string(300, 'n'), "F16", {1, 1});
  return dict;
}

TEST(PthWrite, IsReadBack) {
  const TempFolder place;
  const auto path = place.path() / "model.pth";
  const Dict dict = odd_dict();
  dict.write(path);
  const Pth pth(path);
  ASSERT_EQ(pth.tensors().size(), dict.tensors.size());
  for (std::size_t n = 0; n < dict.tensors.size(); ++n) {
    const StoredTensor& t = pth.tensors()[n];
    EXPECT_EQ(t.name, dict.tensors[n].name) << "the order is kept";
    EXPECT_EQ(t.dtype, dict.tensors[n].dtype);
    EXPECT_EQ(t.shape, dict.tensors[n].shape) << t.name;
    ASSERT_EQ(t.data.size(), dict.bytes[n].size());
    EXPECT_EQ(std::memcmp(t.data.data(), dict.bytes[n].data(), t.data.size()), 0) << t.name;
  }
}

TEST(PthWrite, IsTheSameFileEachTimeWithDataOn64Bytes) {
  const TempFolder place;
  const Dict dict = odd_dict();
  dict.write(place.path() / "a.pth");
  dict.write(place.path() / "b.pth");
  const std::string file = read_text(place.path() / "a.pth");
  EXPECT_EQ(file, read_text(place.path() / "b.pth"));
  for (const auto& bytes : dict.bytes)
    if (bytes.size() > 20) {
      const std::size_t at = file.find(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(at % 64, 0U);
    }
}

TEST(PthWrite, MayHoldNothingAndThousands) {
  const TempFolder place;
  Dict{}.write(place.path() / "none.pth");
  EXPECT_TRUE(Pth(place.path() / "none.pth").tensors().empty());
  Dict many;
  for (int n = 0; n < 3000; ++n) many.add("t" + std::to_string(n), "F32", {n % 5 + 1});
  many.write(place.path() / "many.pth");
  EXPECT_EQ(Pth(place.path() / "many.pth").tensors().size(), 3000U);
}

TEST(PthWrite, KeepsTheOldFileWhenItFails) {
  const TempFolder place;
  const auto path = place.path() / "model.pth";
  write_text(path, "old");
  const Dict dict = odd_dict();
  EXPECT_THROW(write_pth(path, dict.tensors,
                         [](std::size_t n, const PutBytes&) {
                           if (n == 2) throw std::runtime_error("stop");
                         }),
               std::runtime_error);
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(place.path()), std::filesystem::directory_iterator()), 1);
}

}  // namespace
}  // namespace attend::io

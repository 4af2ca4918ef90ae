// Zip archives from bytes: refused, or entries that unpack to what the directory says, within the limit.
#include <cstdint>
#include <string>
#include <string_view>

#include "io/zip.hpp"
#include "seeded.hpp"
#include "support/make_zip.hpp"

namespace attend::test {
namespace {

constexpr std::uint64_t kMost = 1 << 16;

void check_name(std::string_view name) {
  if (name.empty() || name[0] == '/' || name == ".." || name.starts_with("../") || name.ends_with("/..") ||
      name.find("/../") != name.npos || name.find('\0') != name.npos)
    stop("a name that leads out of the folder");
}

void run(std::string_view file) {
  const std::string own(file);  // memory of exactly its size
  try {
    const io::Zip zip = io::parse_zip(std::as_bytes(std::span(own)), "fuzz");
    std::size_t packed = 0;
    for (const io::ZipEntry& entry : zip.entries()) {
      check_name(entry.name);
      touch(entry.packed);
      packed += entry.packed.size();
      if (zip.find(entry.name) != &entry) stop("an entry that is not found");
      try {
        if (zip.read(entry, kMost).size() != entry.size || entry.size > kMost) stop("another size than it says");
      } catch (const io::FileError&) {  // the next may be whole
      }
    }
    if (packed > own.size()) stop("entries that share bytes");
  } catch (const io::FileError& error) {
    if (!std::string_view(error.what()).starts_with("fuzz: ")) stop("an error without its file");
  }
}

}  // namespace
}  // namespace attend::test

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  using attend::test::make_zip;
  static const std::vector<std::string> kExamples = {make_zip({{"a", "stored"}, {"f/b", std::string(300, 'x'), true}}),
                                                     make_zip({{"a", "stored"}, {"b", "0123456789abcdef", true}}, true),
                                                     make_zip({{"f/", ""}}, false, "comment")};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attend::test::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

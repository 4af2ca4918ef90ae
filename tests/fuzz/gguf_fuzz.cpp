// GGUF from bytes: refused, or settings and tensors that all lie inside the file.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "io/gguf.hpp"
#include "seeded.hpp"
#include "support/make_zip.hpp"

namespace attend::test {
namespace {

void run(std::string_view file) {
  const std::string own(file);  // memory of exactly its size
  try {
    const io::Gguf gguf = io::parse_gguf(std::as_bytes(std::span(own)), "fuzz");
    for (const auto& [key, value] : gguf.values()) {
      touch(key);
      if (gguf.value(key) != &value) stop("a setting that is not found");
      if (const auto* text = std::get_if<std::string_view>(&value)) touch(*text);
      if (const auto* array = std::get_if<io::GgufArray>(&value)) {
        touch(array->bytes);
        for (const std::string_view text : array->strings()) touch(text);
        const std::size_t numbers = array->numbers().size();
        if (array->type != io::GgufType::string && numbers != array->count) stop("numbers that are missing");
        if (const auto whole = array->integers(); !whole.empty() && whole.size() != numbers) stop("some whole numbers");
      }
    }
    for (const io::GgufTensor& tensor : gguf.tensors()) {
      touch(tensor.data);
      if (io::ggml_bytes(tensor, "fuzz") != tensor.data.size()) stop("bytes that do not fit the shape");
    }
  } catch (const io::FileError& error) {
    if (!std::string_view(error.what()).starts_with("fuzz: ")) stop("an error without its file");
  }
}

std::string text(const std::string& s) {
  return little_endian(s.size(), 8) + s;
}

std::vector<std::string> examples() {
  const auto setting = [](const std::string& key, std::uint32_t type, const std::string& value) {
    return text(key) + little_endian(type, 4) + value;
  };
  const auto start = [](std::uint64_t tensors, std::uint64_t settings) {
    return std::string("GGUF") + little_endian(3, 4) + little_endian(tensors, 8) + little_endian(settings, 8);
  };
  std::string all = start(2, 6) + setting("u32", 4, little_endian(7, 4)) +
                    setting("f32", 6, little_endian(0x3F800000, 4)) + setting("yes", 7, "\1") +
                    setting("text", 8, text("hi")) +
                    setting("texts", 9, little_endian(8, 4) + little_endian(2, 8) + text("a") + text("bc")) +
                    setting("ints", 9, little_endian(5, 4) + little_endian(2, 8) + little_endian(1, 8));
  all += text("w") + little_endian(2, 4) + little_endian(32, 8) + little_endian(2, 8) + little_endian(8, 4) +
         little_endian(0, 8);
  all += text("b") + little_endian(1, 4) + little_endian(3, 8) + little_endian(0, 4) + little_endian(96, 8);
  all.append((32 - all.size() % 32) % 32, '\0').append(96 + 12, 'd');
  return {all, start(0, 1) + setting("general.alignment", 4, little_endian(64, 4))};
}

}  // namespace
}  // namespace attend::test

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = attend::test::examples();
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attend::test::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

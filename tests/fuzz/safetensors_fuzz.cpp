// Safetensors from bytes: refused, or tensors that fill the file without a hole.
#include <cstdint>
#include <string>
#include <string_view>

#include "io/safetensors.hpp"
#include "seeded.hpp"
#include "support/make_zip.hpp"

namespace attend::test {
namespace {

void run(const std::string& file) {
  io::Metadata metadata;
  std::vector<io::StoredTensor> tensors;
  try {
    tensors = io::parse_safetensors(std::as_bytes(std::span(file)), "fuzz", metadata);
  } catch (const io::FileError& error) {
    if (!std::string_view(error.what()).starts_with("fuzz: ")) stop("an error without its file");
    return;
  }
  std::size_t bytes = 0;
  for (const io::StoredTensor& tensor : tensors) {
    touch(tensor.data);
    bytes += tensor.data.size();
    std::int64_t bits = io::safetensors_bits(tensor.dtype);
    for (const std::int64_t size : tensor.shape) bits *= size;
    if (static_cast<std::size_t>(bits) != 8 * tensor.data.size()) stop("bytes that do not fit the shape");
  }
  if (bytes + 8 > file.size()) stop("more bytes than there are");
}

// The first byte chooses: a file as it is, or a header whose length is right, with some bytes behind it.
void run_either(std::string_view input) {
  if (input.empty() || input[0] % 2 == 0) return run(std::string(input.substr(input.empty() ? 0 : 1)));
  const std::size_t data = static_cast<std::uint8_t>(input[0]) / 2;
  const std::string header(input.substr(1));
  run(little_endian(header.size(), 8) + header + std::string(data, 'd'));
}

}  // namespace
}  // namespace attend::test

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  // 40 = (81 - 1) / 2 bytes behind the header.
  static const std::vector<std::string> kExamples = {
      R"(Q{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[8],"data_offsets":[24,40]}})",
      R"(Q{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[40],"data_offsets":[0,40]},"e":{"dtype":"F4","shape":[0],"data_offsets":[40,40]}})"};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attend::test::run_either({reinterpret_cast<const char*>(data), size});
  return 0;
}

// PyTorch's files from bytes: refused, or tensors inside the file. The first byte chooses whether the rest is the whole
// file or the pickle in a good one, where no checksum keeps mutations away.
#include <cstdint>
#include <string>
#include <string_view>

#include "io/pth.hpp"
#include "seeded.hpp"
#include "support/make_zip.hpp"

namespace attend::test {
namespace {

void run(const std::string& file) {
  try {
    const io::Pth pth = io::parse_pth(std::as_bytes(std::span(file)), "fuzz");
    for (const io::StoredTensor& tensor : pth.tensors()) {
      touch(tensor.data);
      if (pth.find(tensor.name) != &tensor) stop("a tensor that is not found");
      std::int64_t bits = io::safetensors_bits(tensor.dtype);
      for (const std::int64_t size : tensor.shape) bits *= size;
      if (bits != 8 * static_cast<std::int64_t>(tensor.data.size())) stop("bytes that do not fit the shape");
    }
  } catch (const io::FileError& error) {
    if (!std::string_view(error.what()).starts_with("fuzz: ")) stop("an error without its file");
  }
}

std::string around(const std::string& pickle) {
  return make_zip({{"m/data.pkl", pickle}, {"m/byteorder", "little"}, {"m/data/0", std::string(48, 's')}});
}

std::vector<std::string> examples() {
  const std::string name = "X" + little_endian(1, 4);
  const std::string storage =
      std::string("(X") + little_endian(7, 4) + "storagectorch\nFloatStorage\n" + name + "0" + name + "cK\x0CtQ";
  const std::string tensor = std::string("ctorch._utils\n_rebuild_tensor_v2\n(") + storage +
                             "K\x02K\x02K\x05\x86K\x05K\x01\x86\x89" + "ccollections\nOrderedDict\n)RtR";
  const std::string dict = std::string(
                               "\x80\x02"
                               "ccollections\nOrderedDict\n)Rq\x01(") +
                           name + "w" + tensor + name + "v" + tensor + "u}b.";
  const std::string nested = std::string("\x80\x02}(") + name + "e" + "M\x01\x02" + "X" + little_endian(5, 4) +
                             "model}" + name + "w" + "ctorch._utils\n_rebuild_parameter\n(" + tensor + "\x88}tRs" +
                             "u.";
  return {"P" + dict, "P" + nested, "F" + around(dict),
          "P\x80\x02]q\x01h\x01"
          "a0}" +
              name + "lh\x01s."};
}

}  // namespace
}  // namespace attend::test

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = attend::test::examples();
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  attend::test::run(data[0] == 'F' ? rest : attend::test::around(rest));
  return 0;
}

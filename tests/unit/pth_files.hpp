// Files as torch.save writes them, for tests: a state dict of f32 tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "support/make_zip.hpp"

namespace attend::llm::test {

// Tensors that share their bytes share a storage, as torch has it.
inline std::string pth_bytes(std::span<const io::StoredTensor> tensors) {
  using attend::test::little_endian;
  const auto text = [](const std::string& s) { return std::string("X") + little_endian(s.size(), 4) + s; };
  const auto number = [](std::int64_t x) {
    return std::string("\x8A\x08") + little_endian(static_cast<std::uint64_t>(x), 8);
  };
  const auto global = [](const char* module, const char* name) {
    return std::string("c") + module + "\n" + name + "\n";
  };
  std::string pickle = "\x80\x02}(";
  std::vector<attend::test::ZipMember> members = {{"m/data.pkl", ""}, {"m/byteorder", "little"}};
  std::vector<const std::byte*> storages;
  for (const io::StoredTensor& t : tensors) {
    std::size_t key = 0;
    while (key < storages.size() && storages[key] != t.data.data()) ++key;
    if (key == storages.size()) {
      storages.push_back(t.data.data());
      members.push_back(
          {"m/data/" + std::to_string(key), std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size())});
    }
    const auto elements = static_cast<std::int64_t>(t.data.size() / sizeof(float));
    std::string shape, strides;
    std::int64_t stride = elements;
    for (const std::int64_t n : t.shape) {
      stride /= n;
      shape += number(n);
      strides += number(stride);
    }
    pickle += text(t.name) + global("torch._utils", "_rebuild_tensor_v2") + "((" + text("storage") +
              global("torch", "FloatStorage") + text(std::to_string(key)) + text("cpu") + number(elements) + "tQ" +
              number(0) + "(" + shape + "t(" + strides + "t\x89" + global("collections", "OrderedDict") + ")RtR";
  }
  members[0].bytes = pickle + "u.";
  return attend::test::make_zip(members);
}

}  // namespace attend::llm::test

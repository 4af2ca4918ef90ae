// SHA-256, to tell whether a file is the one that was meant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace attend::io {

// Takes the bytes in pieces of any size.
class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  std::string hex();  // 64 lower-case digits; nothing may be added after it

 private:
  void add_block(const std::byte* block);

  static constexpr std::size_t kBlock = 64;
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> rest_{};  // of the block that is not full yet
  std::uint64_t size_ = 0;
};

std::string sha256(std::span<const std::byte> bytes);

}  // namespace attend::io

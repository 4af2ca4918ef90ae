// The pixels of a PNG file: 8-bit RGB, every checksum verified.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace attend::testing {

struct Pixels {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> rgb;

  std::array<std::uint8_t, 3> at(std::int64_t x, std::int64_t y) const {
    const auto place = static_cast<std::size_t>(3 * (y * width + x));
    return {rgb.at(place), rgb.at(place + 1), rgb.at(place + 2)};
  }
  std::int64_t count(const std::array<std::uint8_t, 3>& colour) const {
    std::int64_t found = 0;
    for (std::int64_t y = 0; y < height; ++y)
      for (std::int64_t x = 0; x < width; ++x) found += at(x, y) == colour;
    return found;
  }
};

// What a byte was before its row's filter, from those to the left, above, and above to the left.
inline std::uint8_t unfiltered(std::uint8_t filter, std::uint8_t value, int left, int up, int corner) {
  if (filter == 1) return static_cast<std::uint8_t>(value + left);
  if (filter == 2) return static_cast<std::uint8_t>(value + up);
  if (filter == 3) return static_cast<std::uint8_t>(value + (left + up) / 2);
  if (filter != 4) return value;
  const int guess = left + up - corner, a = std::abs(guess - left), b = std::abs(guess - up),
            c = std::abs(guess - corner);
  return static_cast<std::uint8_t>(value + (a <= b && a <= c ? left : b <= c ? up : corner));
}

inline Pixels pixels_of(std::span<const std::byte> png) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(png.data());
  const auto u32 = [&](std::size_t at) {
    return static_cast<std::size_t>(bytes[at]) << 24 | static_cast<std::size_t>(bytes[at + 1]) << 16 |
           static_cast<std::size_t>(bytes[at + 2]) << 8 | bytes[at + 3];
  };
  Pixels pixels;
  std::vector<unsigned char> packed;
  EXPECT_EQ(std::memcmp(bytes, "\x89PNG\r\n\x1a\n", 8), 0);
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::size_t size = u32(at);
    const std::string type(reinterpret_cast<const char*>(bytes) + at + 4, 4);
    EXPECT_EQ(u32(at + 8 + size), crc32(0, bytes + at + 4, static_cast<uInt>(size + 4))) << type;
    if (type == "IHDR") {
      pixels.width = static_cast<std::int64_t>(u32(at + 8));
      pixels.height = static_cast<std::int64_t>(u32(at + 12));
      EXPECT_EQ(u32(at + 16), 0x08020000u);  // 8 bits, RGB, deflate, the five filters
    }
    if (type == "IDAT") packed.insert(packed.end(), bytes + at + 8, bytes + at + 8 + size);
    at += 12 + size;
  }
  const auto row = static_cast<std::size_t>(3 * pixels.width), height = static_cast<std::size_t>(pixels.height);
  std::vector<unsigned char> lines((row + 1) * height);
  uLongf size = lines.size();
  EXPECT_EQ(uncompress(lines.data(), &size, packed.data(), packed.size()), Z_OK);
  EXPECT_EQ(size, lines.size());
  pixels.rgb.resize(row * height);
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t x = 0; x < row; ++x) {
      std::uint8_t* here = pixels.rgb.data() + y * row + x;
      const int left = x < 3 ? 0 : here[-3], up = y == 0 ? 0 : *(here - row),
                corner = x < 3 || y == 0 ? 0 : *(here - row - 3);
      *here = unfiltered(lines[y * (row + 1)], lines[y * (row + 1) + 1 + x], left, up, corner);
    }
  return pixels;
}

}  // namespace attend::testing

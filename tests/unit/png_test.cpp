// The picture writer: a PNG decodes back to its pixels.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "draw/png.hpp"

namespace attend::draw {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

std::uint32_t u32_at(const std::vector<std::byte>& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint32_t>(bytes.at(at + i));
  return value;
}

struct Chunk {
  std::string type;
  std::vector<std::byte> data;
};

// The chunks of a PNG file, each with its checksum verified.
std::vector<Chunk> chunks_of(const std::vector<std::byte>& png) {
  EXPECT_EQ(std::memcmp(png.data(), "\x89PNG\r\n\x1a\n", 8), 0);
  std::vector<Chunk> chunks;
  for (std::size_t at = 8; at < png.size();) {
    const std::size_t size = u32_at(png, at);
    EXPECT_LE(at + 12 + size, png.size());
    const auto* body = reinterpret_cast<const char*>(png.data()) + at + 4;
    const auto* data = png.data() + at + 8;
    chunks.push_back({std::string(body, 4), std::vector<std::byte>(data, data + size)});
    EXPECT_EQ(u32_at(png, at + 8 + size), crc32(0, reinterpret_cast<const Bytef*>(body), static_cast<uInt>(size + 4)))
        << chunks.back().type;
    at += 12 + size;
  }
  return chunks;
}

RgbImage noise(int width, int height) {
  RgbImage image{width, height, {}};
  std::uint32_t state = 1;
  for (int i = 0; i < width * height * 3; ++i) {
    state = state * 1664525u + 1013904223u;
    image.pixels.push_back(static_cast<std::uint8_t>(state >> 24));
  }
  return image;
}

TEST(Png, DecodesBackToItsPixels) {
  for (const auto& [width, height] : {std::pair{1, 1}, {3, 2}, {1, 700}, {257, 31}, {640, 480}}) {
    const RgbImage image = noise(width, height);
    const std::vector<Chunk> chunks = chunks_of(encode_png(image));
    ASSERT_EQ(chunks.size(), 3u);
    EXPECT_EQ(chunks[0].type + chunks[1].type + chunks[2].type, "IHDRIDATIEND");

    const auto& header = chunks[0].data;
    ASSERT_EQ(header.size(), 13u);
    EXPECT_EQ(u32_at(header, 0), static_cast<std::uint32_t>(width));
    EXPECT_EQ(u32_at(header, 4), static_cast<std::uint32_t>(height));
    EXPECT_EQ(u32_at(header, 8), 0x08020000u);  // 8 bits, RGB, deflate, the five filters
    EXPECT_EQ(header[12], std::byte{0});        // not interlaced

    const std::size_t row = static_cast<std::size_t>(width) * 3;
    std::vector<std::uint8_t> lines((row + 1) * static_cast<std::size_t>(height) + 1);
    uLongf size = lines.size();
    ASSERT_EQ(
        uncompress(lines.data(), &size, reinterpret_cast<const Bytef*>(chunks[1].data.data()), chunks[1].data.size()),
        Z_OK);
    ASSERT_EQ(size, lines.size() - 1);
    for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
      const auto* line = lines.data() + y * (row + 1);
      ASSERT_EQ(line[0], 0) << "filter of row " << y;
      ASSERT_EQ(std::memcmp(line + 1, image.pixels.data() + y * row, row), 0) << "row " << y;
    }
  }
}

TEST(Png, CarriesItsTexts) {
  const auto chunks = chunks_of(encode_png(noise(2, 2), {{"Title", "one"}, {"Software", "two words"}}));
  ASSERT_EQ(chunks.size(), 5u);
  const std::string title("Title\0one", 9), software("Software\0two words", 18);
  EXPECT_EQ(chunks[1].type, "tEXt");
  EXPECT_EQ(chunks[1].data, bytes_of(title));
  EXPECT_EQ(chunks[2].data, bytes_of(software));
}

TEST(Png, RefusesWhatDoesNotFit) {
  const std::string nul(1, '\0');
  EXPECT_THROW(encode_png({0, 1, {}}), InvalidArgument);
  EXPECT_THROW(encode_png({1, -1, {}}), InvalidArgument);
  EXPECT_THROW(encode_png({kMaxPngSide + 1, 1, std::vector<std::uint8_t>(3 * (kMaxPngSide + 1))}), InvalidArgument);
  EXPECT_THROW(encode_png({2, 2, std::vector<std::uint8_t>(11)}), InvalidArgument);
  EXPECT_THROW(encode_png({2, 2, std::vector<std::uint8_t>(13)}), InvalidArgument);
  EXPECT_THROW(encode_png(noise(1, 1), {{"", "text"}}), InvalidArgument);
  EXPECT_THROW(encode_png(noise(1, 1), {{std::string(80, 'k'), "text"}}), InvalidArgument);
  EXPECT_THROW(encode_png(noise(1, 1), {{"key", nul}}), InvalidArgument);
  try {
    encode_png({2, 2, std::vector<std::uint8_t>(11)});
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "png: 11 bytes of pixels, expected 12 (width * height * 3)");
  }
}

}  // namespace
}  // namespace attend::draw

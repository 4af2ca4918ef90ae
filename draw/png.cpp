// A PNG writer over zlib: signature, IHDR, tEXt, IDAT, IEND (ISO/IEC 15948).
#include "draw/png.hpp"

#include <zlib.h>

#include <algorithm>
#include <new>
#include <span>

#include "attend/error.hpp"

namespace attend::draw {
namespace {

using Bytes = std::vector<std::byte>;

void append_u32(Bytes& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(value >> shift));
}

void append_text(Bytes& out, const std::string& text) {
  for (char c : text) out.push_back(static_cast<std::byte>(c));
}

void append_chunk(Bytes& out, const char* type, std::span<const std::byte> data) {
  append_u32(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t start = out.size();
  append_text(out, type);
  out.insert(out.end(), data.begin(), data.end());
  // The checksum covers the type and the data, not the length.
  const auto* summed = reinterpret_cast<const Bytef*>(out.data() + start);
  append_u32(out, static_cast<std::uint32_t>(crc32(0, summed, static_cast<uInt>(out.size() - start))));
}

// Each row behind filter 0 (none): the colours of a map jump from cell to cell, and differences compress worse.
std::vector<std::uint8_t> scanlines(const RgbImage& image) {
  const std::size_t row = static_cast<std::size_t>(image.width) * 3;
  std::vector<std::uint8_t> lines((row + 1) * static_cast<std::size_t>(image.height));
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    std::copy_n(image.pixels.data() + y * row, row, lines.data() + y * (row + 1) + 1);
  }
  return lines;
}

Bytes deflated(const std::vector<std::uint8_t>& raw) {
  uLongf size = compressBound(static_cast<uLong>(raw.size()));
  Bytes out(size);
  const int status =
      compress2(reinterpret_cast<Bytef*>(out.data()), &size, raw.data(), static_cast<uLong>(raw.size()), 9);
  if (status != Z_OK) throw std::bad_alloc();  // the only failure left once the buffer has compressBound bytes
  out.resize(size);
  return out;
}

void check(const RgbImage& image, const std::vector<std::pair<std::string, std::string>>& texts) {
  const auto side = [](const char* what, int got) {
    if (got < 1 || got > kMaxPngSide) {
      throw InvalidArgument("png: " + std::string(what) + " is " + std::to_string(got) + ", expected 1 to " +
                            std::to_string(kMaxPngSide));
    }
  };
  side("width", image.width);
  side("height", image.height);
  const std::size_t expected = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) * 3;
  if (image.pixels.size() != expected) {
    throw InvalidArgument("png: " + std::to_string(image.pixels.size()) + " bytes of pixels, expected " +
                          std::to_string(expected) + " (width * height * 3)");
  }
  for (const auto& [key, text] : texts) {
    if (key.empty() || key.size() > 79 || key.find('\0') != key.npos || text.find('\0') != text.npos) {
      throw InvalidArgument("png: text key '" + key +
                            "', expected 1 to 79 characters, and no zero byte in key or text");
    }
  }
}

}  // namespace

std::vector<std::byte> encode_png(const RgbImage& image,
                                  const std::vector<std::pair<std::string, std::string>>& texts) {
  check(image, texts);
  Bytes out;
  append_text(out, "\x89PNG\r\n\x1a\n");

  Bytes header;
  append_u32(header, static_cast<std::uint32_t>(image.width));
  append_u32(header, static_cast<std::uint32_t>(image.height));
  // 8 bits a sample, RGB, deflate, the five row filters, not interlaced.
  for (int field : {8, 2, 0, 0, 0}) header.push_back(static_cast<std::byte>(field));
  append_chunk(out, "IHDR", header);

  for (const auto& [key, text] : texts) {
    Bytes data;
    append_text(data, key);
    data.push_back(std::byte{0});
    append_text(data, text);
    append_chunk(out, "tEXt", data);
  }
  append_chunk(out, "IDAT", deflated(scanlines(image)));
  append_chunk(out, "IEND", {});
  return out;
}

}  // namespace attend::draw

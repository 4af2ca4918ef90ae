// A PNG writer: 8-bit RGB pictures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace attend::draw {

struct RgbImage {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels;  // width * height * 3, rows from the top
};

inline constexpr int kMaxPngSide = 16384;

// The bytes of a PNG file. `texts` are key and text pairs for the reader of the file's properties ("Title", ...),
// Latin-1. Throws InvalidArgument if the sizes do not fit together or a key is not 1 to 79 characters long.
std::vector<std::byte> encode_png(const RgbImage& image,
                                  const std::vector<std::pair<std::string, std::string>>& texts = {});

}  // namespace attend::draw

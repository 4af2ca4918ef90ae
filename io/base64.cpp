// Three bytes become four letters.
#include "io/base64.hpp"

#include <cstdint>

namespace attend::io {

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t n = 0; n < bytes.size(); n += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k)
      three = three << 8 | (n + k < bytes.size() ? static_cast<unsigned char>(bytes[n + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += n + k < bytes.size() + 1 ? kLetters[three >> (18 - 6 * k) & 63U] : '=';
  }
  return out;
}

}  // namespace attend::io

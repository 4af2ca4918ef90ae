// A hash with a secret of the process: no file can be made whose keys all fall on one place of a table.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace attend {

// For every table whose keys come from a file. It decides where a key lies and nothing else: never an order or a
// result.
class KeyedHash {
 public:
  KeyedHash() : KeyedHash(of_process()) {}
  KeyedHash(std::uint64_t first, std::uint64_t second) : secret_{first, second} {}

  std::uint64_t operator()(std::uint64_t key) const { return finished(folded(key ^ secret_.first, kFirst)); }
  std::uint64_t operator()(std::string_view bytes) const {
    std::uint64_t hash = secret_.first ^ bytes.size();
    while (bytes.size() >= 8) {
      hash = folded(hash ^ word(bytes.substr(0, 8)), kFirst) ^ secret_.second;
      bytes.remove_prefix(8);
    }
    return finished(folded(hash ^ word(bytes), kFirst));
  }

 private:
  struct Secret {
    std::uint64_t first, second;
  };
  explicit KeyedHash(const Secret& secret) : secret_(secret) {}

  static const Secret& of_process() {
    static const Secret secret = [] {
      Secret drawn{};
      if (::getentropy(&drawn, sizeof drawn) != 0) drawn = {0x9E3779B97F4A7C15U, 0xBF58476D1CE4E5B9U};
      return drawn;
    }();
    return secret;
  }
  static std::uint64_t word(std::string_view bytes) {  // at most 8
    std::uint64_t x = 0;
    if (!bytes.empty()) std::memcpy(&x, bytes.data(), bytes.size());
    return x;
  }
  // The low and the high 64 bits of the product, so that every bit of x reaches high and low bits of the result. The
  // factors are fixed: a drawn one can be bad, and then keys in a row meet. One round leaves such keys in a pattern,
  // two do not.
  static constexpr std::uint64_t kFirst = 0xA0761D6478BD642FU, kSecond = 0xE7037ED1A0B428DBU;
  static std::uint64_t folded(std::uint64_t x, std::uint64_t factor) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{x} * factor;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  std::uint64_t finished(std::uint64_t hash) const { return folded(hash ^ secret_.second, kSecond); }

  Secret secret_;
};

}  // namespace attend

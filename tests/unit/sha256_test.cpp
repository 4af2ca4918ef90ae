// SHA-256 against the vectors of the standard, in one piece and in many.
#include <gtest/gtest.h>

#include <string>

#include "io/sha256.hpp"

namespace attend::io {
namespace {

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

TEST(Sha256, VectorsOfTheStandard) {
  EXPECT_EQ(sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(bytes_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(bytes_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                            "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu")),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(bytes_of(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Around the sizes where the padding needs a block of its own, cut anywhere.
TEST(Sha256, PiecesMakeNoDifference) {
  for (std::size_t size = 0; size < 200; ++size) {
    std::string text(size, '\0');
    for (std::size_t n = 0; n < size; ++n) text[n] = static_cast<char>(n * 7 + size);
    const std::string whole = sha256(bytes_of(text));
    for (std::size_t cut = 0; cut <= size; cut += 13) {
      Sha256 hash;
      hash.add(bytes_of(text).first(cut));
      hash.add(bytes_of(text).subspan(cut));
      EXPECT_EQ(hash.hex(), whole) << size << " cut at " << cut;
    }
  }
  // 55, 56, 63 and 64 bytes of zero, as other programs hash them.
  EXPECT_EQ(sha256(bytes_of(std::string(55, '\0'))),
            "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
  EXPECT_EQ(sha256(bytes_of(std::string(56, '\0'))),
            "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
  EXPECT_EQ(sha256(bytes_of(std::string(64, '\0'))),
            "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
}

}  // namespace
}  // namespace attend::io

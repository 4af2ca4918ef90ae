// Memory of weights and caches: pieces next to each other in one block, or in a separate block where they are large.
#include "base/long_lived_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "attend/error.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(LongLivedMemory, PiecesAreAlignedAndApart) {
  struct Piece {
    std::shared_ptr<char> memory;
    std::int64_t bytes;
  };
  std::vector<Piece> pieces;
  // Around the alignment, more than one block of 32 MiB together, around the size of a block, and small ones after it.
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, std::int64_t{64}, std::int64_t{65}, 20 * kMiB, 12 * kMiB,
        12 * kMiB, 32 * kMiB - 64, 32 * kMiB - 63, 32 * kMiB, 33 * kMiB, std::int64_t{65}, std::int64_t{1}})
    pieces.push_back({long_lived_memory(bytes), bytes});
  const auto mark = [](std::size_t n) { return static_cast<char>(n + 1); };
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    ASSERT_NE(pieces[n].memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces[n].memory.get()) % 64, 0U) << n;
    std::memset(pieces[n].memory.get(), mark(n), static_cast<std::size_t>(pieces[n].bytes));
  }
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    const auto [memory, bytes] = pieces[n];
    if (bytes == 0) continue;
    EXPECT_EQ(memory.get()[0], mark(n)) << n;
    EXPECT_EQ(memory.get()[bytes - 1], mark(n)) << n;
    EXPECT_EQ(std::memcmp(memory.get(), memory.get() + 1, static_cast<std::size_t>(bytes - 1)), 0) << n;
  }
}

TEST(LongLivedMemory, SmallPiecesShareAStretch) {
  const std::shared_ptr<char> first = long_lived_memory(32 * kMiB - 64);  // fills a block, or has a separate one
  std::shared_ptr<char> a = long_lived_memory(100), b = long_lived_memory(100);
  EXPECT_EQ(b.get() - a.get(), 128);
  a.reset();
  std::memset(b.get(), 1, 100);  // a piece that is gone leaves the others where they are
  EXPECT_EQ(b.get()[99], 1);
}

TEST(LongLivedMemory, TooMuchIsAnError) {
  EXPECT_THROW(long_lived_memory(std::numeric_limits<std::int64_t>::max() / 4), std::bad_alloc);
  EXPECT_THROW(long_lived_memory(std::numeric_limits<std::int64_t>::max() - 8 * kMiB), InvalidArgument);
}

}  // namespace
}  // namespace attend

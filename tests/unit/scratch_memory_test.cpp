// Working memory: apart for each worker, kept for the thread's next call up to its limit, and given back.
#include "ops/scratch.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "attend/runtime.hpp"
#include "unit/allocated.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(Scratch, PiecesAreAlignedAndApart) {
  for (const std::int64_t bytes : {1, 63, 64, 65, 1000}) {
    const Scratch scratch(bytes, 5);
    EXPECT_EQ(scratch.workers(), 5);
    for (int worker = 0; worker < 5; ++worker) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch.of(worker)) % 64, 0U);
      std::memset(scratch.of(worker), worker + 1, static_cast<std::size_t>(bytes));
    }
    for (int worker = 0; worker < 5; ++worker)
      for (std::int64_t n = 0; n < bytes; ++n) ASSERT_EQ(static_cast<char*>(scratch.of(worker))[n], worker + 1);
  }
  EXPECT_EQ(Scratch(0).workers(), threads());
}

#if !defined(__SANITIZE_ADDRESS__)  // there nothing is kept

// Bytes that stay allocated by f(), in MiB, rounded to the nearest.
template <class F>
std::int64_t kept_after(const F& f) {
  release_memory();
  const std::int64_t before = live_bytes.load();
  f();
  const std::int64_t kept = live_bytes.load() - before;
  release_memory();
  EXPECT_EQ(live_bytes.load(), before);
  return (kept + kMiB / 2) / kMiB;
}

// Scratch of these sizes at once, freed in their order.
void use(const std::vector<std::int64_t>& sizes) {
  std::vector<std::unique_ptr<Scratch>> all;
  for (const std::int64_t bytes : sizes) all.push_back(std::make_unique<Scratch>(bytes, 1));
  for (auto& scratch : all) scratch.reset();
}

TEST(Scratch, ASizeSeenBeforeAllocatesNothing) {
  release_memory();
  use({kMiB, 10 * kMiB});
  EXPECT_EQ(peak_of([] { const Scratch same(kMiB, 1); }), 0);
  EXPECT_EQ(peak_of([] { const Scratch of_two(kMiB / 2, 2); }), 0);
  // The smaller request takes the smaller piece, in either order.
  EXPECT_EQ(peak_of([] { const Scratch a(kMiB, 1), b(8 * kMiB, 1); }), 0);
  EXPECT_EQ(peak_of([] { const Scratch a(8 * kMiB, 1), b(kMiB, 1); }), 0);
  EXPECT_GE(peak_of([] { const Scratch a(8 * kMiB, 1), b(2 * kMiB, 1); }), 2 * kMiB);
  EXPECT_GE(peak_of([] { const Scratch larger(11 * kMiB, 1); }), 11 * kMiB);
  // A large piece that served a small request is still a large one.
  release_memory();
  use({8 * kMiB});
  use({kMiB});
  EXPECT_EQ(peak_of([] { const Scratch same(8 * kMiB, 1); }), 0);
  release_memory();
  EXPECT_GE(peak_of([] { const Scratch again(kMiB, 1); }), kMiB);
}

TEST(Scratch, KeepsUpTo64MiB) {
  EXPECT_EQ(kept_after([] { use({64 * kMiB - 64}); }), 64);  // with the 64 bytes of its alignment
  EXPECT_EQ(kept_after([] { use({64 * kMiB}); }), 0);
  EXPECT_EQ(kept_after([] { use({40 * kMiB, 20 * kMiB}); }), 60);
  EXPECT_EQ(kept_after([] { use({40 * kMiB, 30 * kMiB}); }), 30);  // the piece that was freed last stays
  EXPECT_EQ(kept_after([] { use({5 * kMiB, 20 * kMiB, 39 * kMiB}); }), 59);
}

TEST(Scratch, KeepsSixteenPieces) {
  EXPECT_EQ(kept_after([] { use(std::vector<std::int64_t>(16, kMiB)); }), 16);
  EXPECT_EQ(kept_after([] {
              std::vector<std::int64_t> sizes(17, kMiB);
              sizes[0] = 3 * kMiB;  // the one that goes
              use(sizes);
            }),
            16);
}

TEST(Scratch, AThreadGivesBackWhatItKept) {
  EXPECT_EQ(kept_after([] { std::thread([] { use({kMiB, 2 * kMiB}); }).join(); }), 0);
}

#endif

}  // namespace
}  // namespace attend::test

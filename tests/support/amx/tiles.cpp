// Memory is read and written by memcpy alone, so that sanitizers see it.
#include "support/amx/tiles.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace attend::test::amx {
namespace {

constexpr std::size_t kRowBytesAt = 16, kRowsAt = 48;  // in a configuration

bool all_zero(const std::uint8_t* first, const std::uint8_t* last) {
  return std::all_of(first, last, [](std::uint8_t byte) { return byte == 0; });
}

// Rounds to nearest, takes and gives no subnormal numbers, traps nothing, whatever the program has set.
class TileRounding {
 public:
  TileRounding() : before_(_mm_getcsr()) {
    constexpr unsigned kMasked = 0x1F80, kZeroIn = 0x0040, kZeroOut = 0x8000;
    _mm_setcsr(kMasked | kZeroIn | kZeroOut);
  }
  ~TileRounding() { _mm_setcsr(before_); }
  TileRounding(const TileRounding&) = delete;
  TileRounding& operator=(const TileRounding&) = delete;

 private:
  unsigned before_;
};

// The even and the odd numbers of a row, as floats.
struct alignas(64) Halves {
  float even[16], odd[16];
};

using Bits = std::uint32_t __attribute__((vector_size(64)));

[[gnu::target("avx512f")]] inline void widen(const std::array<std::uint32_t, 16>& row, Halves& to) {
  Bits bits;
  std::memcpy(&bits, row.data(), sizeof bits);
  const Bits even = bits << 16, odd = bits & 0xFFFF0000U;
  std::memcpy(to.even, &even, sizeof even);
  std::memcpy(to.odd, &odd, sizeof odd);
}

}  // namespace

const char* Tiles::load_config(const std::uint8_t* config) {
  std::uint8_t bytes[kConfigBytes];
  std::memcpy(bytes, config, kConfigBytes);
  if (bytes[0] > 1) return "ldtilecfg: the palette is neither 0 nor 1";
  if (bytes[0] == 0) {
    release();
    return nullptr;
  }
  if (!all_zero(bytes + 2, bytes + kRowBytesAt) || !all_zero(bytes + kRowBytesAt + 2 * kTiles, bytes + kRowsAt) ||
      !all_zero(bytes + kRowsAt + kTiles, bytes + kConfigBytes))
    return "ldtilecfg: reserved bytes are not zero";
  std::array<Shape, kTiles> shapes{};
  for (std::size_t n = 0; n < kTiles; ++n) {
    std::memcpy(&shapes[n].row_bytes, bytes + kRowBytesAt + 2 * n, 2);
    shapes[n].rows = bytes[kRowsAt + n];
    if (shapes[n].row_bytes > kMostRowBytes) return "ldtilecfg: a row of a tile has more than 64 bytes";
    if (shapes[n].rows > kMostRows) return "ldtilecfg: a tile has more than 16 rows";
    if ((shapes[n].rows == 0) != (shapes[n].row_bytes == 0)) return "ldtilecfg: a tile has rows or columns, not both";
  }
  tiles_ = {};
  shapes_ = shapes;
  start_row_ = bytes[1];
  configured_ = true;
  return nullptr;
}

void Tiles::store_config(std::uint8_t* config) const {
  std::uint8_t bytes[kConfigBytes] = {};
  if (configured_) {
    bytes[0] = 1;
    bytes[1] = start_row_;
    for (std::size_t n = 0; n < kTiles; ++n) {
      std::memcpy(bytes + kRowBytesAt + 2 * n, &shapes_[n].row_bytes, 2);
      bytes[kRowsAt + n] = shapes_[n].rows;
    }
  }
  std::memcpy(config, bytes, kConfigBytes);
}

void Tiles::release() {
  tiles_ = {};
  shapes_ = {};
  start_row_ = 0;
  configured_ = false;
}

const char* Tiles::zero(int tile) {
  if (!usable(tile)) return "tilezero: the tile is not configured";
  tiles_[static_cast<std::size_t>(tile)] = {};
  start_row_ = 0;
  return nullptr;
}

const char* Tiles::load(int tile, const std::uint8_t* from, std::int64_t stride) {
  if (!usable(tile)) return "tileloadd: the tile is not configured";
  const Shape& shape = shapes_[static_cast<std::size_t>(tile)];
  Tile& to = tiles_[static_cast<std::size_t>(tile)];
  for (std::size_t r = start_row_; r < shape.rows; ++r)
    std::memcpy(&to.rows[r], from + static_cast<std::int64_t>(r) * stride, shape.row_bytes);
  start_row_ = 0;
  return nullptr;
}

const char* Tiles::store(int tile, std::uint8_t* to, std::int64_t stride) {
  if (!usable(tile)) return "tilestored: the tile is not configured";
  const Shape& shape = shapes_[static_cast<std::size_t>(tile)];
  const Tile& from = tiles_[static_cast<std::size_t>(tile)];
  for (std::size_t r = start_row_; r < shape.rows; ++r)
    std::memcpy(to + static_cast<std::int64_t>(r) * stride, &from.rows[r], shape.row_bytes);
  start_row_ = 0;
  return nullptr;
}

const char* Tiles::dot_bf16(int sum, int left, int right) {
  if (sum == left || sum == right || left == right) return "tdpbf16ps: the three tiles are not distinct";
  if (!usable(sum) || !usable(left) || !usable(right)) return "tdpbf16ps: a tile is not configured";
  const Shape& c = shapes_[static_cast<std::size_t>(sum)];
  const Shape& a = shapes_[static_cast<std::size_t>(left)];
  const Shape& b = shapes_[static_cast<std::size_t>(right)];
  if (c.row_bytes % 4 != 0 || a.row_bytes % 4 != 0 || b.row_bytes % 4 != 0)
    return "tdpbf16ps: a row is no whole number of pairs";
  if (c.rows != a.rows || c.row_bytes != b.row_bytes || a.row_bytes / 4 != b.rows)
    return "tdpbf16ps: the shapes of the tiles do not fit";
  Tile& to = tiles_[static_cast<std::size_t>(sum)];
  {
    const TileRounding rounding;
    multiply_rows(to, tiles_[static_cast<std::size_t>(left)], tiles_[static_cast<std::size_t>(right)], a.row_bytes / 4);
  }
  start_row_ = 0;
  return nullptr;
}

// All sixteen rows and columns: nothing shows what lies beyond the shape. Not inlined, so that no operation leaves the
// TileRounding around it.
[[gnu::noinline, gnu::target("avx512f")]] void Tiles::multiply_rows(Tile& sum, const Tile& left, const Tile& right,
                                                                    int pairs) {
  Halves a[kMostRows], b[kMostRows];
  for (std::size_t r = 0; r < kMostRows; ++r) {
    widen(left.rows[r], a[r]);
    widen(right.rows[r], b[r]);
  }
  constexpr std::size_t kAtOnce = 4;  // rows, so that one need not wait for the other
  for (std::size_t r0 = 0; r0 < kMostRows; r0 += kAtOnce) {
    __m512 even[kAtOnce], odd[kAtOnce];
    for (std::size_t r = 0; r < kAtOnce; ++r) even[r] = odd[r] = _mm512_setzero_ps();
    for (int k = 0; k < pairs; ++k) {
      const __m512 b_even = _mm512_load_ps(b[k].even), b_odd = _mm512_load_ps(b[k].odd);
      for (std::size_t r = 0; r < kAtOnce; ++r) {
        even[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r0 + r].even[k]), b_even, even[r]);
        odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r0 + r].odd[k]), b_odd, odd[r]);
      }
    }
    for (std::size_t r = 0; r < kAtOnce; ++r) {
      __m512 row;
      std::memcpy(&row, &sum.rows[r0 + r], sizeof row);
      row = _mm512_add_ps(row, _mm512_add_ps(even[r], odd[r]));
      std::memcpy(&sum.rows[r0 + r], &row, sizeof row);
    }
  }
}

}  // namespace attend::test::amx

// The tile registers of a thread and what the instructions do to them, word for word as the manual has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace attend::test::amx {

constexpr int kTiles = 8, kMostRows = 16, kMostRowBytes = 64, kConfigBytes = 64;

// Every call gives nullptr, or says what the CPU would have refused.
class Tiles {
 public:
  const char* load_config(const std::uint8_t* config);
  void store_config(std::uint8_t* config) const;
  void release();

  const char* zero(int tile);
  // Rows from start_row on; the stride is in bytes.
  const char* load(int tile, const std::uint8_t* from, std::int64_t stride);
  const char* store(int tile, std::uint8_t* to, std::int64_t stride);
  // sum += left . right, pairs of bf16. Even and odd numbers of the pairs have sums of their own, fused and rounded one
  // after the other; both are added, then that to `sum`. Subnormal numbers count as zeros and become zeros.
  const char* dot_bf16(int sum, int left, int right);

 private:
  using Cells = std::array<std::uint32_t, kMostRowBytes / 4>;
  struct alignas(64) Tile {
    std::array<Cells, kMostRows> rows;
  };
  struct Shape {
    std::uint16_t row_bytes;
    std::uint8_t rows;
  };

  bool usable(int tile) const { return configured_ && shapes_[static_cast<std::size_t>(tile)].rows != 0; }
  static void multiply_rows(Tile& sum, const Tile& left, const Tile& right, int pairs);

  std::array<Tile, kTiles> tiles_{};
  std::array<Shape, kTiles> shapes_{};
  std::uint8_t start_row_ = 0;
  bool configured_ = false;
};

}  // namespace attend::test::amx

// How weights and the rounded rows they meet lie in memory. Everything here is static: code built for an instruction
// set includes it too.
#pragma once

#include <cstdint>

#include "attend/weight.hpp"
#include "core/attention_problem.hpp"

namespace attend {

// Quantised weights are unsigned numbers of `bits` bits, in runs of kRun along a row, for a tile of kKeyTile rows of
// the weight (columns of y) at a time. A record is `head` bytes of scales that several runs share, then `runs` times
// the numbers of a run and `tail` bytes of its own scales. Tiles, records and runs follow each other without gaps, so
// that a product reads memory in order. docs/design/weights.md draws it.
static constexpr std::int64_t kRun = 32;

enum class WeightScales {
  floats,     // none: plain numbers [in][kKeyTile]
  symmetric,  // value = d * (q - 2^(bits-1)); tail: d, f16 [kKeyTile]
  offset,     // value = d * q + m; tail: d and m, f16 [kKeyTile] each
  k_offset,   // value = (d * s) * q - e * m; head: d and e, f16; tail: s and m, u8
  k_halves,   // value = (d * s) * (q - 2^(bits-1)), s for 16 numbers each; head: d, f16; tail: s, s8 [2][kKeyTile]
};

struct WeightLayout {
  WeightScales scales;
  std::int64_t bits;  // of a number
  std::int64_t runs, head, tail;
};

static constexpr WeightLayout layout_of(WeightFormat format) {
  constexpr std::int64_t kHalves = 2 * kKeyTile;  // bytes of an f16 for each row of the tile
  switch (format) {
    case WeightFormat::f32:
      return {WeightScales::floats, 32, 1, 0, 0};
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return {WeightScales::floats, 16, 1, 0, 0};
    case WeightFormat::q4_0:
      return {WeightScales::symmetric, 4, 1, 0, kHalves};
    case WeightFormat::q4_1:
      return {WeightScales::offset, 4, 1, 0, 2 * kHalves};
    case WeightFormat::q5_0:
      return {WeightScales::symmetric, 5, 1, 0, kHalves};
    case WeightFormat::q5_1:
      return {WeightScales::offset, 5, 1, 0, 2 * kHalves};
    case WeightFormat::q8_0:
      return {WeightScales::symmetric, 8, 1, 0, kHalves};
    case WeightFormat::q4_k:
      return {WeightScales::k_offset, 4, 8, 2 * kHalves, 2 * kKeyTile};
    case WeightFormat::q5_k:
      return {WeightScales::k_offset, 5, 8, 2 * kHalves, 2 * kKeyTile};
    case WeightFormat::q6_k:
      return {WeightScales::k_halves, 6, 8, kHalves, 2 * kKeyTile};
  }
  return {};
}

static constexpr std::int64_t number_bytes(const WeightLayout& l) {  // of a run
  return l.bits * kRun * kKeyTile / 8;
}
static constexpr std::int64_t record_bytes(const WeightLayout& l) {
  return l.head + l.runs * (number_bytes(l) + l.tail);
}
// Where the run begins, counted from the start of its record.
static constexpr std::int64_t run_offset(const WeightLayout& l, std::int64_t run) {
  return l.head + run * (number_bytes(l) + l.tail);
}

// The numbers of a run are multiplied in groups of four. What a group is made of are bytes [row of the tile][4], a
// plane of kPlane bytes: the numbers themselves (8 bits), or their low four bits, even groups in the low nibbles and
// odd ones in the high nibbles of a plane for both. Bits above these lie in a plane before: one bit of each group,
// for all eight groups (5 bits), or two for the next four groups (6 bits). So planes are first needed in the order
// they lie in, which is how a CPU expects memory to be read.
static constexpr std::int64_t kPlane = 4 * kKeyTile;

static constexpr std::int64_t low_plane(std::int64_t bits, std::int64_t group) {
  if (bits == 8) return group * kPlane;
  return (group / 2 + (bits == 5 ? 1 : bits == 6 ? group / 4 + 1 : 0)) * kPlane;
}
static constexpr std::int64_t high_plane(std::int64_t bits, std::int64_t group) {  // of 5 and 6 bits
  return bits == 6 ? group / 4 * 3 * kPlane : 0;
}
// How far to the left the low nibble of its plane, and what lies above, begin in a byte.
static constexpr std::int64_t low_shift(std::int64_t bits, std::int64_t group) {
  return bits == 8 ? 0 : group % 2 * 4;
}
static constexpr std::int64_t high_shift(std::int64_t bits, std::int64_t group) {
  return bits == 6 ? group % 4 * 2 : group;
}

// A run of x, rounded: x is about scale * numbers.
struct alignas(64) RoundedRun {
  std::int8_t numbers[kRun];
  float scale;                   // NaN where the run has a NaN or an inf; all numbers are 0 then
  float scaled_sum;              // scale * the sum of the numbers
  std::int32_t minus_sum;        // of the numbers
  std::int32_t minus_sum_of[2];  // of each half of them
};

// One product y = x . weight^T + bias as the kernels see it.
struct WeightProduct {
  WeightFormat format;
  std::int64_t out, in;
  const char* tiles;  // tile_bytes apart
  std::int64_t tile_bytes;
  const char* bias;  // f32 [out], bias_stride elements apart, at any address; null: none
  std::int64_t bias_stride;
  const RoundedRun* rounded;  // [rows][in / kRun] for quantised weights
  const float* x;             // [rows][in], rows x_row_stride apart, for floats
  std::int64_t x_row_stride;
  char* y;  // f32, elements of a row side by side; at any address
  std::int64_t y_row_stride;
};

}  // namespace attend

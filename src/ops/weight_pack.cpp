// Weights from the blocks of a file into tiles, and a row of them back to floats.
#include "ops/weight_pack.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "base/half.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMostNumbers = 256;  // of a block

std::uint8_t byte_at(const std::byte* p, std::int64_t n) {
  return std::to_integer<std::uint8_t>(p[n]);
}
std::uint8_t bits_of(unsigned value) {
  return static_cast<std::uint8_t>(value);
}

// 32 numbers of four bits, the first half of them low.
void read_nibbles(const std::byte* p, std::uint8_t* q) {
  for (std::int64_t i = 0; i < 16; ++i) {
    q[i] = byte_at(p, i) & 15U;
    q[i + 16] = bits_of(byte_at(p, i) >> 4U);
  }
}
// Their fifth bits, one after the other.
void add_fifth_bits(const std::byte* p, std::uint8_t* q) {
  for (std::int64_t i = 0; i < 32; ++i) q[i] |= bits_of((unsigned{byte_at(p, i / 8)} >> (i % 8) & 1U) << 4U);
}

// 256 numbers of four bits: in each 32 bytes the low nibbles are one run, the high ones the next.
void read_k_nibbles(const std::byte* p, std::uint8_t* q) {
  for (std::int64_t i = 0; i < 128; ++i) {
    const std::int64_t at = i / 32 * 64 + i % 32;
    q[at] = byte_at(p, i) & 15U;
    q[at + 32] = bits_of(byte_at(p, i) >> 4U);
  }
}
// Their fifth bits: bit n of byte i belongs to number i of run n.
void add_k_fifth_bits(const std::byte* p, std::uint8_t* q) {
  for (std::int64_t run = 0; run < 8; ++run)
    for (std::int64_t i = 0; i < 32; ++i) q[run * 32 + i] |= bits_of((unsigned{byte_at(p, i)} >> run & 1U) << 4U);
}
// 256 numbers of six bits: in each half, 64 bytes of nibbles (two runs low, then two high) and 32 of the bits above.
void read_k_six_bits(const std::byte* low, const std::byte* high, std::uint8_t* q) {
  for (std::int64_t half = 0; half < 2; ++half, low += 64, high += 32, q += 128)
    for (std::int64_t run = 0; run < 4; ++run)
      for (std::int64_t i = 0; i < 32; ++i) {
        const unsigned nibbles = byte_at(low, run % 2 * 32 + i);
        const unsigned above = unsigned{byte_at(high, i)} >> (2 * run) & 3U;
        q[run * 32 + i] = bits_of((run < 2 ? nibbles & 15U : nibbles >> 4U) | above << 4U);
      }
}

// Scale and offset of run n of eight, six bits each, in twelve bytes.
void read_k_scales(const std::byte* p, std::int64_t n, std::uint8_t& scale, std::uint8_t& offset) {
  if (n < 4) {
    scale = byte_at(p, n) & 63U;
    offset = byte_at(p, n + 4) & 63U;
  } else {
    scale = bits_of((byte_at(p, n + 4) & 15U) | (unsigned{byte_at(p, n - 4)} >> 6U) << 4U);
    offset = bits_of(unsigned{byte_at(p, n + 4)} >> 4U | (unsigned{byte_at(p, n)} >> 6U) << 4U);
  }
}

// A block as the file has it: its numbers, made unsigned, and where its scales lie.
struct Block {
  std::uint8_t q[kMostNumbers];
  const std::byte* halves;  // d, and m or e after it
  const std::byte* scales;  // of the runs of a large block
};
void read_block(WeightFormat format, const std::byte* p, Block& block) {
  block.halves = p;
  block.scales = nullptr;
  switch (format) {
    case WeightFormat::q4_0:
      return read_nibbles(p + 2, block.q);
    case WeightFormat::q4_1:
      return read_nibbles(p + 4, block.q);
    case WeightFormat::q5_0:
      read_nibbles(p + 6, block.q);
      return add_fifth_bits(p + 2, block.q);
    case WeightFormat::q5_1:
      read_nibbles(p + 8, block.q);
      return add_fifth_bits(p + 4, block.q);
    case WeightFormat::q8_0:
      for (std::int64_t i = 0; i < 32; ++i) block.q[i] = byte_at(p, 2 + i) ^ 128U;
      return;
    case WeightFormat::q4_k:
      block.scales = p + 4;
      return read_k_nibbles(p + 16, block.q);
    case WeightFormat::q5_k:
      block.scales = p + 4;
      read_k_nibbles(p + 48, block.q);
      return add_k_fifth_bits(p + 16, block.q);
    case WeightFormat::q6_k:
      block.halves = p + 208;
      block.scales = p + 192;
      return read_k_six_bits(p, p + 128, block.q);
    case WeightFormat::f32:
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return;
  }
}

// The four numbers of a group at a time, as a word: what is done to it is done to each of its bytes.
void put_numbers(const WeightLayout& l, const std::uint8_t* q, std::int64_t row, char* run) {
  const auto add = [&](std::int64_t plane, std::uint32_t bits) {
    std::uint32_t word = 0;
    std::memcpy(&word, run + plane + 4 * row, sizeof word);
    word |= bits;
    std::memcpy(run + plane + 4 * row, &word, sizeof word);
  };
  for (std::int64_t group = 0; group < kRun / 4; ++group) {
    std::uint32_t word = 0;
    std::memcpy(&word, q + 4 * group, sizeof word);
    const std::uint32_t low = l.bits == 8 ? word : word & 0x0F0F0F0FU;
    add(low_plane(l.bits, group), low << low_shift(l.bits, group));
    if (l.bits == 5 || l.bits == 6)
      add(high_plane(l.bits, group), (word >> 4U & 0x0F0F0F0FU) << high_shift(l.bits, group));
  }
}
unsigned number(const WeightLayout& l, const char* run, std::int64_t row, std::int64_t n) {
  const std::int64_t group = n / 4, k = n % 4;
  const auto byte = [&](std::int64_t plane) { return unsigned{static_cast<std::uint8_t>(run[plane + 4 * row + k])}; };
  const unsigned low = byte(low_plane(l.bits, group)) >> low_shift(l.bits, group);
  if (l.bits == 8) return low;
  if (l.bits == 4) return low & 15U;
  const unsigned high = byte(high_plane(l.bits, group)) >> high_shift(l.bits, group);
  return (low & 15U) | (high & (l.bits == 6 ? 3U : 1U)) << 4U;
}

// Half n of those at p is row `row` of scales [n][kKeyTile].
void put_halves(const std::byte* halves, std::int64_t count, std::int64_t row, char* scales) {
  for (std::int64_t n = 0; n < count; ++n) std::memcpy(scales + 2 * (n * kKeyTile + row), halves + 2 * n, 2);
}
float half_at(const char* scales, std::int64_t n, std::int64_t row) {
  std::uint16_t half = 0;
  std::memcpy(&half, scales + 2 * (n * kKeyTile + row), sizeof half);
  return f16_to_float(half);
}

void put_block(const WeightLayout& l, const Block& block, std::int64_t row, char* record) {
  put_halves(block.halves, l.head / (2 * kKeyTile), row, record);
  for (std::int64_t r = 0; r < l.runs; ++r) {
    char* run = record + run_offset(l, r);
    put_numbers(l, block.q + r * kRun, row, run);
    char* tail = run + number_bytes(l);
    if (l.scales == WeightScales::k_offset) {
      std::uint8_t scale = 0, offset = 0;
      read_k_scales(block.scales, r, scale, offset);
      tail[row] = static_cast<char>(scale);
      tail[kKeyTile + row] = static_cast<char>(offset);
    } else if (l.scales == WeightScales::k_halves) {
      for (std::int64_t n = 0; n < 2; ++n) tail[n * kKeyTile + row] = static_cast<char>(block.scales[2 * r + n]);
    } else {
      put_halves(block.halves, l.tail / (2 * kKeyTile), row, tail);
    }
  }
}

void unpack_run(const WeightLayout& l, const char* record, std::int64_t r, std::int64_t row, float* y) {
  const char* run = record + run_offset(l, r);
  const char* tail = run + number_bytes(l);
  const float middle = static_cast<float>(1U << (l.bits - 1));
  constexpr float kNothing = -0.0F;  // added to anything, a zero of either sign too, it leaves it as it is
  const auto put = [&](std::int64_t first, std::int64_t count, float d, float zero, float m) {
    for (std::int64_t n = first; n < first + count; ++n)
      y[n] = d * (static_cast<float>(number(l, run, row, n)) - zero) + m;  // products are exact: one rounding
  };
  switch (l.scales) {
    case WeightScales::symmetric:
      return put(0, kRun, half_at(tail, 0, row), middle, kNothing);
    case WeightScales::offset:
      return put(0, kRun, half_at(tail, 0, row), 0.0F, half_at(tail, 1, row));
    case WeightScales::k_offset:
      return put(0, kRun, half_at(record, 0, row) * static_cast<float>(static_cast<std::uint8_t>(tail[row])), 0.0F,
                 -(half_at(record, 1, row) * static_cast<float>(static_cast<std::uint8_t>(tail[kKeyTile + row]))));
    case WeightScales::k_halves:
      for (std::int64_t n = 0; n < 2; ++n)
        put(16 * n, 16,
            half_at(record, 0, row) * static_cast<float>(static_cast<std::int8_t>(tail[n * kKeyTile + row])), middle,
            kNothing);
      return;
    case WeightScales::floats:
      return;
  }
}

// [rows][in] numbers to [in][kKeyTile], a few columns at a time so that what is written stays in the cache.
template <std::size_t Bytes>
void transpose(const std::byte* from, std::int64_t rows, std::int64_t in, char* to) {
  constexpr std::int64_t kAtOnce = 32, kBytes = Bytes;
  for (std::int64_t k0 = 0; k0 < in; k0 += kAtOnce)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t k = k0; k < std::min(in, k0 + kAtOnce); ++k)
        std::memcpy(to + (k * kKeyTile + row) * kBytes, from + (row * in + k) * kBytes, Bytes);
}

}  // namespace

std::int64_t weight_tile_bytes(WeightFormat format, std::int64_t in) {
  const WeightLayout l = layout_of(format);
  if (l.scales == WeightScales::floats) return checked_product("Weight: a tile", {in, kKeyTile, l.bits / 8});
  return checked_product("Weight: a tile", {in / (kRun * l.runs), record_bytes(l)});
}

void pack_weight_tile(WeightFormat format, const std::byte* data, std::int64_t out, std::int64_t in, std::int64_t n0,
                      char* tile) {
  const WeightLayout l = layout_of(format);
  const auto [numbers, bytes] = block_of(format);
  const std::int64_t row_bytes = in / numbers * bytes, rows = std::min(kKeyTile, out - n0);
  data += n0 * row_bytes;
  if (format == WeightFormat::f32) return transpose<4>(data, rows, in, tile);
  if (l.scales == WeightScales::floats) return transpose<2>(data, rows, in, tile);
  Block block;
  for (std::int64_t b = 0; b < in / numbers; ++b)
    for (std::int64_t row = 0; row < rows; ++row) {
      read_block(format, data + row * row_bytes + b * bytes, block);
      put_block(l, block, row, tile + b * record_bytes(l));
    }
}

void unpack_weight_row(WeightFormat format, const char* tile, std::int64_t in, std::int64_t row, float* y) {
  const WeightLayout l = layout_of(format);
  if (l.scales != WeightScales::floats) {
    for (std::int64_t run = 0; run < in / kRun; ++run)
      unpack_run(l, tile + run / l.runs * record_bytes(l), run % l.runs, row, y + run * kRun);
    return;
  }
  for (std::int64_t k = 0; k < in; ++k) {
    const char* p = tile + (k * kKeyTile + row) * l.bits / 8;
    if (format == WeightFormat::f32) {
      std::memcpy(y + k, p, sizeof *y);
      continue;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, p, sizeof half);
    y[k] = format == WeightFormat::f16 ? f16_to_float(half) : bf16_to_float(half);
  }
}

}  // namespace attend

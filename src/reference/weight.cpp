// What each format of weights means, number by number, and the projection with them: in double.
#include "reference/weight.hpp"

#include <vector>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

int byte_at(const std::byte* p, std::int64_t n) {
  return std::to_integer<int>(p[n]);
}
int signed_byte_at(const std::byte* p, std::int64_t n) {
  return byte_at(p, n) < 128 ? byte_at(p, n) : byte_at(p, n) - 256;
}
int bit_at(const std::byte* p, std::int64_t n) {
  return byte_at(p, n / 8) >> (n % 8) & 1;
}
double half_at(const std::byte* p, std::int64_t n) {
  return load_element(DType::f16, p, n);
}

// Number k of a block of 32 whose first half are the low nibbles.
int nibble(const std::byte* p, std::int64_t k) {
  return k < 16 ? byte_at(p, k) & 15 : byte_at(p, k - 16) >> 4;
}
// Number k of 256: each 32 bytes hold one run of 32 in their low nibbles and the next in their high ones.
int k_nibble(const std::byte* p, std::int64_t k) {
  const int byte = byte_at(p, k / 64 * 32 + k % 32);
  return k / 32 % 2 == 0 ? byte & 15 : byte >> 4;
}

// The six-bit scale and offset of run n of eight. The last four have their upper two bits above those of the first.
int k_scale(const std::byte* p, std::int64_t n) {
  return n < 4 ? byte_at(p, n) & 63 : (byte_at(p, n + 4) & 15) + (byte_at(p, n - 4) >> 6) * 16;
}
int k_offset(const std::byte* p, std::int64_t n) {
  return n < 4 ? byte_at(p, n + 4) & 63 : (byte_at(p, n + 4) >> 4) + (byte_at(p, n) >> 6) * 16;
}

// d, dmin, 12 bytes of scales: what a number q of 4 or 5 bits stands for.
WeightNumber k_value(const std::byte* block, std::int64_t k, int q) {
  const std::byte* scales = block + 4;
  return {half_at(block, 0) * k_scale(scales, k / 32) * q, -(half_at(block, 1) * k_offset(scales, k / 32))};
}

// 128 bytes of low bits, 64 of upper bits, 16 scales, d.
double q6_k(const std::byte* block, std::int64_t k) {
  const std::int64_t half = k / 128, run = k % 128 / 32, i = k % 32;
  const int low_byte = byte_at(block, half * 64 + run % 2 * 32 + i);
  const int low = run < 2 ? low_byte & 15 : low_byte >> 4;
  const int high = byte_at(block, 128 + half * 32 + i) >> (2 * run) & 3;
  return half_at(block, 104) * signed_byte_at(block, 192 + k / 16) * (low + high * 16 - 32);
}

}  // namespace

WeightNumber weight_number(WeightFormat format, const std::byte* row, std::int64_t k) {
  const auto [numbers, bytes] = block_of(format);
  const std::byte* b = row + k / numbers * bytes;
  k %= numbers;
  switch (format) {
    case WeightFormat::f32:
      return {load_element(DType::f32, b, 0), -0.0};
    case WeightFormat::f16:
      return {load_element(DType::f16, b, 0), -0.0};
    case WeightFormat::bf16:
      return {load_element(DType::bf16, b, 0), -0.0};
    case WeightFormat::q4_0:
      return {half_at(b, 0) * (nibble(b + 2, k) - 8), -0.0};
    case WeightFormat::q4_1:
      return {half_at(b, 0) * nibble(b + 4, k), half_at(b, 1)};
    case WeightFormat::q5_0:
      return {half_at(b, 0) * (nibble(b + 6, k) + bit_at(b + 2, k) * 16 - 16), -0.0};
    case WeightFormat::q5_1:
      return {half_at(b, 0) * (nibble(b + 8, k) + bit_at(b + 4, k) * 16), half_at(b, 1)};
    case WeightFormat::q8_0:
      return {half_at(b, 0) * signed_byte_at(b, 2 + k), -0.0};
    case WeightFormat::q4_k:
      return k_value(b, k, k_nibble(b + 16, k));
    case WeightFormat::q5_k:
      return k_value(b, k, k_nibble(b + 48, k) + bit_at(b + 16 + k % 32, k / 32) * 16);
    case WeightFormat::q6_k:
      return {q6_k(b, k), -0.0};
  }
  return {};
}

void project(const View& x, WeightFormat format, const std::byte* data, const std::optional<View>& bias,
             const MutableView& y) {
  const auto [numbers, bytes] = block_of(format);
  const std::int64_t in = x.dim(), row_bytes = in / numbers * bytes;
  std::vector<double> weight(static_cast<std::size_t>(in));
  for (std::int64_t o = 0; o < y.dim(); ++o) {
    for (std::int64_t k = 0; k < in; ++k)
      weight[static_cast<std::size_t>(k)] = weight_number(format, data + o * row_bytes, k).value();
    for_each_row(y.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
      double sum = bias ? load(*bias, 0, 0, 0, o) : 0.0;
      for (std::int64_t k = 0; k < in; ++k) sum += load(x, b, h, i, k) * weight[static_cast<std::size_t>(k)];
      store(y, b, h, i, o, sum);
    });
  }
}

}  // namespace attend::reference

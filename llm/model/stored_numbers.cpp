// Numbers of weights between the formats of files.
#include "llm/model/stored_numbers.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/half.hpp"
#include "llm/model/finite.hpp"

namespace attend::llm {
namespace {

constexpr std::pair<WeightFormat, std::uint32_t> kGgmlNumbers[] = {
    {WeightFormat::f32, 0},   {WeightFormat::f16, 1},   {WeightFormat::q4_0, 2}, {WeightFormat::q4_1, 3},
    {WeightFormat::q5_0, 6},  {WeightFormat::q5_1, 7},  {WeightFormat::q8_0, 8}, {WeightFormat::q4_k, 12},
    {WeightFormat::q5_k, 13}, {WeightFormat::q6_k, 14}, {WeightFormat::bf16, 30}};

// Whether these are f16 or bf16 values that are all finite, by their exponents: many times faster than making floats.
bool are_finite_halves(WeightFormat format, std::span<const std::byte> bytes) {
  if (format != WeightFormat::f16 && format != WeightFormat::bf16) return false;
  const unsigned exponent = format == WeightFormat::f16 ? 0x7C00 : 0x7F80;
  bool finite = true;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    std::uint16_t half = 0;
    std::memcpy(&half, &bytes[i], sizeof half);
    finite &= (half & exponent) != exponent;
  }
  return finite;
}

std::vector<std::byte> rounded(WeightFormat format, std::span<const float> x) {
  std::vector<std::byte> data;
  if (format == WeightFormat::f32) {
    data.resize(x.size_bytes());
    std::memcpy(data.data(), x.data(), x.size_bytes());
    return data;
  }
  if (format != WeightFormat::q8_0) {
    data.resize(2 * x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint16_t half = format == WeightFormat::f16 ? float_to_f16(x[i]) : float_to_bf16(x[i]);
      std::memcpy(&data[2 * i], &half, 2);
    }
    return data;
  }
  constexpr std::size_t kBlock = 32, kBytes = 34;  // a scale in f16, then the numbers
  data.resize(x.size() / kBlock * kBytes);
  for (std::size_t b = 0; b < x.size() / kBlock; ++b) {
    float most = 0;
    for (std::size_t i = 0; i < kBlock; ++i) most = std::max(most, std::abs(x[b * kBlock + i]));
    const float scale = most / 127;
    const std::uint16_t half = float_to_f16(scale);
    std::memcpy(&data[b * kBytes], &half, 2);
    for (std::size_t i = 0; i < kBlock; ++i)
      data[b * kBytes + 2 + i] =
          static_cast<std::byte>(static_cast<std::int8_t>(scale > 0 ? std::lround(x[b * kBlock + i] / scale) : 0));
  }
  return data;
}

// The smallest number that a format rounds to infinity.
float limit_of(WeightFormat format) {
  constexpr float kF16 = 65520, kBf16 = 0x1.FFp127F;
  if (format == WeightFormat::f16) return kF16;
  if (format == WeightFormat::q8_0) return 127 * kF16;  // its scale is f16
  return format == WeightFormat::bf16 ? kBf16 : std::numeric_limits<float>::infinity();
}

void check_range(WeightFormat to, const TensorPlace& place, std::span<const float> values) {
  const float limit = limit_of(to);
  const auto bad = std::ranges::find_if(values, [&](float x) { return std::abs(x) >= limit; });
  if (bad == values.end()) return;
  throw io::FileError(place.file + ": the tensor \"" + place.tensor + "\" holds " + std::to_string(*bad) +
                      ", too large for " + name(to) + ", expected less than " + std::to_string(limit));
}

}  // namespace

bool is_plain(WeightFormat format) {
  return format == WeightFormat::f32 || format == WeightFormat::f16 || format == WeightFormat::bf16;
}

std::uint32_t ggml_number(WeightFormat format) {
  return std::ranges::find(kGgmlNumbers, format, &std::pair<WeightFormat, std::uint32_t>::first)->second;
}

WeightFormat format_of_ggml(std::uint32_t number) {
  return std::ranges::find(kGgmlNumbers, number, &std::pair<WeightFormat, std::uint32_t>::second)->first;
}

std::vector<float> floats_of(const StoredNumbers& numbers) {
  const auto& [format, bytes] = numbers;
  const WeightBlock block = block_of(format);
  const std::int64_t blocks = std::ssize(bytes) / block.bytes;
  std::vector<float> floats(static_cast<std::size_t>(blocks * block.numbers));
  if (format == WeightFormat::f32) {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
  if (is_plain(format)) {
    for (std::size_t i = 0; i < floats.size(); ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, &bytes[2 * i], sizeof half);
      floats[i] = format == WeightFormat::f16 ? f16_to_float(half) : bf16_to_float(half);
    }
    return floats;
  }
  const Weight weight(format, blocks, block.numbers, bytes);  // a block a row
  for (std::int64_t b = 0; b < blocks; ++b) weight.row(b, floats.data() + b * block.numbers);
  return floats;
}

void put_numbers(const StoredNumbers& numbers, WeightFormat to, const TensorPlace& place, const io::PutBytes& put) {
  if (to == numbers.format && are_finite_halves(to, numbers.bytes)) return put(numbers.bytes);
  const std::vector<float> values = floats_of(numbers);
  check_finite(place.file, place.tensor, values);
  if (to == numbers.format) return put(numbers.bytes);
  check_range(to, place, values);
  put(rounded(to, values));
}

}  // namespace attend::llm

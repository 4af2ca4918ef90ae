// Random weights of every format as a file would hold them, with what their numbers are.
#include "support/weights.hpp"

#include "base/elements.hpp"
#include "base/random.hpp"

namespace attend::test {
namespace {

// Where a block has its f16 scales, in halves from its start; then how many there are.
struct ScalesAt {
  std::int64_t first, count;
};
ScalesAt scales_at(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
      return {0, 2};
    case WeightFormat::q6_k:
      return {104, 1};
    default:
      return {0, 1};
  }
}

}  // namespace

TestWeight::TestWeight(WeightFormat format_, std::int64_t out_, std::int64_t in_, std::uint64_t key, Scales scales)
    : format(format_), out(out_), in(in_) {
  const auto [block, block_bytes] = block_of(format);
  const std::int64_t blocks = out * in / block;
  bytes.resize(static_cast<std::size_t>(blocks * block_bytes));
  for (std::size_t n = 0; n < bytes.size(); ++n) bytes[n] = static_cast<std::byte>(256 * uniform(key, n));
  const DType dtype = format == WeightFormat::f32    ? DType::f32
                      : format == WeightFormat::bf16 ? DType::bf16
                                                     : DType::f16;
  const auto [first, count] = scales_at(format);
  for (std::int64_t b = 0; scales == Scales::sensible && b < blocks; ++b)
    for (std::int64_t n = 0; n < count; ++n)
      store_element(dtype, bytes.data() + b * block_bytes, first + n,
                    0.05 * normal(key + 1, static_cast<std::uint64_t>(2 * b + n)));
  const std::int64_t row_bytes = in / block * block_bytes;
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t k = 0; k < in; ++k)
      numbers.push_back(reference::weight_number(format, bytes.data() + o * row_bytes, k));
}

}  // namespace attend::test

// Random weights of every format as a file would hold them, with what their numbers are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attend/weight.hpp"
#include "reference/weight.hpp"

namespace attend::test {

inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::f32,  WeightFormat::f16,  WeightFormat::bf16,
                                                  WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0,
                                                  WeightFormat::q5_1, WeightFormat::q8_0, WeightFormat::q4_k,
                                                  WeightFormat::q5_k, WeightFormat::q6_k};

struct TestWeight {
  enum class Scales { sensible, any_bits };

  TestWeight(WeightFormat format, std::int64_t out, std::int64_t in, std::uint64_t key,
             Scales scales = Scales::sensible);

  bool quantised() const { return block_of(format).numbers > 1; }
  Weight make() const { return {format, out, in, bytes}; }

  WeightFormat format;
  std::int64_t out, in;
  std::vector<std::byte> bytes;  // any, but for scales (and plain numbers), which are of a sensible size
  std::vector<reference::WeightNumber> numbers;  // [out, in]
};

}  // namespace attend::test

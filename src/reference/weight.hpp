// What each format of weights means, number by number, and the projection with them: in double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "attend/weight.hpp"

namespace attend::reference {

// Number k of a row of weights whose blocks begin at `row` is scaled + offset. Both and their sum are exact in double.
struct WeightNumber {
  double scaled, offset;
  double value() const { return scaled + offset; }
};
WeightNumber weight_number(WeightFormat format, const std::byte* row, std::int64_t k);

// y = x . weight^T + bias, x not rounded; `data` holds [y.dim(), x.dim()] numbers.
void project(const View& x, WeightFormat format, const std::byte* data, const std::optional<View>& bias,
             const MutableView& y);

}  // namespace attend::reference

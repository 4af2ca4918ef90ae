// Rows of experts: gathered, weighed and summed.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"

namespace attend::llm {

// to[n] = from[tokens[n]], rows of one dtype.
void gather_rows(const View& from, const std::int32_t* tokens, const MutableView& to);
// to[tokens[n]] = from[n]; no token twice.
void scatter_rows(const View& from, const std::int32_t* tokens, const MutableView& to);

// sums[tokens[n]] += weights[n] * rows[n]; no token twice. Null tokens: row n; null weights: ones. sums are f32 or f64.
void add_rows_at(const View& rows, const std::int32_t* tokens, const View* weights, const MutableView& sums);

// With y = weights[n] * (W . active[n]) and dactive = W^T . dy: weights become their gradients, and both rows are
// multiplied by what the weight was.
void weigh_rows(const MutableView& active, const MutableView& dactive, const MutableView& weights);

}  // namespace attend::llm

// The attention variants that `attend variants` measures: how each is run, what a decoder keeps, what it is compared
// with.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::cli {

struct VariantInputs {
  Tensor q, k, v;  // [1, H, L, D], the made-up text of the demo
  Tensor shared;   // q scaled to unit length: the keys where queries and keys are one
  Tensor x;        // [1, 1, L, H * D]: the queries of all heads side by side, for whole layers
  std::int64_t length() const { return q.shape()[2]; }
};

struct Variant {
  std::string name;
  std::int64_t longest = 0;  // 0: no limit; else it takes too long beyond
  // Gets ready for these inputs; the call it returns writes out [1, H, L, D], and is what is timed.
  std::function<std::function<void(MutableView out)>(const VariantInputs&)> prepare;
  // Bytes that a decoder keeps after so many tokens; nothing where it cannot decode token by token.
  std::function<std::optional<double>(std::int64_t tokens)> cache_bytes;
  std::size_t against = 0;  // the place in the list of what it is measured by
};

// Exact attention comes first.
std::vector<Variant> variant_list(std::int64_t heads, std::int64_t dim);

VariantInputs variant_inputs(std::int64_t heads, std::int64_t dim, std::int64_t length, std::uint64_t seed);

}  // namespace attend::cli

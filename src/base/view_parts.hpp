// Parts of views: slices along a dimension, heads beside one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attend/tensor.hpp"

namespace attend {

// Elements [first, first + count) of one dimension.
template <class Void>
BasicView<Void> slice(BasicView<Void> x, std::size_t dimension, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  // An empty view may have no memory to count in.
  if (first != 0) x.data = static_cast<Byte*>(x.data) + first * x.strides[dimension] * size_of(x.dtype);
  x.shape[dimension] = count;
  return x;
}
template <class Void>
BasicView<Void> head_of(const BasicView<Void>& x, std::int64_t h) {  // [B, 1, L, D]
  return slice(x, 1, h, 1);
}
template <class Void>
BasicView<Void> slice_length(const BasicView<Void>& x, std::int64_t first, std::int64_t count) {
  return slice(x, 2, first, count);
}
template <class Void>
BasicView<Void> part_of(const BasicView<Void>& x, std::int64_t first, std::int64_t count) {  // of every row
  return slice(x, 3, first, count);
}

// [B, 1, L, heads * dim] as [B, heads, L, dim].
template <class Void>
BasicView<Void> split_heads(const BasicView<Void>& x, std::int64_t heads) {
  const std::int64_t dim = x.dim() / heads;
  return {x.dtype,
          x.data,
          {x.batch(), heads, x.length(), dim},
          {x.strides[0], dim * x.strides[3], x.strides[2], x.strides[3]}};
}

}  // namespace attend

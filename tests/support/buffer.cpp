// Layouts and their gaps.
#include "support/buffer.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/elements.hpp"

namespace attend::test {
namespace {

// Gaps after each row, head and batch; flavours differ in element stride and in which strides run backwards.
Strides odd_strides(const Shape& shape, int flavour) {
  const std::int64_t element = flavour % 2 == 0 ? 2 : 1;
  const std::int64_t row = shape[3] * element + 3;
  const std::int64_t head = shape[2] * row + 5;
  const std::int64_t batch = shape[1] * head + 7;
  switch (flavour % 4) {
    case 0:
      return {batch, head, -row, element};
    case 1:
      return {batch, -head, row, element};
    case 2:
      return {-batch, head, row, -element};
    default:
      return {batch, head, -row, -element};
  }
}

}  // namespace

Strides layout_strides(const Shape& shape, Layout layout, int flavour) {
  if (layout == Layout::bhld) return contiguous_strides(shape);
  return layout == Layout::blhd ? length_major_strides(shape) : odd_strides(shape, flavour);
}

Buffer::Buffer(DType dtype, const Shape& shape, Layout layout, int flavour)
    : Buffer(dtype, shape, layout_strides(shape, layout, flavour)) {}

Buffer::Buffer(DType dtype, const Shape& shape, const Strides& strides) {
  std::int64_t before = 0;  // elements below the first one
  std::int64_t reach = 1;
  for (std::size_t d = 0; d < 4; ++d) {
    const std::int64_t step = std::max<std::int64_t>(0, shape[d] - 1) * std::abs(strides[d]);
    reach += step;
    if (strides[d] < 0) before += step;
  }
  memory_.assign(static_cast<std::size_t>(reach * size_of(dtype)), std::byte{0xFF});
  view_ = {dtype, memory_.data() + before * size_of(dtype), shape, strides};
}

void Buffer::set(std::int64_t offset, double value) {
  store_element(view_.dtype, view_.data, offset, value);
}

std::vector<double> Buffer::read() const {
  return to_doubles(view_);
}

bool Buffer::gaps_are_whole() const {
  const std::int64_t size = size_of(view_.dtype);
  std::vector<bool> element(memory_.size());
  const std::int64_t base = static_cast<const std::byte*>(view_.data) - memory_.data();
  for_each([&](std::int64_t offset) {
    for (std::int64_t n = 0; n < size; ++n) element[static_cast<std::size_t>(base + offset * size + n)] = true;
  });
  for (std::size_t n = 0; n < memory_.size(); ++n) {
    if (!element[n] && memory_[n] != std::byte{0xFF}) return false;
  }
  return true;
}

Tensor to_tensor(DType dtype, const Shape& shape, const std::vector<float>& values) {
  Tensor tensor(dtype, shape);
  for (std::size_t n = 0; n < values.size(); ++n) {
    store_element(dtype, tensor.view().data, static_cast<std::int64_t>(n), static_cast<double>(values[n]));
  }
  return tensor;
}

std::vector<double> to_doubles(const View& view) {
  std::vector<double> values;
  const auto [B, H, L, D] = view.shape;
  values.reserve(static_cast<std::size_t>(B * H * L * D));
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t i = 0; i < L; ++i) {
        for (std::int64_t d = 0; d < D; ++d) values.push_back(load(view, b, h, i, d));
      }
    }
  }
  return values;
}

}  // namespace attend::test

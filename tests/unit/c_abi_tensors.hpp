// Tensors for the tests of the C ABI: drawn at random, seen from C, compared to the bit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "abi/abi.hpp"
#include "attend/tensor.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"

namespace attend::test {

inline Tensor drawn(std::uint64_t key, const Shape& shape, DType dtype = DType::f32) {
  Tensor tensor(dtype, shape);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    store_element(dtype, tensor.view().data, i, normal(key, static_cast<std::uint64_t>(i)));
  }
  return tensor;
}

// The C view of a tensor's own memory.
inline attend_tensor seen(Tensor& tensor) {
  return abi::tensor_of(tensor.view());
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes())) == 0;
}

inline bool same_bits(const attend_tensor& a, const Tensor& b) {
  const Shape shape{a.shape[0], a.shape[1], a.shape[2], a.shape[3]};
  return static_cast<DType>(a.dtype) == b.dtype() && shape == b.shape() &&
         std::memcmp(a.data, b.view().data, static_cast<std::size_t>(b.bytes())) == 0;
}

inline testing::AssertionResult is_ok(attend_status status) {
  if (status == ATTEND_OK) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "status " << status << ": " << attend_last_error();
}

// Bad arguments are told, with a text that holds `words`.
inline testing::AssertionResult is_refused(attend_status status, const char* words) {
  if (status == ATTEND_INVALID_ARGUMENT && std::strstr(attend_last_error(), words) != nullptr) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "status " << status << ", \"" << attend_last_error() << "\" without \"" << words
                                     << "\"";
}

}  // namespace attend::test

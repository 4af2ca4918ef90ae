// Contiguous problems and comparisons bit by bit.
#include "support/tensors.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/elements.hpp"
#include "support/buffer.hpp"

namespace attend::test {
namespace {

const void* element(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  return static_cast<const std::byte*>(x.data) + offset_of(x.strides, b, h, i, d) * size_of(x.dtype);
}

}  // namespace

Tensors::Tensors(const Problem& problem, DType dtype)
    : q(to_tensor(dtype, problem.q_shape(), problem.q)),
      k(to_tensor(dtype, problem.k_shape(), problem.k)),
      v(to_tensor(dtype, problem.v_shape(), problem.v)),
      dout(to_tensor(dtype, problem.out_shape(), problem.dout)),
      out(dtype, problem.out_shape()),
      lse(dtype == DType::f64 ? DType::f64 : DType::f32, problem.lse_shape()),
      dq(dtype, problem.q_shape()),
      dk(dtype, problem.k_shape()),
      dv(dtype, problem.v_shape()) {
  if (!problem.bias.empty()) dbias = Tensor(lse.dtype(), problem.bias_shape);
  if (!problem.sinks.empty()) dsinks = Tensor(lse.dtype(), {1, problem.info.H, 1, 1});
  // What is not written shows as NaN.
  for (Tensor* result : {&out, &lse, &dq, &dk, &dv, &dbias, &dsinks}) {
    if (!result->empty()) std::memset(result->view().data, 0xFF, static_cast<std::size_t>(result->bytes()));
  }
}

void Tensors::forward(const AttentionOptions& options) {
  attention(q, k, v, out, options, {.lse = lse.view(), .weights = {}});
}

void Tensors::backward(const AttentionOptions& options) {
  AttentionGradients gradients = {dq, dk, dv, {}, {}};
  if (!dbias.empty()) gradients.dbias = dbias.view();
  if (!dsinks.empty()) gradients.dsinks = dsinks.view();
  attention_backward(dout, q, k, v, out, lse, gradients, options);
}

std::string Tensors::difference(const Tensors& other) const {
  const std::pair<const char*, const Tensor Tensors::*> results[] = {
      {"out", &Tensors::out}, {"lse", &Tensors::lse},     {"dq", &Tensors::dq},        {"dk", &Tensors::dk},
      {"dv", &Tensors::dv},   {"dbias", &Tensors::dbias}, {"dsinks", &Tensors::dsinks}};
  for (const auto& [name, result] : results) {
    if (!same_bits(this->*result, other.*result)) return name;
  }
  return "";
}

bool same_row(const View& x, const View& y, std::int64_t b, std::int64_t h, std::int64_t i) {
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    const auto size = static_cast<std::size_t>(size_of(x.dtype));
    if (std::memcmp(element(x, b, h, i, d), element(y, b, h, i, d), size) != 0) return false;
  }
  return true;
}

bool same_bits(const View& x, const View& y) {
  if (x.shape != y.shape || x.dtype != y.dtype) return false;
  for (std::int64_t b = 0; b < x.batch(); ++b) {
    for (std::int64_t h = 0; h < x.heads(); ++h) {
      for (std::int64_t i = 0; i < x.length(); ++i) {
        if (!same_row(x, y, b, h, i)) return false;
      }
    }
  }
  return true;
}

bool row_is(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, double value) {
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (load(x, b, h, i, d) != value) return false;
  }
  return true;
}

bool row_has_nan(const View& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (std::isnan(load(x, b, h, i, d))) return true;
  }
  return false;
}

void set_row(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, double value) {
  for (std::int64_t d = 0; d < x.dim(); ++d) store(x, b, h, i, d, value);
}

void set_all(const MutableView& x, double value) {
  for (std::int64_t b = 0; b < x.batch(); ++b) {
    for (std::int64_t h = 0; h < x.heads(); ++h) {
      for (std::int64_t i = 0; i < x.length(); ++i) set_row(x, b, h, i, value);
    }
  }
}

template <class AnyView>
AnyView slice(AnyView x, std::size_t dimension, std::int64_t first, std::int64_t count) {
  const std::int64_t bytes = first * x.strides[dimension] * size_of(x.dtype);
  x.data = const_cast<std::byte*>(static_cast<const std::byte*>(x.data)) + bytes;
  x.shape[dimension] = count;
  return x;
}
template View slice(View x, std::size_t dimension, std::int64_t first, std::int64_t count);
template MutableView slice(MutableView x, std::size_t dimension, std::int64_t first, std::int64_t count);

}  // namespace attend::test

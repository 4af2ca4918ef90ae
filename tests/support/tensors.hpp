// One problem in contiguous tensors of a dtype, ready to be changed, run and compared bit by bit.
#pragma once

#include <cstdint>
#include <string>

#include "attend/attention.hpp"
#include "support/problem.hpp"

namespace attend::test {

struct Tensors {
  Tensors(const Problem& problem, DType dtype);

  void forward(const AttentionOptions& options);
  void backward(const AttentionOptions& options);
  void run(const AttentionOptions& options) {
    forward(options);
    backward(options);
  }
  // "" or the name of the first result that differs in any bit.
  std::string difference(const Tensors& other) const;

  Tensor q, k, v, dout;
  Tensor out, lse, dq, dk, dv;
  Tensor dbias, dsinks;  // empty without
};

// Bit by bit. A row is all of [b, h, i].
bool same_bits(const View& x, const View& y);
bool same_row(const View& x, const View& y, std::int64_t b, std::int64_t h, std::int64_t i);
bool row_is(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, double value);
bool row_has_nan(const View& x, std::int64_t b, std::int64_t h, std::int64_t i);
void set_row(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, double value);
void set_all(const MutableView& x, double value);

// One batch, head or query range of a view.
template <class AnyView>
AnyView slice(AnyView x, std::size_t dimension, std::int64_t first, std::int64_t count);

}  // namespace attend::test

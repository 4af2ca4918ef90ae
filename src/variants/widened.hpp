// Anyone's views as f32: in place where they lie so, else as a copy; results are rounded once, at the end.
#pragma once

#include <cstdint>
#include <optional>

#include "attend/tensor.hpp"
#include "ops/matmul.hpp"

namespace attend {

// The elements of a view of any dtype but f64, to be read as floats.
class WidenedInput {
 public:
  explicit WidenedInput(const View& x);
  const View& view() const { return view_; }
  FloatMatrix matrix(std::int64_t b, std::int64_t h) const;  // the rows of one head
  const float* row(std::int64_t b, std::int64_t h, std::int64_t i) const;
  std::int64_t step() const { return view_.strides[3]; }  // from one element of a row to the next

 private:
  Tensor storage_;
  View view_;
};

// Where floats go whose place has any dtype but f64. Nothing may be there until store(), which rounds.
class WidenedResult {
 public:
  explicit WidenedResult(const MutableView& y);
  const MutableView& view() const { return view_; }
  FloatMatrix matrix(std::int64_t b, std::int64_t h) const;
  void store() const;

 private:
  MutableView target_;
  Tensor storage_;
  MutableView view_;
};

void fill_zero(const MutableView& y);  // any dtype

}  // namespace attend

// What a MultiHeadAttention may compute between its projections instead of softmax attention.
#pragma once

#include <string>
#include <vector>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

struct NamedTensor {
  std::string name;
  MutableView value;
};

// One call of forward() and one of backward() see the same shapes and parameters. An object may serve several layers
// and threads at once as long as nobody writes its parameters.
class ATTEND_API InnerAttention {
 public:
  InnerAttention() = default;
  InnerAttention(const InnerAttention&) = delete;
  InnerAttention& operator=(const InnerAttention&) = delete;
  virtual ~InnerAttention() = default;

  virtual const char* name() const = 0;  // "linear attention": what errors call it

  // Learned values of its own, in the memory of this object.
  virtual std::vector<NamedTensor> parameters() { return {}; }

  // q [B, H, M, D], k [B, Hk, N, D], v [B, Hk, N, E] -> out [B, H, M, E]. With `saved`, what backward needs goes there.
  virtual void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const = 0;

  // `out` and `saved` as forward gave them. Overwrites dq, dk and dv; returns the gradients of parameters(), in their
  // order, as f32 (f64 for f64).
  virtual std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                                       MutableView dq, MutableView dk, MutableView dv) const = 0;
};

}  // namespace attend

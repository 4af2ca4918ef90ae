// The kernels that work row by row between the matrix products: floats side by side, at addresses of floats.
#pragma once

#include <cstdint>

#include "attend/activation.hpp"
#include "attend/tensor.hpp"

namespace attend {

inline constexpr std::int64_t kRowsTogether = 16;

struct RopeRows {
  const float* x;
  float* y;  // may be x
  std::int64_t count, size;
};

struct RowKernels {
  // n elements of any dtype but f64, `stride` elements apart and at any address, to floats and back.
  void (*load)(DType dtype, const void* from, std::int64_t stride, std::int64_t n, float* to);
  void (*store)(DType dtype, void* to, std::int64_t stride, std::int64_t n, const float* from);

  // At most kRowsTogether rows without gaps (rms_norm), or one, whose sums are made in double. y may be x, and dx may
  // be dy; dweight[n] and dbias[n] (unless null) gain these rows' part. `plus`, unless null, is added to dx, and may be
  // it.
  void (*rms_norm)(const float* x, std::int64_t rows, const float* weight, double eps, std::int64_t n, float* y);
  void (*rms_norm_backward)(const float* dy, const float* x, std::int64_t rows, const float* weight, double eps,
                            std::int64_t n, const float* plus, float* dx, double* dweight);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, double eps, std::int64_t n, float* y);
  void (*layer_norm_backward)(const float* dy, const float* x, const float* weight, double eps, std::int64_t n,
                              float* dx, double* dweight, double* dbias);

  // Elementwise, f32 or bf16 (the activations); a result may be any of the inputs. `up` null: not gated, and dup is not
  // written; y may be null.
  void (*activation)(Activation kind, DType dtype, const void* gate, const void* up, std::int64_t n, void* y);
  void (*activation_backward)(Activation kind, DType dtype, const void* dy, const void* gate, const void* up,
                              std::int64_t n, void* dgate, void* dup, void* y);
  void (*add)(const float* x, const float* y, std::int64_t n, float* z);
  void (*accumulate)(const float* x, std::int64_t n, double* sums);  // sums += x
  // Elements `first` and on of the tensor: see element_dropout_bits in base/random.hpp.
  void (*dropout)(const float* x, std::int64_t n, std::uint64_t first, std::uint64_t seed, std::uint32_t threshold,
                  float scale, float* y);

  // The first 2 * pairs numbers of each row, rotated by the angles of cosines[pairs] and sines[pairs], or back; the
  // others are copied.
  void (*rope)(const RopeRows& rows, const float* cosines, const float* sines, std::int64_t pairs, bool interleaved,
               bool backward);

  // The largest of x, and the sum over x of e^(x - largest).
  void (*exp_sum)(const float* x, std::int64_t n, float* largest, double* sum);
  // scale * e^(x - largest) as f32 or bf16, which may be written over x.
  void (*scaled_exp)(const float* x, std::int64_t n, float largest, float scale, DType dtype, void* y);
};

}  // namespace attend

// Weights of projections, kept in the format of their file and laid out once for the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// Plain numbers, and ggml's blocks of quantised ones.
enum class WeightFormat { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

ATTEND_API const char* name(WeightFormat format);  // "f32", "q4_1", ...
struct WeightBlock {
  std::int64_t numbers, bytes;  // so many numbers of a row in so many bytes
};
ATTEND_API WeightBlock block_of(WeightFormat format);

// A matrix [out, in]. Quantised ones stay quantised in memory; move-only.
class ATTEND_API Weight {
 public:
  Weight();  // [0, 0]
  // `data` holds `out` rows of `in` numbers one after the other, at any alignment; it is copied. `in` must be a whole
  // number of blocks, and the size must fit: else InvalidArgument.
  Weight(WeightFormat format, std::int64_t out, std::int64_t in, std::span<const std::byte> data);
  ~Weight();
  Weight(Weight&&) noexcept;
  Weight& operator=(Weight&&) noexcept;

  WeightFormat format() const;
  std::int64_t out() const;
  std::int64_t in() const;
  std::int64_t bytes() const;  // of memory held: about those of the file, with `out` rounded up to a multiple of 64

  // Row `r` as floats, exactly as the format defines them: y[0 .. in). An embedding is such a row.
  void row(std::int64_t r, float* y) const;

  Weight dequantised() const;  // the same numbers as f32

 private:
  friend struct WeightAccess;
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes that a Weight of this shape would hold, without making one: for planning memory.
ATTEND_API std::int64_t weight_bytes(WeightFormat format, std::int64_t out, std::int64_t in);

struct Projection {
  const Weight* weight;
  std::optional<View> bias{};  // [1, 1, 1, out], f32
  MutableView y{};             // [1, 1, L, out], f32, elements of a row side by side
};

// y = x . weight^T + bias for several weights on the same x [1, 1, L, in], f32, in one pass over the threads.
// Floats are multiplied as floats. Against a quantised weight each run of 32 numbers of x is rounded to int8 with a
// scale of its own: off by at most 1/254 of the largest of the run; a row of x with a NaN or an inf gives a row of NaN.
// A row of y depends on that row of x alone, to the bit: not on how many rows there are, nor on the threads.
ATTEND_API void project(View x, std::span<const Projection> projections);

}  // namespace attend

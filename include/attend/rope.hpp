// Rotary position embedding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

enum class RopeStyle {
  half_split,   // pairs (i, i + R/2): Llama, Qwen, MiniMind 2 and 3
  interleaved,  // pairs (2i, 2i + 1): MiniMind v1, GPT-J
};

// How a model stretches its rotations beyond the length it was trained with, as the configs of published models say it.
struct RopeScaling {
  enum class Kind {
    none,
    linear,  // every pair rotates `factor` times slower
    llama3,  // slow pairs (longer than original_length / low_frequency a rotation) do, fast ones keep their speed
    yarn,    // the same by a ramp over the pairs, and q and k are multiplied by an attention factor
  };
  Kind kind = Kind::none;
  double factor = 1;
  std::int64_t original_length = 0;              // llama3, yarn: what the model was trained with
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;  // yarn: rotations over original_length at which the ramp begins and ends
  bool truncate = true;                  // yarn: the ramp begins and ends at whole pairs
  // yarn: what q and k are multiplied by. Default: m(mscale) / m(mscale_all_dim) where both are given, else m(1), with
  // m(s) = 0.1 s ln(factor) + 1 for a factor above 1, else 1.
  std::optional<double> attention_factor{};
  double mscale = 0, mscale_all_dim = 0;  // yarn, as DeepSeek has them; 0: not given
};

// How fast each pair rotates, and what the result is multiplied by.
struct RopeFrequencies {
  std::vector<double> per_position;  // angle of pair i per position, [rotary_dim / 2]
  double magnitude = 1;
};
ATTEND_API RopeFrequencies rope_frequencies(std::int64_t rotary_dim, double theta, const RopeScaling& scaling = {});

struct RopeOptions {
  RopeStyle style = RopeStyle::half_split;
  double theta = 10000.0;
  std::int64_t rotary_dim = 0;            // R: the first R elements of each row are rotated, R even; 0 means all of dim
  std::vector<std::int64_t> positions{};  // of each row along length; empty: first_position, first_position + 1, ...
  std::int64_t first_position = 0;
  RopeScaling scaling{};
};

// The cosines and sines of some positions: made once for all heads and layers whose rows stand there.
class ATTEND_API RopeTable {
 public:
  RopeTable() = default;  // of no position
  // What rope() makes of these options for rows of `dim` numbers at `length` positions.
  RopeTable(std::int64_t dim, std::int64_t length, const RopeOptions& options = {});
  RopeTable(const RopeFrequencies& frequencies, RopeStyle style, std::span<const std::int64_t> positions);

  // A new table in this one's memory.
  void fill(const RopeFrequencies& frequencies, RopeStyle style, std::span<const std::int64_t> positions);

  RopeStyle style() const { return style_; }
  std::int64_t length() const { return static_cast<std::int64_t>(positions_.size()); }
  std::int64_t pairs() const { return static_cast<std::int64_t>(frequencies_.per_position.size()); }
  const RopeFrequencies& frequencies() const { return frequencies_; }
  std::span<const std::int64_t> positions() const { return positions_; }
  const float* cosines() const { return cosines_.data(); }  // [length, pairs], times the magnitude
  const float* sines() const { return sines_.data(); }

 private:
  RopeStyle style_ = RopeStyle::half_split;
  RopeFrequencies frequencies_;
  std::vector<std::int64_t> positions_;
  std::vector<float> cosines_, sines_;
};

// Rotates pair i of the row at position p by the angle p * theta^(-2i/R), or as the scaling says. y may be x.
ATTEND_API void rope(View x, MutableView y, const RopeOptions& options = {});
// The same bits with a table: row i of x stands at its position first + i. What lies behind the table's pairs is
// copied.
ATTEND_API void rope(View x, MutableView y, const RopeTable& table, std::int64_t first = 0);

// The gradient is the rotation backwards (times the same magnitude). dx may be dy.
ATTEND_API void rope_backward(View dy, MutableView dx, const RopeOptions& options = {});
ATTEND_API void rope_backward(View dy, MutableView dx, const RopeTable& table, std::int64_t first = 0);

}  // namespace attend

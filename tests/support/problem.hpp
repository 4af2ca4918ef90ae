// The inputs and options of a case: drawn once, shared by every dtype and layout.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "attend/attention.hpp"
#include "support/cases.hpp"

namespace attend::test {

// A standard normal value rounded to a number that f32, bf16 and f16 all hold exactly.
float grid_normal(std::uint64_t key, std::uint64_t index);

// Contiguous values in [batch, heads, length, dim] order; the options' views point into this object.
class Problem {
 public:
  explicit Problem(const Case& c);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  Shape q_shape() const { return {info.B, info.H, info.M, info.D}; }
  Shape k_shape() const { return {info.B, info.Hk, info.N, info.D}; }
  Shape v_shape() const { return {info.B, info.Hk, info.N, info.E}; }
  Shape out_shape() const { return {info.B, info.H, info.M, info.E}; }
  Shape lse_shape() const { return {info.B, info.H, info.M, 1}; }

  // As `dtype` wants them: a bias in that dtype (or f32), slopes and sinks in f32.
  const AttentionOptions& options(DType dtype) const;
  double scale() const;
  // Another mask than the case's, before anything is computed.
  void set_mask(const Mask& mask);
  // Whether the mask of the case lets query i see key j (the reference decides); computed at the first call.
  const std::uint8_t* visible_row(std::int64_t b, std::int64_t h, std::int64_t i) const;
  // ALiBi's |p(i) - j|, positions counting within segments.
  double distance(std::int64_t i, std::int64_t j) const;

  Case info;  // dtype and layout are not used
  std::vector<float> q, k, v, dout;
  std::vector<float> bias, slopes, sinks;
  Shape bias_shape{};

 private:
  void make_mask();
  void make_score_rules();
  void make_visible() const;

  AttentionOptions options_[4];  // by dtype
  std::vector<std::uint16_t> bias_f16_, bias_bf16_;
  std::vector<double> bias_f64_;
  std::vector<std::uint8_t> dense_;
  mutable std::once_flag visible_made_;  // not for benchmarks: it is a matrix
  mutable std::vector<std::uint8_t> visible_;
  mutable std::int64_t visible_heads_ = 1;
  bool own_mask_ = false;
};

// The rules of RuleKind, generic over float and double.
ScoreRule make_rule(RuleKind kind);

}  // namespace attend::test

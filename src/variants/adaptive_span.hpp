// One head's span as options of attention(): a window that ends where the span does, and log m as a score rule.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/adaptive_span.hpp"
#include "attend/attention.hpp"

namespace attend {

class HeadSpan {
 public:
  // z clamped already; B, M, N of the call.
  HeadSpan(double z, const AdaptiveSpanOptions& options, std::int64_t B, std::int64_t M, std::int64_t N);

  std::int64_t reach() const { return reach_; }  // the largest distance with m > 0

  // For a call of this one head. Point at this object. With `dz`, room for slots(): backward adds ds * d log m / dz of
  // each key tile to a slot of its own, so that the sums do not depend on who works when.
  AttentionOptions attention_options(double* dz = nullptr) const;
  std::int64_t slots() const { return B_ * tiles_; }

 private:
  template <class Tile, class F>
  void for_ramp(const Tile& tile, const F& f) const;
  std::int64_t position(std::int64_t b) const;  // of query 0
  template <class T>
  void add_log(const ScoreTile<T>& tile) const;
  template <class T>
  void add_slopes(const ScoreTile<T>& grad, double* dz) const;

  double z_;
  const AdaptiveSpanOptions& options_;
  std::int64_t B_, M_, N_, tiles_;
  std::int64_t reach_, inner_;  // m = 1 up to distance inner_, 0 < m < 1 from there to reach_
  // Of the distances farthest_, farthest_ - 1, ..., inner_ + 1: no pair of this call is farther apart than the first.
  std::int64_t farthest_;
  std::vector<float> logs_;     // log m
  std::vector<double> slopes_;  // d log m / dz
};

}  // namespace attend

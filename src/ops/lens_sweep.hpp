// Sweeps over the weights of one head of a call: its LSE, and what a LensSweep asks for, over all threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attend/tensor.hpp"
#include "core/lens_sweep.hpp"
#include "ops/attention_call.hpp"

namespace attend {

// One head of a call as a problem of its own, in which its rows are not mixed with those of other heads.
class HeadSweep {
 public:
  HeadSweep(const AttentionCall& call, std::int64_t b, std::int64_t h);
  HeadSweep(const HeadSweep&) = delete;
  HeadSweep& operator=(const HeadSweep&) = delete;

  // The LSE of the head's rows into lse[(b * H + h) * M + i].
  void make_lse(float* lse) const;
  // The softmax of the head's rows, for sweeps, from an LSE of [B, H, M, 1].
  void take_lse(const View& lse);

  // Rows [begin, end) against keys [sweep.first_key, sweep.end_key): one item of work, on memory of `scratch`.
  std::int64_t scratch_bytes(std::int64_t rows) const;
  void run(LensSweep sweep, std::int64_t begin, std::int64_t end, void* scratch) const;

  std::int64_t queries() const { return p_.M; }

 private:
  const AttentionCall& call_;
  std::int64_t b_, h_;
  PackedTiles packed_{};
  AttentionProblem p_;
  std::vector<SoftmaxRow> softmax_;  // [M]
};

}  // namespace attend

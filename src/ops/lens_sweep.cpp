// Sweeps over the weights of one head.
#include "ops/lens_sweep.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_plan.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"

namespace attend {

HeadSweep::HeadSweep(const AttentionCall& call, std::int64_t b, std::int64_t h)
    : call_(call), b_(b), h_(h), p_(call.problem()) {
  // Head h is given the keys of its group under its own number.
  const std::int64_t step = h / p_.G - h;
  p_.k.data = static_cast<char*>(p_.k.data) + step * p_.k.head_stride * size_of(p_.k.dtype);
  if (p_.packed) {
    packed_ = *p_.packed;
    packed_.data += step * packed_.tile_bytes;
    p_.packed = &packed_;
  }
  p_.G = 1;
  p_.no_values = true;
}

void HeadSweep::make_lse(float* lse) const {
  AttentionProblem p = p_;
  p.lse = lse;
  const KernelTable& table = kernels();
  const std::int64_t rows = std::min(p.M, RowTiles::kMostRows), splits = divide_up(p.N, kKeySplit);
  const std::int64_t items = divide_up(p.M, rows);
  const Scratch scratch(table.forward_scratch_bytes(p, rows));
  parallel_for(items, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t begin = (items - 1 - item) * rows;  // with a causal mask the longest come first
    table.forward(p, {b_, h_, begin, std::min(p.M, begin + rows)}, 0, splits, nullptr, scratch.of(worker));
  });
  call_.rule.rethrow();
}

void HeadSweep::take_lse(const View& lse) {
  constexpr float kLog2e = 1.4426950408889634F, kHidden = -__builtin_inff();
  softmax_.resize(static_cast<std::size_t>(p_.M));
  bool suffice = true;
  for (std::int64_t i = 0; i < p_.M; ++i) {
    const auto x = static_cast<float>(load(lse, b_, h_, i, 0));
    suffice &= lse_suffices(x);
    softmax_[static_cast<std::size_t>(i)] = {0, x == kHidden ? 0.0F : -x * kLog2e, 0};
  }
  if (suffice) return;
  const AttentionProblem& p = call_.problem();
  const std::int64_t count = checked_product("rows", {p.B, p.H, p.M});
  const Buffer<float> all(count);
  const Buffer<SoftmaxRow> rows(count);
  load_lse(lse, all.data());
  fill_softmax_rows(p, all.data(), false, nullptr, rows.data());
  std::copy_n(rows.data() + (b_ * p.H + h_) * p.M, p.M, softmax_.begin());
  call_.rule.rethrow();
}

std::int64_t HeadSweep::scratch_bytes(std::int64_t rows) const {
  return kernels().forward_scratch_bytes(p_, rows);
}

void HeadSweep::run(LensSweep sweep, std::int64_t begin, std::int64_t end, void* scratch) const {
  sweep.softmax = softmax_.data();
  kernels().lens(p_, {b_, h_, begin, end}, sweep, scratch);
}

}  // namespace attend

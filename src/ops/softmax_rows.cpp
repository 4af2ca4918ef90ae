// Weights from an LSE, or from a row's maximum and sum.
#include "ops/softmax_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/scratch.hpp"

namespace attend {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.4426950408889634F;
constexpr double kLog2eDouble = 1.4426950408889634;

// How far the LSE stands above that of the problem's own keys: the share that other keys have in it. Zero within a few
// roundings of f32, which forward and backward may differ by, and for what no part of a row can be, below.
double above(const AttentionProblem& p, float lse, double own) {
  const double distance = static_cast<double>(lse) - own;
  const double rounding = (p.split_bf16 ? 0x1p-13 : 0x1p-21) * std::abs(own);
  return std::isfinite(lse) && distance > rounding ? distance : 0;
}

SoftmaxRow softmax_row(const AttentionProblem& p, const RowState& state, float sink, float lse) {
  const bool has_sink = sink != kHidden;
  if (state.exact.empty()) return {0, 0, has_sink ? 1.0F : 0.0F};  // every score is -inf
  // log of the sum of exp(s - top), a sink among them; the sink may stand far above the top.
  const double top = state.exact.max, higher = has_sink ? static_cast<double>(sink) - top : 0;
  double rest = std::log(state.exact.sum);
  if (has_sink) {
    const auto merged = merge(state_of_lse(rest), state_of_lse(higher), [](double x) { return std::exp(x); });
    rest = merged.whole.max + std::log(merged.whole.sum);
  }
  const double total = rest + above(p, lse, top + rest);
  return {state.held, static_cast<float>(-total * kLog2eDouble),
          has_sink ? static_cast<float>(std::exp(higher - total)) : 0.0F};
}

}  // namespace

void load_lse(const View& lse, float* rows) {
  const bool floats = lse.dtype == DType::f32 && (lse.length() == 1 || lse.strides[2] == 1);
  for (std::int64_t b = 0; b < lse.batch(); ++b)
    for (std::int64_t h = 0; h < lse.heads(); ++h, rows += lse.length()) {
      if (floats)
        std::memcpy(rows, static_cast<const float*>(lse.data) + b * lse.strides[0] + h * lse.strides[1],
                    static_cast<std::size_t>(lse.length()) * sizeof(float));
      else
        for (std::int64_t i = 0; i < lse.length(); ++i) rows[i] = static_cast<float>(load(lse, b, h, i, 0));
    }
}

bool all_suffice(const float* lse, std::int64_t count) {
  return std::all_of(lse, lse + count, [](float x) { return lse_suffices(x); });
}

void fill_row_states(const AttentionProblem& p, const float* lse, bool as_floats, RowState* states) {
  const KernelTable& table = kernels();
  constexpr std::int64_t kRows = 96;  // at once
  const std::int64_t rows = p.M * p.G, pieces = divide_up(rows, kRows);
  const Scratch scratch(table.forward_scratch_bytes(p, kRows));
  parallel_for(p.B * p.Hk * pieces, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t head = item / pieces, begin = item % pieces * kRows;
    const RowRange range{head / p.Hk, head % p.Hk, begin, std::min(rows, begin + kRows)};
    table.row_states(p, range, lse, as_floats, states, scratch.of(worker));
  });
}

void fill_softmax_rows(const AttentionProblem& p, const float* lse, bool as_floats, const RowState* whole,
                       SoftmaxRow* rows) {
  const std::int64_t count = p.B * p.H * p.M;
  for (std::int64_t at = 0; at < count; ++at) rows[at] = {0, lse[at] == kHidden ? 0.0F : -lse[at] * kLog2e, 0};
  if (all_suffice(lse, count)) return;
  const Buffer<RowState> own(whole ? 0 : count);
  if (!whole) fill_row_states(p, lse, as_floats, own.data());
  for (std::int64_t at = 0; at < count; ++at) {
    if (lse_suffices(lse[at])) continue;
    const float sink = p.sinks ? p.sinks[at / p.M % p.H] : kHidden;
    const RowState& state = whole ? whole[at] : own[at];
    // Of whole rows the LSE has nothing more to say.
    rows[at] = softmax_row(p, state, sink, whole ? kHidden : lse[at]);
  }
}

}  // namespace attend

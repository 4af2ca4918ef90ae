// The softmax of every row as its weights are made again: from the LSE, or where that is too large from the row's
// scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attend/tensor.hpp"
#include "base/export.hpp"
#include "core/attention_problem.hpp"

namespace attend {

// The LSEs of all rows into `rows`, [B, H, M].
ATTEND_FOR_RING void load_lse(const View& lse, float* rows);
ATTEND_FOR_RING bool all_suffice(const float* lse, std::int64_t count);
inline double lse_of(const RowState& state) {
  return state.exact.max + std::log(state.exact.sum);
}

// What an LSE that suffices says of its row.
inline RowState state_of(double lse) {
  return {0, state_of_lse(lse)};
}

// The average of a row's values over some keys, `out` [E], and its LSE; where that does not suffice, `state` is its
// softmax.
template <class T>
struct RowAverage {
  T& lse;
  RowState* state;  // null only as long as no part has one
  float* out;
};
template <class T>
struct PartOfRow {
  T lse;
  const RowState* state;
  const float* out;
};

// row = that of the keys of both. A side that saw nothing changes no bit of the other.
template <class T>
void merge_into(const RowAverage<T>& row, const PartOfRow<T>& part, std::int64_t E) {
  const auto nothing = [](T lse) { return lse == -__builtin_inff(); };
  if (nothing(part.lse)) return;
  // A side's softmax where its LSE does not suffice. Two LSEs that do may make one that does not: it is as exact as
  // they were, and nothing else is known of that row.
  const auto kept = [](T lse, const RowState* state) {
    return lse_suffices(static_cast<float>(lse)) || state == nullptr || state->exact.empty() ? nullptr : state;
  };
  const RowState *row_state = kept(row.lse, row.state), *part_state = kept(part.lse, part.state);
  if (row_state == nullptr && part_state == nullptr) {
    if (row.state != nullptr) *row.state = {};
    if (nothing(row.lse)) {
      std::copy_n(part.out, E, row.out);
      row.lse = part.lse;
      return;
    }
    const auto merged = merge(state_of_lse(row.lse), state_of_lse(part.lse), [](T x) { return std::exp(x); });
    const auto keep = static_cast<float>(merged.a / merged.whole.sum);
    const auto take = static_cast<float>(merged.b / merged.whole.sum);
    for (std::int64_t e = 0; e < E; ++e) row.out[e] = row.out[e] * keep + part.out[e] * take;
    row.lse = merged.whole.max + std::log(merged.whole.sum);
    return;
  }
  const RowState before = row_state != nullptr ? *row_state : state_of(static_cast<double>(row.lse));
  const RowState more = part_state != nullptr ? *part_state : state_of(static_cast<double>(part.lse));
  const RowState whole = merge(before, more);
  const auto keep = static_cast<float>(share_of(before, whole)), take = static_cast<float>(share_of(more, whole));
  for (std::int64_t e = 0; e < E; ++e)
    row.out[e] = keep == 0 ? part.out[e] * take : row.out[e] * keep + part.out[e] * take;
  if (row.state != nullptr) *row.state = whole;
  row.lse = static_cast<T>(lse_of(whole));
}

// Fills states, [B, H, M], of the rows whose LSE does not suffice, over the keys of the problem. `as_floats`: see
// KernelTable::row_states.
ATTEND_FOR_RING void fill_row_states(const AttentionProblem& p, const float* lse, bool as_floats, RowState* states);

// weight = exp(score - LSE), where the LSE may be that of more keys than the problem has. One that is too large for
// that is believed as far as f32 holds it: where it agrees with the LSE of the problem's own keys, these are taken for
// the whole row. `whole`, [B, H, M], are the states of the whole rows where somebody knows better, or null.
void fill_softmax_rows(const AttentionProblem& p, const float* lse, bool as_floats, const RowState* whole,
                       SoftmaxRow* rows);

}  // namespace attend

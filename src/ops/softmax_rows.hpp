// The softmax of every row as its weights are made again: from the LSE, or where that is too large from the row's
// scores.
#pragma once

#include "attend/tensor.hpp"
#include "base/export.hpp"
#include "core/attention_problem.hpp"

namespace attend {

// The LSEs of all rows into `rows`, [B, H, M].
ATTEND_FOR_RING void load_lse(const View& lse, float* rows);
ATTEND_FOR_RING bool all_suffice(const float* lse, std::int64_t count);

// What an LSE that suffices says of its row.
inline RowState state_of(double lse) {
  return lse == -__builtin_inf() ? RowState{} : RowState{0, lse, 0};
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

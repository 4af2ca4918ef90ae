// The right answers of the exercises, and those of every known mistake.
#pragma once

#include "labs/exercises/exercise.hpp"

namespace attend::labs {

Array answer_softmax(const Case& c, const Mistakes& made);
Array answer_attention(const Case& c, const Mistakes& made);
Array answer_multi_head(const Case& c, const Mistakes& made);
Array answer_repeat_kv(const Case& c, const Mistakes& made);
Array answer_rope(const Case& c, const Mistakes& made);
Array answer_causal_mask(const Case& c, const Mistakes& made);
Array answer_kv_cache(const Case& c, const Mistakes& made);

}  // namespace attend::labs

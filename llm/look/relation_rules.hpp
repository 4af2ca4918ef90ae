// Rules that guess a related word from the words before it, without a model: the baselines of heads.
#pragma once

#include <bitset>
#include <cstddef>

#include "llm/train/story.hpp"

namespace attend::llm {

inline constexpr std::size_t kRelationRules = 6;
const char* rule_name(std::size_t rule);  // "the last name said", ...

using RuleHits = std::bitset<kRelationRules>;
// Which of the rules, asked at the word `query`, name the word `key`.
RuleHits rules_that_name(const Story& story, const Span& query, const Span& key);

}  // namespace attend::llm

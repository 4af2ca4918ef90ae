// What kind of head each is, by rules over its rows' statistics.
#pragma once

#include <vector>

#include "llm/look/look_state.hpp"

namespace attend::llm {

// The tokens of the probe: special ones a text begins with, random ones, the same again.
struct ProbeTokens {
  std::vector<Token> tokens;
  std::int64_t first = 0, count = 0;  // where the random ones begin, and how many there are
};
ProbeTokens probe_tokens(const ModelState& model, std::uint64_t seed);
InductionProbe read_probe(const Look::State& run, const ProbeTokens& tokens, std::uint64_t seed);

// The kinds of all heads on one of the fixed texts.
struct KindsOnText {
  const char* text;
  std::vector<HeadKind> kinds;  // [layers * heads]
};
std::vector<KindsOnText> kinds_on_texts(LookSession& session);

std::vector<HeadType> head_types(const Look::State& run, const InductionProbe& probe);

}  // namespace attend::llm

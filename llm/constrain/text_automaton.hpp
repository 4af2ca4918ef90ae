// Sets of texts as deterministic automata over Unicode characters: patterns, lengths, and both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attend::llm {

struct CharacterRange {
  char32_t low, high;  // both included
  auto operator<=>(const CharacterRange&) const = default;
};
using CharacterSet = std::vector<CharacterRange>;  // ascending, with a gap between each two; no surrogates

struct TextAutomaton {
  struct Edge {
    CharacterSet characters;
    std::int32_t to;
  };
  struct State {
    std::vector<Edge> edges{};  // no character is in two of them
    bool accepts = false;
  };
  std::vector<State> states;  // begins at the first; each can still accept. Empty: no text at all
};

// What all automata of a schema may cost together, in nodes and edges that are looked at.
class AutomatonBudget {
 public:
  static constexpr std::size_t kMaxWork = std::size_t{1} << 20;
  void spend(std::size_t work);  // InvalidArgument beyond it

 private:
  std::size_t spent_ = 0;
};

// The texts in which an ECMA-262 regular expression (with the flag u) finds a match. InvalidArgument names what is
// not supported: look-around, back references, \b, \p, and anchors other than ^ first and $ last in an alternative.
TextAutomaton text_of_pattern(std::string_view pattern, AutomatonBudget& budget);
// `max` < 0: any length from `min` on.
TextAutomaton text_of_length(std::int64_t min, std::int64_t max, AutomatonBudget& budget);
// The texts that are in both.
TextAutomaton text_of_both(const TextAutomaton& a, const TextAutomaton& b, AutomatonBudget& budget);

}  // namespace attend::llm

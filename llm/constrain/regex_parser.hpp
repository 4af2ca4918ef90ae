// Regular expressions of ECMA-262, as far as they are regular, as trees.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "llm/constrain/text_automaton.hpp"

namespace attend::llm {

struct Regex {
  enum class Kind { characters, sequence, alternatives, repeat };
  Kind kind = Kind::sequence;
  CharacterSet characters{};       // of `characters`
  std::vector<Regex> parts{};      // of the others; one of `repeat`
  std::int32_t min = 0, max = -1;  // of `repeat`; max < 0: any number
};

// All that the whole text must match: what a pattern leaves open before and after is part of the tree.
Regex parse_regex(std::string_view pattern);

const CharacterSet& all_characters();
CharacterSet inverse_of(CharacterSet characters);  // of ranges in any order

}  // namespace attend::llm

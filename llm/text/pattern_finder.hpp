// Finds where texts begin inside another, in time linear in that text (Aho and Corasick).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "llm/text/trie.hpp"

namespace attend::llm {

// Reads from the end: the patterns that begin at a place are then known when it is reached, however long they are.
class PatternFinder {
 public:
  using Node = std::uint32_t;
  struct Start {
    std::size_t place;
    Node node;  // of the longest pattern that begins there
  };

  // value >= 0, pattern not empty and at most 65,535 bytes; a pattern added twice keeps its first value.
  void add(std::string_view pattern, std::int32_t value, bool special);
  void finish();  // before the first search
  bool empty() const { return trie_.empty(); }

  // From the last to the first. Gives the steps that were taken: at most two a byte.
  std::size_t starts(std::string_view text, std::vector<Start>& starts) const;

  // The longest pattern at a start; of the special ones only those of at most `room` bytes. No bytes: none.
  Trie::Match longest(const Start& start, std::size_t room) const;

 private:
  // By node: the pattern that ends there; 0: none.
  struct Links {
    Node shorter = 0;  // the longest beginning of this one that is the end of a pattern, too
    Node found = 0,
         found_normal = 0;  // the longest pattern among this one and its beginnings, and the same of normal ones
    Node next = 0;          // after `found`
    std::uint16_t bytes = 0;
    bool special = false;
  };

  Trie trie_;  // of the patterns from back to front
  std::vector<Links> links_;
  std::array<bool, 256> last_{};  // bytes at the end of a pattern
};

}  // namespace attend::llm

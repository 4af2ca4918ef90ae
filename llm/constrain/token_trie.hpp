// A vocabulary as a trie in one array: which tokens an automaton lets through, in one walk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/llm/tokenizer.hpp"
#include "llm/constrain/byte_automaton.hpp"

namespace attend::llm {

// Does not change once it is made. Special tokens and those without bytes are not in it.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);
  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t nodes() const { return std::ssize(nodes_); }

  // Sets allowed[token] to 1 for each token that can follow in this state; the others stay. Gives the positions that
  // were looked at. Beyond kMaxVisits only tokens of one byte are tried: a grammar with so many readings of one text
  // is made to be expensive, and the answer still keeps to it.
  static constexpr std::size_t kMaxVisits = 1 << 15;
  std::size_t mark(ByteAutomaton& automaton, ByteAutomaton::State state, std::span<std::uint8_t> allowed) const;

 private:
  struct Node {
    std::uint8_t byte;
    std::int32_t depth;        // of its byte in its tokens, from 1
    std::int32_t behind;       // the first node that is not below this one
    std::int32_t first, last;  // tokens that end here, in tokens_
  };
  std::int64_t vocabulary_;
  std::int32_t deepest_ = 0;
  std::vector<Node> nodes_;  // a parent before its children
  std::vector<Token> tokens_;
};

}  // namespace attend::llm

// Lets an answer become nothing but what a grammar of JSON allows.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llm/constrain/json_grammar.hpp"
#include "llm/constrain/token_trie.hpp"

namespace attend::llm {

class GrammarConstraint : public TokenConstraint {
 public:
  // The tokenizer must outlive it.
  GrammarConstraint(std::shared_ptr<const ByteGrammar> grammar, std::shared_ptr<const TokenTrie> trie,
                    const Tokenizer& tokenizer);
  std::span<const std::uint8_t> allowed() override;
  void take(Token token) override;
  void take_bytes(std::string_view bytes);
  bool may_end() const override;
  bool must_end() const override;

 private:
  static constexpr std::size_t kMostStates = 1 << 14, kMostMasks = 32;

  std::shared_ptr<const ByteGrammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  const Tokenizer& tokenizer_;
  ByteAutomaton automaton_;
  ByteAutomaton::State state_;
  std::unordered_map<ByteAutomaton::State, std::vector<std::uint8_t>> masks_;
};

}  // namespace attend::llm

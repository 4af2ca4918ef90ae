// One state of the automaton per answer; masks are remembered, since a string's inside comes again and again.
#include "llm/constrain/grammar_constraint.hpp"

namespace attend::llm {

GrammarConstraint::GrammarConstraint(std::shared_ptr<const ByteGrammar> grammar, std::shared_ptr<const TokenTrie> trie,
                                     const Tokenizer& tokenizer)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      tokenizer_(tokenizer),
      automaton_(*grammar_),
      state_(automaton_.start()) {}

std::span<const std::uint8_t> GrammarConstraint::allowed() {
  if (automaton_.size() > kMostStates || masks_.size() > kMostMasks) {
    if (state_ != ByteAutomaton::kDead) state_ = automaton_.forget_others(state_);
    masks_.clear();
  }
  std::vector<std::uint8_t>& mask = masks_[state_];
  if (mask.empty()) {
    mask.resize(static_cast<std::size_t>(trie_->vocabulary()));
    if (state_ != ByteAutomaton::kDead) trie_->mark(automaton_, state_, mask);
  }
  return mask;
}

void GrammarConstraint::take(Token token) {
  take_bytes(tokenizer_.piece(token));
}

void GrammarConstraint::take_bytes(std::string_view bytes) {
  for (const char c : bytes)
    if (state_ != ByteAutomaton::kDead) state_ = automaton_.next(state_, static_cast<std::uint8_t>(c));
}

bool GrammarConstraint::may_end() const {
  return state_ == ByteAutomaton::kDead || automaton_.accepts(state_);
}

bool GrammarConstraint::must_end() const {
  return state_ == ByteAutomaton::kDead || (automaton_.accepts(state_) && !automaton_.continues(state_));
}

}  // namespace attend::llm

// Masks are remembered, since the inside of a string comes again and again.
#include "llm/constrain/grammar_masks.hpp"

#include "llm/runtime/memory.hpp"

namespace attend::llm {

GrammarMasks::GrammarMasks(std::shared_ptr<const ByteGrammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      automaton_(*grammar_),
      start_(automaton_->start()),
      states_{&start_} {}

GrammarMasks::~GrammarMasks() {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  const bool large = automaton_->bytes() + static_cast<std::size_t>(grammar_->nodes()) * 128 > kLarge;
  masks_ = {};
  automaton_.reset();
  grammar_.reset();
  if (large) give_back_memory();
}

void GrammarMasks::make_room() {
  const std::size_t of_masks = masks_.size() * static_cast<std::size_t>(trie_->vocabulary());
  if (of_masks <= kMaxBytes && automaton_->bytes() <= kMaxBytes) return;
  masks_ = {};
  const std::vector<ByteAutomaton::State*> kept(states_.begin(), states_.end());
  automaton_->forget_others(kept);
}

GrammarMasks::Cursor::Cursor(std::shared_ptr<GrammarMasks> masks) : masks_(std::move(masks)) {
  const std::lock_guard lock(masks_->mutex_);
  state_ = masks_->start_;
  masks_->states_.insert(&state_);
}

GrammarMasks::Cursor::~Cursor() {
  const std::lock_guard lock(masks_->mutex_);
  masks_->states_.erase(&state_);
}

std::shared_ptr<const GrammarMasks::Mask> GrammarMasks::Cursor::allowed() {
  const std::lock_guard lock(masks_->mutex_);
  masks_->make_room();
  std::shared_ptr<const Mask>& mask = masks_->masks_[state_];
  if (mask == nullptr) {
    Mask fresh(static_cast<std::size_t>(masks_->trie_->vocabulary()));
    if (state_ != ByteAutomaton::kDead) masks_->trie_->mark(*masks_->automaton_, state_, fresh);
    mask = std::make_shared<const Mask>(std::move(fresh));
  }
  return mask;
}

void GrammarMasks::Cursor::take(std::string_view bytes) {
  const std::lock_guard lock(masks_->mutex_);
  for (const char c : bytes)
    if (state_ != ByteAutomaton::kDead) state_ = masks_->automaton_->next(state_, static_cast<std::uint8_t>(c));
}

bool GrammarMasks::Cursor::accepts() const {
  const std::lock_guard lock(masks_->mutex_);
  return state_ == ByteAutomaton::kDead || masks_->automaton_->accepts(state_);
}

bool GrammarMasks::Cursor::continues() const {
  const std::lock_guard lock(masks_->mutex_);
  return state_ != ByteAutomaton::kDead && masks_->automaton_->continues(state_);
}

}  // namespace attend::llm

// One place in the shared automaton per answer.
#include "llm/constrain/grammar_constraint.hpp"

namespace attend::llm {

GrammarConstraint::GrammarConstraint(std::shared_ptr<GrammarMasks> masks, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), cursor_(std::move(masks)) {}

std::span<const std::uint8_t> GrammarConstraint::allowed() {
  mask_ = cursor_.allowed();
  return *mask_;
}

void GrammarConstraint::take(Token token) {
  take_bytes(tokenizer_.piece(token));
}

void GrammarConstraint::take_bytes(std::string_view bytes) {
  cursor_.take(bytes);
}

bool GrammarConstraint::may_end() const {
  return cursor_.accepts();
}

bool GrammarConstraint::must_end() const {
  return cursor_.accepts() && !cursor_.continues();
}

}  // namespace attend::llm

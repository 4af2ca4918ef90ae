// Holds an answer to a grammar of JSON.
#pragma once

#include <memory>
#include <string_view>

#include "llm/constrain/grammar_masks.hpp"
#include "llm/constrain/json_grammar.hpp"

namespace attend::llm {

class GrammarConstraint : public TokenConstraint {
 public:
  // The tokenizer must outlive it. Choices of one request share `masks`.
  GrammarConstraint(std::shared_ptr<GrammarMasks> masks, const Tokenizer& tokenizer);
  std::span<const std::uint8_t> allowed() override;
  void take(Token token) override;
  void take_bytes(std::string_view bytes);
  bool may_end() const override;
  bool must_end() const override;

 private:
  const Tokenizer& tokenizer_;
  GrammarMasks::Cursor cursor_;
  std::shared_ptr<const GrammarMasks::Mask> mask_;  // the last that was given
};

}  // namespace attend::llm

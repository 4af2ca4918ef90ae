// Functions that a model may call: how they are told to it, and how it is made to call them as they want to be called.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/server/call_reader.hpp"
#include "apps/server/thought_reader.hpp"
#include "io/json.hpp"
#include "llm/constrain/grammar_constraint.hpp"

namespace attend::server {

struct Tool {
  std::string name;
  std::string text;     // the whole definition as the client gave it
  io::Json parameters;  // its schema; null: none
  bool strict = false;  // a schema that cannot be kept to is refused
};

// A chat for a template that has no place for tools: they are told behind the system message, or in the first message
// where there is no place for that either, and calls and answers are text, in the words that Qwen's template uses.
std::vector<llm::Message> tools_as_text(std::vector<llm::Message> messages, const std::vector<Tool>& tools,
                                        const llm::ChatTemplate& chat);

// An answer that is calls of these tools, one to `most`, and nothing else. `opened`: the token that begins calls stands
// in the prompt already.
std::shared_ptr<const llm::ByteGrammar> calls_grammar(const std::vector<Tool>& tools, llm::ToolForm form,
                                                      std::int64_t most, bool opened);

// What the arguments of each tool have to be; null for one whose schema is not understood and not strict.
using ArgumentGrammars = std::vector<std::shared_ptr<const llm::ByteGrammar>>;
ArgumentGrammars argument_grammars(const std::vector<Tool>& tools);

// The masks of each tool's arguments, shared by the choices that write such arguments at the same time.
class ArgumentMasks {
 public:
  ArgumentMasks(ArgumentGrammars grammars, std::shared_ptr<const llm::TokenTrie> trie);
  std::shared_ptr<llm::GrammarMasks> of(std::size_t tool);  // null: any arguments
  const llm::TokenTrie& trie() const { return *trie_; }

 private:
  const ArgumentGrammars grammars_;
  const std::shared_ptr<const llm::TokenTrie> trie_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<llm::GrammarMasks>> masks_;
};

// Any answer; but where it calls a function, the arguments keep to its schema.
class ArgumentsConstraint : public llm::TokenConstraint {
 public:
  // The tokenizer must outlive it. `shown`: the special token that begins calls, or -1. `thoughts`: as the answer's.
  ArgumentsConstraint(CallReader reader, std::shared_ptr<ArgumentMasks> masks, const llm::Tokenizer& tokenizer,
                      llm::Token shown, ThoughtReader thoughts = ThoughtReader());
  std::span<const std::uint8_t> allowed() override;
  void take(llm::Token token) override;
  bool may_end() const override { return !inside_; }
  bool must_end() const override { return false; }

 private:
  void take_byte(char c);

  ThoughtReader thoughts_;
  CallReader reader_;
  const std::shared_ptr<ArgumentMasks> masks_;
  const llm::Tokenizer& tokenizer_;
  const llm::Token shown_;
  const std::vector<std::uint8_t> all_;
  std::optional<llm::GrammarConstraint> inside_;  // while arguments are written
};

}  // namespace attend::server

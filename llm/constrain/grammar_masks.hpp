// Which tokens a grammar allows: one automaton and its masks for all choices of a request.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "llm/constrain/byte_automaton.hpp"
#include "llm/constrain/token_trie.hpp"

namespace attend::llm {

// For any number of threads. What it remembers stays below about 2 * kMaxBytes.
class GrammarMasks {
 public:
  using Mask = std::vector<std::uint8_t>;  // by token: 1 if it may come
  static constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

  GrammarMasks(std::shared_ptr<const ByteGrammar> grammar, std::shared_ptr<const TokenTrie> trie);
  ~GrammarMasks();  // gives the memory of a large grammar back to the system
  GrammarMasks(const GrammarMasks&) = delete;
  GrammarMasks& operator=(const GrammarMasks&) = delete;

  // One text under way. It is known to the masks for as long as it lives, since they renumber its state.
  class Cursor {
   public:
    explicit Cursor(std::shared_ptr<GrammarMasks> masks);
    ~Cursor();
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;

    std::shared_ptr<const Mask> allowed();
    void take(std::string_view bytes);
    bool accepts() const;
    bool continues() const;

   private:
    const std::shared_ptr<GrammarMasks> masks_;
    ByteAutomaton::State state_;
  };

 private:
  void make_room();

  std::shared_ptr<const ByteGrammar> grammar_;
  const std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;  // over all below, and over the state of each cursor
  std::optional<ByteAutomaton> automaton_;
  ByteAutomaton::State start_;
  std::set<ByteAutomaton::State*> states_;
  std::unordered_map<ByteAutomaton::State, std::shared_ptr<const Mask>> masks_;
};

}  // namespace attend::llm

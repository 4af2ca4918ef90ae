// Tokens sorted by their bytes are the trie in preorder.
#include "llm/constrain/token_trie.hpp"

#include <algorithm>
#include <string_view>

namespace attend::llm {

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : vocabulary_(tokenizer.vocabulary()) {
  for (std::int64_t id = 0; id < vocabulary_; ++id) {
    const auto token = static_cast<Token>(id);
    if (!tokenizer.is_special(token) && !tokenizer.piece(token).empty()) tokens_.push_back(token);
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](Token a, Token b) {
    const std::string_view x = tokenizer.piece(a), y = tokenizer.piece(b);
    return x != y ? x < y : a < b;
  });
  std::vector<std::int32_t> path;  // nodes of the token before, by depth
  const auto leave = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[static_cast<std::size_t>(path.back())].behind = static_cast<std::int32_t>(nodes_.size());
  };
  std::string_view before;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view piece = tokenizer.piece(tokens_[i]);
    const auto shared = static_cast<std::size_t>(
        std::mismatch(piece.begin(), piece.end(), before.begin(), before.end()).first - piece.begin());
    leave(shared);
    for (std::size_t d = shared; d < piece.size(); ++d) {
      path.push_back(static_cast<std::int32_t>(nodes_.size()));
      nodes_.push_back({static_cast<std::uint8_t>(piece[d]), static_cast<std::int32_t>(d) + 1, 0, 0, 0});
    }
    Node& node = nodes_[static_cast<std::size_t>(path.back())];
    if (node.last == node.first) node.first = static_cast<std::int32_t>(i);
    node.last = static_cast<std::int32_t>(i) + 1;
    deepest_ = std::max(deepest_, static_cast<std::int32_t>(piece.size()));
    before = piece;
  }
  leave(0);
}

std::size_t TokenTrie::mark(ByteAutomaton& automaton, ByteAutomaton::State state,
                            std::span<std::uint8_t> allowed) const {
  std::vector<ByteAutomaton::State> states(static_cast<std::size_t>(deepest_) + 1);
  states[0] = state;
  std::size_t visits = 0;
  automaton.begin_count();
  for (std::size_t i = 0; i < nodes_.size();) {
    const Node& node = nodes_[i];
    const auto depth = static_cast<std::size_t>(node.depth);
    ByteAutomaton::Step step{ByteAutomaton::kDead, 0, false};
    if (depth == 1 || visits < kMaxVisits) step = automaton.step(states[depth - 1], node.byte);
    if (step.fresh) visits += step.visits;
    if (step.to == ByteAutomaton::kDead) {
      i = static_cast<std::size_t>(node.behind);
      continue;
    }
    states[depth] = step.to;
    for (std::int32_t t = node.first; t < node.last; ++t) {
      const auto token = static_cast<std::size_t>(tokens_[static_cast<std::size_t>(t)]);
      if (token < allowed.size()) allowed[token] = 1;
    }
    ++i;
  }
  return visits;
}

}  // namespace attend::llm

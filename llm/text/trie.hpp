// Strings by their common beginnings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/keyed_hash.hpp"

namespace attend::llm {

class Trie {
 public:
  struct Match {
    std::size_t bytes = 0;  // 0: none
    std::int32_t value = -1;
  };

  Trie();
  // value >= 0, text not empty; a text added twice keeps its first. Gives the text's node.
  std::uint32_t add(std::string_view text, std::int32_t value);
  bool empty() const { return values_.size() == 1; }

  // Nodes are numbers, the root is 0; a parent's is less than its children's.
  std::size_t nodes() const { return values_.size(); }
  std::int32_t value(std::uint32_t node) const { return values_[node]; }  // -1: no text ends here
  std::uint32_t child(std::uint32_t node, unsigned char byte) const {
    return edges_[slot((std::uint64_t{node} << 8) | byte)].node;  // 0 where there is none: no edge leads to the root
  }
  template <class Take>
  void each_edge(const Take& take) const {
    for (const Edge& edge : edges_)
      if (edge.key != kNone)
        take(static_cast<std::uint32_t>(edge.key >> 8), static_cast<unsigned char>(edge.key), edge.node);
  }

 private:
  // Children of all nodes in one table with open addressing: (node, byte) -> node.
  struct Edge {
    std::uint64_t key = kNone;
    std::uint32_t node = 0;
  };
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  std::size_t slot(std::uint64_t key) const {
    std::size_t i = hash_(key) >> shift_;
    while (edges_[i].key != key && edges_[i].key != kNone) i = (i + 1) & (edges_.size() - 1);
    return i;
  }
  void grow();

  KeyedHash hash_;
  std::vector<Edge> edges_;
  int shift_;
  std::vector<std::int32_t> values_;  // by node
};

}  // namespace attend::llm

// Finds the longest of many strings that a text begins with.
#pragma once

#include <array>
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
  void add(std::string_view text,
           std::int32_t value);  // value >= 0, text not empty; a text added twice keeps its first
  bool empty() const { return values_.size() == 1; }
  bool may_begin(char c) const { return first_[static_cast<unsigned char>(c)]; }

  // Of the added strings whose value is accepted.
  template <class Accept>
  Match longest(std::string_view text, const Accept& accept) const {
    Match best;
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) break;
      if (values_[node] >= 0 && accept(i + 1, values_[node])) best = {i + 1, values_[node]};
    }
    return best;
  }
  Match longest(std::string_view text) const {
    return longest(text, [](std::size_t, std::int32_t) { return true; });
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
  std::uint32_t child(std::uint32_t node, unsigned char byte) const {
    return edges_[slot((std::uint64_t{node} << 8) | byte)].node;  // 0 where there is none: no edge leads to the root
  }
  void grow();

  KeyedHash hash_;
  std::vector<Edge> edges_;
  int shift_;
  std::vector<std::int32_t> values_;  // by node
  std::array<bool, 256> first_{};
};

}  // namespace attend::llm

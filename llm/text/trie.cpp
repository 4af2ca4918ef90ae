// Building the trie.
#include "llm/text/trie.hpp"

#include <utility>

namespace attend::llm {

Trie::Trie() : edges_(16), shift_(60), values_(1, -1) {}

void Trie::grow() {
  const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(edges_.size() * 2));
  --shift_;
  for (const Edge& edge : old) {
    if (edge.key != kNone) edges_[slot(edge.key)] = edge;
  }
}

std::uint32_t Trie::add(std::string_view text, std::int32_t value) {
  std::uint32_t node = 0;
  for (const char c : text) {
    const std::uint64_t key = (std::uint64_t{node} << 8) | static_cast<unsigned char>(c);
    if (edges_[slot(key)].key == kNone) {
      if (values_.size() * 2 > edges_.size()) grow();
      edges_[slot(key)] = {key, static_cast<std::uint32_t>(values_.size())};
      values_.push_back(-1);
    }
    node = edges_[slot(key)].node;
  }
  if (node != 0 && values_[node] < 0) values_[node] = value;
  return node;
}

}  // namespace attend::llm

// The automaton over all patterns, and the search.
#include "llm/text/pattern_finder.hpp"

#include <algorithm>
#include <string>

namespace attend::llm {

void PatternFinder::add(std::string_view pattern, std::int32_t value, bool special) {
  const Node node = trie_.add(std::string(pattern.rbegin(), pattern.rend()), value);
  if (links_.size() <= node) links_.resize(node + 1);
  if (trie_.value(node) == value) links_[node].special = special;
  last_[static_cast<unsigned char>(pattern.back())] = true;
}

// A node's links are known from those of shorter ones.
void PatternFinder::finish() {
  links_.resize(trie_.nodes());
  struct Edge {
    Node from, to;
    unsigned char byte;
  };
  std::vector<Edge> edges;
  edges.reserve(links_.size());
  trie_.each_edge([&](Node from, unsigned char byte, Node to) { edges.push_back({from, to, byte}); });
  // Nodes are numbered along each pattern, so a parent has the smaller number.
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.to < b.to; });
  for (const Edge& edge : edges) links_[edge.to].bytes = static_cast<std::uint16_t>(links_[edge.from].bytes + 1);
  std::sort(edges.begin(), edges.end(),
            [&](const Edge& a, const Edge& b) { return links_[a.to].bytes < links_[b.to].bytes; });
  for (const Edge& edge : edges) {
    Links& here = links_[edge.to];
    Node end = edge.from;
    while (end != 0 && here.shorter == 0) {
      end = links_[end].shorter;
      here.shorter = trie_.child(end, edge.byte);
    }
    const Links& shorter = links_[here.shorter];
    const bool pattern = trie_.value(edge.to) >= 0;
    here.next = shorter.found;
    here.found = pattern ? edge.to : shorter.found;
    here.found_normal = pattern && !here.special ? edge.to : shorter.found_normal;
  }
}

std::size_t PatternFinder::starts(std::string_view text, std::vector<Start>& starts) const {
  starts.clear();
  std::size_t steps = text.size();
  Node node = 0;
  for (std::size_t place = text.size(); place-- > 0;) {
    const auto byte = static_cast<unsigned char>(text[place]);
    if (node == 0 && !last_[byte]) continue;
    Node next = trie_.child(node, byte);
    while (next == 0 && node != 0) {
      node = links_[node].shorter;
      next = trie_.child(node, byte);
      ++steps;
    }
    node = next;
    if (links_[node].found != 0) starts.push_back({place, links_[node].found});
  }
  return steps;
}

Trie::Match PatternFinder::longest(const Start& start, std::size_t room) const {
  Node node = room == 0 ? links_[start.node].found_normal : start.node;
  while (node != 0 && links_[node].special && links_[node].bytes > room) node = links_[node].next;
  if (node == 0) return {};
  return {links_[node].bytes, trie_.value(node)};
}

}  // namespace attend::llm

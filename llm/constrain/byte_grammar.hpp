// A grammar over bytes: rules that call each other, each a small graph whose edges consume bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attend::llm {

// Made once, then read by any number of threads. Nodes and rules are numbers. InvalidArgument when it grows beyond
// kMostNodes: what a request asks for must not fill the memory.
class ByteGrammar {
 public:
  using Node = std::int32_t;
  using Rule = std::int32_t;
  static constexpr std::int64_t kMostNodes = 1 << 16;

  struct Edge {
    std::uint8_t low, high;
    Node to;
  };
  struct Call {
    Rule rule;
    Node back;
  };
  struct NodeData {
    std::vector<Edge> bytes{};
    std::vector<Node> empty{};  // reached without consuming anything
    std::vector<Call> calls{};
    bool end = false;  // of its rule
  };

  Rule add_rule();  // with a start and an end
  Node start(Rule rule) const { return rules_[static_cast<std::size_t>(rule)].first; }
  Node end(Rule rule) const { return rules_[static_cast<std::size_t>(rule)].second; }
  Node add_node();

  // Each goes on from `from` and gives where it ends.
  Node bytes(Node from, unsigned low, unsigned high);
  Node literal(Node from, std::string_view text);
  Node call(Node from, Rule rule);
  void link(Node from, Node to);  // without consuming anything
  void link_bytes(Node from, unsigned low, unsigned high, Node to);
  void link_call(Node from, Rule rule, Node to);

  const NodeData& node(Node n) const { return nodes_[static_cast<std::size_t>(n)]; }
  Rule top() const { return top_; }
  void set_top(Rule rule) { top_ = rule; }

 private:
  NodeData& at(Node n) { return nodes_[static_cast<std::size_t>(n)]; }
  std::vector<NodeData> nodes_;
  std::vector<std::pair<Node, Node>> rules_;
  Rule top_ = 0;
};

}  // namespace attend::llm

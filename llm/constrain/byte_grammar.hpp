// A grammar over bytes: rules that call each other, each a small graph whose edges consume bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attend::llm {

// Built once, then read by any number of threads. Nodes and rules are numbers. InvalidArgument when it grows beyond
// kMaxNodes: a request must not fill the memory.
//
// A rule that may be empty is so by its own links, not by the rules that it calls.
class ByteGrammar {
 public:
  using Node = std::int32_t;
  using Rule = std::int32_t;
  static constexpr std::int64_t kMaxNodes = 1 << 16;

  struct Edge {
    std::uint8_t low, high;
    Node to;
  };
  struct Call {
    Rule rule;
    Node back;
  };
  // Calls `rule` again and again and returns to the same node; `max` < 0: any number of times.
  struct Repeat {
    Rule rule = -1;
    std::int32_t min = 0, max = 0;
  };
  struct NodeData {
    std::vector<Edge> bytes{};
    std::vector<Node> empty{};  // reached without consuming anything
    std::vector<Call> calls{};
    Repeat repeat{};   // the other edges may be taken after `min` repetitions
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
  Node repeat(Node from, Rule rule, std::int32_t min, std::int32_t max);
  void link(Node from, Node to);  // without consuming anything
  void link_bytes(Node from, unsigned low, unsigned high, Node to);
  void link_call(Node from, Rule rule, Node to);

  std::int64_t nodes() const { return std::ssize(nodes_); }
  const NodeData& node(Node n) const { return nodes_[static_cast<std::size_t>(n)]; }
  // Whether a rule has nothing left to do at this node but to return.
  bool only_ends(Node n) const;
  Rule top() const { return top_; }
  // The last call of a builder. InvalidArgument if a rule calls itself before it has consumed a byte.
  void finish(Rule top);
  // A rule comes before those that it calls without having consumed a byte.
  std::int32_t rank(Rule rule) const { return ranks_[static_cast<std::size_t>(rule)]; }

 private:
  NodeData& at(Node n) { return nodes_[static_cast<std::size_t>(n)]; }
  std::vector<Rule> called_first(Rule rule, const std::vector<bool>& nullable) const;

  std::vector<NodeData> nodes_;
  std::vector<std::pair<Node, Node>> rules_;
  std::vector<std::int32_t> ranks_;
  Rule top_ = 0;
};

}  // namespace attend::llm

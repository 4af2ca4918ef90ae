// Builds grammars, a node at a time.
#include "llm/constrain/byte_grammar.hpp"

#include <string>
#include <unordered_set>
#include <utility>

#include "attend/error.hpp"

namespace attend::llm {

ByteGrammar::Node ByteGrammar::add_node() {
  if (std::ssize(nodes_) >= kMaxNodes)
    throw InvalidArgument("schema: it needs more than " + std::to_string(kMaxNodes) +
                          " states; expected fewer or shorter values of enum, or a smaller pattern");
  nodes_.emplace_back();
  return static_cast<Node>(nodes_.size() - 1);
}

ByteGrammar::Rule ByteGrammar::add_rule() {
  const Node first = add_node(), last = add_node();
  at(last).end = true;
  rules_.emplace_back(first, last);
  return static_cast<Rule>(rules_.size() - 1);
}

void ByteGrammar::link(Node from, Node to) {
  at(from).empty.push_back(to);
}

void ByteGrammar::link_bytes(Node from, unsigned low, unsigned high, Node to) {
  at(from).bytes.push_back({static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(high), to});
}

void ByteGrammar::link_call(Node from, Rule rule, Node to) {
  at(from).calls.push_back({rule, to});
}

ByteGrammar::Node ByteGrammar::bytes(Node from, unsigned low, unsigned high) {
  const Node to = add_node();
  link_bytes(from, low, high, to);
  return to;
}

ByteGrammar::Node ByteGrammar::literal(Node from, std::string_view text) {
  for (const char c : text) from = bytes(from, static_cast<unsigned char>(c), static_cast<unsigned char>(c));
  return from;
}

ByteGrammar::Node ByteGrammar::call(Node from, Rule rule) {
  const Node to = add_node();
  link_call(from, rule, to);
  return to;
}

ByteGrammar::Node ByteGrammar::repeat(Node from, Rule rule, std::int32_t min, std::int32_t max) {
  const Node to = add_node();
  at(to).repeat = {rule, min, max};
  link(from, to);
  return to;
}

bool ByteGrammar::only_ends(Node n) const {
  const NodeData& data = node(n);
  return data.end && data.bytes.empty() && data.empty.empty() && data.calls.empty() && data.repeat.rule < 0;
}

std::vector<ByteGrammar::Rule> ByteGrammar::called_first(Rule rule, const std::vector<bool>& nullable) const {
  std::vector<Rule> called;
  std::vector<Node> open = {start(rule)};
  std::unordered_set<Node> seen;
  while (!open.empty()) {
    const Node n = open.back();
    open.pop_back();
    if (!seen.insert(n).second) continue;
    const NodeData& data = node(n);
    open.insert(open.end(), data.empty.begin(), data.empty.end());
    if (data.repeat.rule >= 0) called.push_back(data.repeat.rule);
    for (const Call& call : data.calls) {
      called.push_back(call.rule);
      if (nullable[static_cast<std::size_t>(call.rule)]) open.push_back(call.back);
    }
  }
  return called;
}

void ByteGrammar::finish(Rule top) {
  top_ = top;
  const std::size_t count = rules_.size();
  std::vector<bool> nullable(count);
  for (std::size_t rule = 0; rule < count; ++rule) {
    std::unordered_set<Node> seen;
    for (std::vector<Node> open = {rules_[rule].first}; !open.empty();) {
      const Node n = open.back();
      open.pop_back();
      if (!seen.insert(n).second) continue;
      if (node(n).end) nullable[rule] = true;
      open.insert(open.end(), node(n).empty.begin(), node(n).empty.end());
    }
  }
  // In the order in which a depth-first search leaves the rules, those that are called come before their callers.
  ranks_.assign(count, -1);
  auto rank = static_cast<std::int32_t>(count);
  constexpr std::int32_t kEntered = -2;
  std::vector<std::pair<Rule, std::vector<Rule>>> path;
  const auto enter = [&](Rule rule) {
    ranks_[static_cast<std::size_t>(rule)] = kEntered;
    path.emplace_back(rule, called_first(rule, nullable));
  };
  for (std::size_t first = 0; first < count; ++first) {
    if (ranks_[first] == -1) enter(static_cast<Rule>(first));
    while (!path.empty()) {
      auto& [rule, called] = path.back();
      if (called.empty()) {
        ranks_[static_cast<std::size_t>(rule)] = --rank;
        path.pop_back();
        continue;
      }
      const Rule next = called.back();
      called.pop_back();
      const std::int32_t known = ranks_[static_cast<std::size_t>(next)];
      if (known == kEntered) throw InvalidArgument("schema: a $ref refers to itself with nothing around it");
      if (known == -1) enter(next);
    }
  }
}

}  // namespace attend::llm

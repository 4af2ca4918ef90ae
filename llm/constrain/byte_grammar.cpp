// Builds grammars, a node at a time.
#include "llm/constrain/byte_grammar.hpp"

#include <string>

#include "attend/error.hpp"

namespace attend::llm {

ByteGrammar::Node ByteGrammar::add_node() {
  if (std::ssize(nodes_) >= kMostNodes)
    throw InvalidArgument("schema: it needs more than " + std::to_string(kMostNodes) +
                          " states; expected fewer or shorter values of enum, or smaller minItems and maxItems");
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

}  // namespace attend::llm

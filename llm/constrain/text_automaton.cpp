// Patterns become automata by Thompson's construction and the construction of subsets.
#include "llm/constrain/text_automaton.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "attend/error.hpp"
#include "llm/constrain/regex_parser.hpp"

namespace attend::llm {
namespace {

using Node = std::int32_t;

// Without determinism: edges that consume nothing, and at most one set of characters a node.
class Nondeterministic {
 public:
  struct NodeData {
    std::vector<Node> empty{};
    const CharacterSet* characters = nullptr;
    Node to = -1;
  };

  Nondeterministic(const Regex& regex, AutomatonBudget& budget) : budget_(budget) {
    const Node first = add();
    last_ = build(regex, first);
  }
  const NodeData& node(Node n) const { return nodes_[static_cast<std::size_t>(n)]; }
  std::size_t size() const { return nodes_.size(); }
  Node last() const { return last_; }

 private:
  Node add() {
    budget_.spend(1);
    nodes_.emplace_back();
    return static_cast<Node>(nodes_.size()) - 1;
  }
  void link(Node from, Node to) { nodes_[static_cast<std::size_t>(from)].empty.push_back(to); }

  // What begins at `from`; where it ends.
  Node build(const Regex& regex, Node from) {
    switch (regex.kind) {
      case Regex::Kind::characters: {
        const Node at = add(), to = add();
        link(from, at);
        nodes_[static_cast<std::size_t>(at)].characters = &regex.characters;
        nodes_[static_cast<std::size_t>(at)].to = to;
        return to;
      }
      case Regex::Kind::sequence:
        for (const Regex& part : regex.parts) from = build(part, from);
        return from;
      case Regex::Kind::alternatives: {
        const Node to = add();
        for (const Regex& part : regex.parts) {
          const Node first = add();
          link(from, first);
          link(build(part, first), to);
        }
        return to;
      }
      case Regex::Kind::repeat:
        return repeat(regex, from);
    }
    return from;
  }

  Node repeat(const Regex& regex, Node from) {
    const Regex& part = regex.parts.front();
    for (std::int32_t i = 0; i < regex.min; ++i) from = again(part, from);
    const Node to = add();
    link(from, to);
    if (regex.max < 0) {
      link(build(part, to), to);
      return to;
    }
    for (std::int32_t i = regex.min; i < regex.max; ++i) {
      from = again(part, from);
      link(from, to);
    }
    return to;
  }
  Node again(const Regex& part, Node from) {
    const Node first = add();
    link(from, first);
    return build(part, first);
  }

  AutomatonBudget& budget_;
  std::vector<NodeData> nodes_;
  Node last_ = 0;
};

// Cuts the characters into ranges that no set of the pattern tells apart.
class Atoms {
 public:
  explicit Atoms(const Nondeterministic& from) {
    begins_ = {0, 0xD800, 0xE000, 0x110000};
    for (std::size_t n = 0; n < from.size(); ++n) {
      const CharacterSet* set = from.node(static_cast<Node>(n)).characters;
      if (set == nullptr || !known_.try_emplace(set).second) continue;
      for (const CharacterRange& range : *set) begins_.insert(begins_.end(), {range.low, range.high + 1});
    }
    std::sort(begins_.begin(), begins_.end());
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
    for (auto& [set, atoms] : known_)
      for (const CharacterRange& range : *set)
        for (std::size_t a = find(range.low); begins_[a] <= range.high; ++a) atoms.push_back(a);
  }
  const std::vector<std::size_t>& of(const CharacterSet& set) const { return known_.at(&set); }
  CharacterRange range(std::size_t atom) const { return {begins_[atom], begins_[atom + 1] - 1}; }

 private:
  std::size_t find(char32_t c) const {
    return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), c) - begins_.begin()) - 1;
  }
  std::vector<char32_t> begins_;
  std::map<const CharacterSet*, std::vector<std::size_t>> known_;
};

// Appends a range; joins it with the last one if it continues it.
void append(CharacterSet& set, const CharacterRange& range) {
  if (!set.empty() && set.back().high + 1 == range.low)
    set.back().high = range.high;
  else
    set.push_back(range);
}

class Determinized {
 public:
  Determinized(const Nondeterministic& from, AutomatonBudget& budget)
      : from_(from), budget_(budget), atoms_(from), seen_(from.size()) {
    (void)state({0});
    for (std::size_t s = 0; s < sets_.size(); ++s) leave(s);
  }
  TextAutomaton take() { return std::move(automaton_); }

 private:
  std::int32_t state(std::vector<Node> nodes) {
    std::vector<Node> set = closed(std::move(nodes));
    const auto [found, is_new] = numbers_.try_emplace(set, static_cast<std::int32_t>(sets_.size()));
    if (is_new) {
      const bool accepts = std::binary_search(set.begin(), set.end(), from_.last());
      automaton_.states.push_back({.accepts = accepts});
      sets_.push_back(std::move(set));
    }
    return found->second;
  }
  std::vector<Node> closed(std::vector<Node> open) {
    std::vector<Node> set;
    ++round_;
    while (!open.empty()) {
      const Node n = open.back();
      open.pop_back();
      if (std::exchange(seen_[static_cast<std::size_t>(n)], round_) == round_) continue;
      const auto& node = from_.node(n);
      budget_.spend(1 + node.empty.size());
      if (node.characters != nullptr || n == from_.last()) set.push_back(n);
      open.insert(open.end(), node.empty.begin(), node.empty.end());
    }
    std::sort(set.begin(), set.end());
    return set;
  }
  void leave(std::size_t s) {
    std::map<std::size_t, std::vector<Node>> by_atom;
    for (const Node n : std::vector<Node>(sets_[s])) {
      const auto& node = from_.node(n);
      if (node.characters == nullptr) continue;
      const std::vector<std::size_t>& atoms = atoms_.of(*node.characters);
      budget_.spend(atoms.size());
      for (const std::size_t atom : atoms) by_atom[atom].push_back(node.to);
    }
    std::map<std::vector<Node>, std::int32_t> by_nodes;  // atoms often lead to the same nodes
    std::map<std::int32_t, CharacterSet> by_state;
    for (auto& [atom, nodes] : by_atom) {
      auto [found, is_new] = by_nodes.try_emplace(nodes, -1);
      if (is_new) found->second = state(nodes);
      append(by_state[found->second], atoms_.range(atom));
    }
    for (auto& [to, characters] : by_state) automaton_.states[s].edges.push_back({std::move(characters), to});
  }

  const Nondeterministic& from_;
  AutomatonBudget& budget_;
  Atoms atoms_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t round_ = 0;
  std::map<std::vector<Node>, std::int32_t> numbers_;
  std::vector<std::vector<Node>> sets_;
  TextAutomaton automaton_;
};

// Leaves out the states from which nothing is accepted.
TextAutomaton trimmed(TextAutomaton from) {
  const std::size_t count = from.states.size();
  std::vector<std::vector<std::size_t>> before(count);
  std::vector<std::size_t> open;
  std::vector<bool> alive(count);
  for (std::size_t s = 0; s < count; ++s) {
    for (const TextAutomaton::Edge& edge : from.states[s].edges) before[static_cast<std::size_t>(edge.to)].push_back(s);
    if (from.states[s].accepts) open.push_back(s);
  }
  while (!open.empty()) {
    const std::size_t s = open.back();
    open.pop_back();
    if (alive[s]) continue;
    alive[s] = true;
    open.insert(open.end(), before[s].begin(), before[s].end());
  }
  TextAutomaton to;
  if (count == 0 || !alive[0]) return to;
  std::vector<std::int32_t> numbers(count);
  for (std::size_t s = 0, next = 0; s < count; ++s)
    if (alive[s]) numbers[s] = static_cast<std::int32_t>(next++);
  for (std::size_t s = 0; s < count; ++s) {
    if (!alive[s]) continue;
    std::erase_if(from.states[s].edges, [&](const auto& edge) { return !alive[static_cast<std::size_t>(edge.to)]; });
    for (TextAutomaton::Edge& edge : from.states[s].edges) edge.to = numbers[static_cast<std::size_t>(edge.to)];
    to.states.push_back(std::move(from.states[s]));
  }
  return to;
}

CharacterSet common(const CharacterSet& a, const CharacterSet& b) {
  CharacterSet both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t low = std::max(a[i].low, b[j].low), high = std::min(a[i].high, b[j].high);
    if (low <= high) both.push_back({low, high});
    ++(a[i].high < b[j].high ? i : j);
  }
  return both;
}

}  // namespace

void AutomatonBudget::spend(std::size_t work) {
  spent_ += work;
  if (spent_ > kMaxWork)
    throw InvalidArgument(
        "its patterns and lengths need too large an automaton; expected smaller counts, or fewer of them");
}

TextAutomaton text_of_pattern(std::string_view pattern, AutomatonBudget& budget) {
  const Regex regex = parse_regex(pattern);
  const Nondeterministic nodes(regex, budget);
  return trimmed(Determinized(nodes, budget).take());
}

TextAutomaton text_of_length(std::int64_t min, std::int64_t max, AutomatonBudget& budget) {
  TextAutomaton text;
  const std::int64_t last = max < 0 ? min : max;
  budget.spend(static_cast<std::size_t>(last) + 1);
  for (std::int64_t n = 0; n <= last; ++n) {
    TextAutomaton::State state{.accepts = n >= min};
    if (n < last || max < 0)
      state.edges.push_back({all_characters(), static_cast<std::int32_t>(std::min(n + 1, last))});
    text.states.push_back(std::move(state));
  }
  return text;
}

TextAutomaton text_of_both(const TextAutomaton& a, const TextAutomaton& b, AutomatonBudget& budget) {
  TextAutomaton text;
  if (a.states.empty() || b.states.empty()) return text;
  using Pair = std::pair<std::int32_t, std::int32_t>;
  std::map<Pair, std::int32_t> numbers;
  std::vector<Pair> pairs;
  const auto state = [&](const Pair& pair) {
    const auto [found, is_new] = numbers.try_emplace(pair, static_cast<std::int32_t>(pairs.size()));
    if (is_new) pairs.push_back(pair);
    return found->second;
  };
  (void)state({0, 0});
  for (std::size_t s = 0; s < pairs.size(); ++s) {
    const TextAutomaton::State &of_a = a.states[static_cast<std::size_t>(pairs[s].first)],
                               &of_b = b.states[static_cast<std::size_t>(pairs[s].second)];
    TextAutomaton::State to{.accepts = of_a.accepts && of_b.accepts};
    for (const TextAutomaton::Edge& x : of_a.edges) {
      for (const TextAutomaton::Edge& y : of_b.edges) {
        budget.spend(1 + x.characters.size() + y.characters.size());
        CharacterSet both = common(x.characters, y.characters);
        if (!both.empty()) to.edges.push_back({std::move(both), state({x.to, y.to})});
      }
    }
    text.states.push_back(std::move(to));
  }
  return trimmed(std::move(text));
}

}  // namespace attend::llm

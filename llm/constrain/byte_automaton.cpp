// A pushdown automaton made deterministic as it runs: stacks share their tails, states are sets of stacks.
#include "llm/constrain/byte_automaton.hpp"

#include <algorithm>

namespace attend::llm {

ByteAutomaton::ByteAutomaton(const ByteGrammar& grammar) : grammar_(grammar) {
  StateData first;
  ++round_;
  close(place(grammar.start(grammar.top()), kNowhere), first);
  start_ = intern(std::move(first));
}

std::int32_t ByteAutomaton::place(ByteGrammar::Node node, std::int32_t parent) {
  const auto key =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(parent)) << 32) | static_cast<std::uint32_t>(node);
  const auto [found, fresh] = place_numbers_.try_emplace(key, static_cast<std::int32_t>(places_.size()));
  if (fresh) {
    const std::int32_t depth = parent == kNowhere ? 0 : places_[static_cast<std::size_t>(parent)].depth + 1;
    places_.push_back({node, parent, depth});
  }
  return found->second;
}

// Adds whatever is reached from here without a byte.
void ByteAutomaton::close(std::int32_t first, StateData& state) {
  std::vector<std::int32_t> open = {first};
  while (!open.empty() && visited_ < kMostPlaces) {
    const std::int32_t at = open.back();
    open.pop_back();
    seen_.resize(places_.size());
    if (seen_[static_cast<std::size_t>(at)] == round_) continue;
    seen_[static_cast<std::size_t>(at)] = round_;
    ++visited_;
    const Place here = places_[static_cast<std::size_t>(at)];
    const ByteGrammar::NodeData& node = grammar_.node(here.node);
    if (!node.bytes.empty()) state.places.push_back(at);
    for (const ByteGrammar::Node to : node.empty) open.push_back(place(to, here.parent));
    if (here.depth < kDepth)
      for (const ByteGrammar::Call& call : node.calls)
        open.push_back(place(grammar_.start(call.rule), place(call.back, here.parent)));
    if (!node.end) continue;
    if (here.parent == kNowhere)
      state.accepts = true;
    else
      open.push_back(here.parent);
  }
}

ByteAutomaton::State ByteAutomaton::intern(StateData state) {
  std::sort(state.places.begin(), state.places.end());
  state.places.erase(std::unique(state.places.begin(), state.places.end()), state.places.end());
  if (state.places.empty() && !state.accepts) return kDead;
  const auto [found, fresh] =
      state_numbers_.try_emplace({state.places, state.accepts}, static_cast<State>(states_.size()));
  if (fresh) states_.push_back(std::move(state));
  return found->second;
}

ByteAutomaton::State ByteAutomaton::compute(State from, std::uint8_t byte) {
  StateData to;
  ++round_;
  visited_ = 0;
  const std::vector<std::int32_t> before = states_[static_cast<std::size_t>(from)].places;
  for (const std::int32_t at : before) {
    const Place here = places_[static_cast<std::size_t>(at)];
    for (const ByteGrammar::Edge& edge : grammar_.node(here.node).bytes)
      if (byte >= edge.low && byte <= edge.high) close(place(edge.to, here.parent), to);
  }
  return intern(std::move(to));
}

ByteAutomaton::State ByteAutomaton::next(State from, std::uint8_t byte) {
  {
    const StateData& known = states_[static_cast<std::size_t>(from)];
    if (!known.all.empty()) {
      if (known.all[byte] != kUnknown) return known.all[byte];
    } else {
      for (const auto& [b, to] : known.few)
        if (b == byte) return to;
    }
  }
  const State to = compute(from, byte);
  StateData& data = states_[static_cast<std::size_t>(from)];
  if (data.all.empty() && data.few.size() < kSparse) {
    data.few.emplace_back(byte, to);
  } else {
    if (data.all.empty()) {
      data.all.assign(256, kUnknown);
      for (const auto& [b, known] : data.few) data.all[b] = known;
      data.few.clear();
    }
    data.all[byte] = to;
  }
  return to;
}

ByteAutomaton::State ByteAutomaton::forget_others(State state) {
  const std::vector<Place> old = std::move(places_);
  StateData kept;
  kept.accepts = accepts(state);
  const std::vector<std::int32_t> waiting = std::move(states_[static_cast<std::size_t>(state)].places);
  places_.clear();
  place_numbers_.clear();
  states_.clear();
  state_numbers_.clear();
  seen_.clear();
  for (const std::int32_t at : waiting) {
    std::vector<ByteGrammar::Node> stack;
    for (std::int32_t p = at; p != kNowhere; p = old[static_cast<std::size_t>(p)].parent)
      stack.push_back(old[static_cast<std::size_t>(p)].node);
    std::int32_t p = kNowhere;
    for (auto node = stack.rbegin(); node != stack.rend(); ++node) p = place(*node, p);
    kept.places.push_back(p);
  }
  start_ = kDead;
  return intern(std::move(kept));
}

}  // namespace attend::llm

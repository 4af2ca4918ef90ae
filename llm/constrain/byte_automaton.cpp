// A pushdown automaton that is made deterministic as it runs: callers at the same byte share the frame of a call.
#include "llm/constrain/byte_automaton.hpp"

#include <algorithm>
#include <functional>

namespace attend::llm {

ByteAutomaton::ByteAutomaton(const ByteGrammar& grammar) : grammar_(grammar) {
  clear();
  StateData first;
  ++round_;
  open_.push_back(place({grammar.start(grammar.top()), 0, kOutside}));
  close(first);
  start_ = intern(std::move(first));
}

void ByteAutomaton::clear() {
  places_ = {};
  place_numbers_ = {};
  frames_ = {};
  frame_numbers_ = {};
  states_ = {};
  state_numbers_ = {};
  seen_ = {};
  bytes_ = 0;
  frames_.push_back({{}, 0});
}

std::int32_t ByteAutomaton::place(const Place& place) {
  const auto [found, is_new] = place_numbers_.try_emplace(place, static_cast<std::int32_t>(places_.size()));
  if (is_new) {
    places_.push_back(place);
    bytes_ += sizeof(Place) * 4;
  }
  return found->second;
}

std::int32_t ByteAutomaton::frame(std::vector<std::int32_t> places) {
  const auto [found, is_new] = frame_numbers_.try_emplace(places, static_cast<std::int32_t>(frames_.size()));
  if (is_new) {
    std::int32_t depth = 0;
    for (const std::int32_t p : places)
      depth = std::max(depth, frames_[static_cast<std::size_t>(places_[static_cast<std::size_t>(p)].frame)].depth);
    bytes_ += sizeof(Frame) * 3 + places.size() * 2 * sizeof(std::int32_t);
    frames_.push_back({std::move(places), depth + 1});
  }
  return found->second;
}

// A call whose caller has nothing left to do returns to where that one returns: identical alternatives become one.
void ByteAutomaton::call(ByteGrammar::Rule rule, const Place& back) {
  if (frames_[static_cast<std::size_t>(back.frame)].depth >= kDepth) return;
  Pending& pending = pending_[grammar_.rank(rule)];
  pending.rule = rule;
  const auto add = [&](std::int32_t p) {
    std::vector<std::int32_t>& places = pending.places;
    if (places.size() < kMaxPositions && std::find(places.begin(), places.end(), p) == places.end())
      places.push_back(p);
  };
  if (back.frame == kOutside || !grammar_.only_ends(back.node)) return add(place(back));
  for (const std::int32_t p : frames_[static_cast<std::size_t>(back.frame)].places) add(p);
}

void ByteAutomaton::visit(std::int32_t at, StateData& state) {
  const Place here = places_[static_cast<std::size_t>(at)];
  const ByteGrammar::NodeData& node = grammar_.node(here.node);
  if (const ByteGrammar::Repeat& repeat = node.repeat; repeat.rule >= 0) {
    const std::int32_t count = repeat.max < 0 ? std::min(here.count + 1, repeat.min) : here.count + 1;
    if (repeat.max < 0 || here.count < repeat.max) call(repeat.rule, {here.node, count, here.frame});
    if (here.count < repeat.min) return;
  }
  if (!node.bytes.empty()) state.places.push_back(at);
  for (const ByteGrammar::Node to : node.empty) open_.push_back(place({to, 0, here.frame}));
  for (const ByteGrammar::Call& next : node.calls) call(next.rule, {next.back, 0, here.frame});
  if (!node.end) return;
  if (here.frame == kOutside) state.accepts = true;
  const std::vector<std::int32_t>& back = frames_[static_cast<std::size_t>(here.frame)].places;
  open_.insert(open_.end(), back.begin(), back.end());
}

// Adds what is reached from the open places without a byte. A rule is entered when all its callers are known.
void ByteAutomaton::close(StateData& state) {
  visits_ = 0;
  const auto enough = [&] {
    return state.places.size() >= kMaxPositions || (visits_ >= kMaxVisits && (!state.places.empty() || state.accepts));
  };
  while (!enough()) {
    if (open_.empty()) {
      if (pending_.empty()) break;
      Pending first = std::move(pending_.extract(pending_.begin()).mapped());
      open_.push_back(place({grammar_.start(first.rule), 0, frame(std::move(first.places))}));
    }
    const std::int32_t at = open_.back();
    open_.pop_back();
    seen_.resize(places_.size());
    if (std::exchange(seen_[static_cast<std::size_t>(at)], round_) == round_) continue;
    ++visits_;
    visit(at, state);
  }
  open_.clear();
  pending_.clear();
}

ByteAutomaton::State ByteAutomaton::intern(StateData state) {
  if (state.places.empty() && !state.accepts) return kDead;
  std::vector<std::int32_t> key = state.places;
  key.push_back(state.accepts ? 1 : 0);
  const auto [found, is_new] = state_numbers_.try_emplace(std::move(key), static_cast<State>(states_.size()));
  if (is_new) {
    bytes_ += sizeof(StateData) * 2 + state.places.size() * 2 * sizeof(std::int32_t);
    states_.push_back(std::move(state));
  }
  return found->second;
}

ByteAutomaton::Successor ByteAutomaton::compute(State from, std::uint8_t byte) {
  StateData to;
  ++round_;
  const std::vector<std::int32_t>& before = positions_of(from);
  for (const std::int32_t at : before) {
    const Place here = places_[static_cast<std::size_t>(at)];
    for (const ByteGrammar::Edge& edge : grammar_.node(here.node).bytes)
      if (byte >= edge.low && byte <= edge.high) open_.push_back(place({edge.to, 0, here.frame}));
  }
  const auto looked_at = static_cast<std::uint32_t>(before.size());
  std::reverse(open_.begin(), open_.end());  // the first reading is visited first
  close(to);
  return {intern(std::move(to)), looked_at + visits_, 0};
}

ByteAutomaton::Step ByteAutomaton::step(State from, std::uint8_t byte) {
  const auto taken = [&](Successor& s) { return Step{s.to, s.visits, std::exchange(s.counted, count_) != count_}; };
  {
    StateData& known = states_[static_cast<std::size_t>(from)];
    if (!known.all.empty()) {
      if (known.all[byte].to != kUnknown) return taken(known.all[byte]);
    } else {
      for (auto& [b, successor] : known.few)
        if (b == byte) return taken(successor);
    }
  }
  Successor to = compute(from, byte);
  to.counted = count_;
  StateData& data = states_[static_cast<std::size_t>(from)];
  bytes_ += sizeof(data.few.front());
  if (data.all.empty() && data.few.size() < kSparse) {
    data.few.emplace_back(byte, to);
  } else {
    if (data.all.empty()) {
      bytes_ += 256 * sizeof(Successor);
      data.all.assign(256, {kUnknown, 0, 0});
      for (const auto& [b, successor] : data.few) data.all[b] = successor;
      data.few = {};
    }
    data.all[byte] = to;
  }
  return {to.to, to.visits, true};
}

void ByteAutomaton::forget_others(std::span<State* const> kept) {
  const std::vector<Place> old_places = std::move(places_);
  const std::vector<Frame> old_frames = std::move(frames_);
  std::vector<StateData> old_states = std::move(states_);
  clear();
  // A frame comes after those that its places return to, so the numbers are known when they are needed.
  std::vector<bool> needed(old_frames.size());
  const auto need = [&](const std::vector<std::int32_t>& places) {
    for (const std::int32_t p : places)
      needed[static_cast<std::size_t>(old_places[static_cast<std::size_t>(p)].frame)] = true;
  };
  for (const State* state : kept)
    if (*state != kDead) need(old_states[static_cast<std::size_t>(*state)].places);
  for (std::size_t f = old_frames.size(); f-- > 1;)
    if (needed[f]) need(old_frames[f].places);
  std::vector<std::int32_t> new_frames(old_frames.size(), kOutside);
  const auto moved = [&](const std::vector<std::int32_t>& places) {
    std::vector<std::int32_t> to;
    for (const std::int32_t p : places) {
      const Place& old = old_places[static_cast<std::size_t>(p)];
      to.push_back(place({old.node, old.count, new_frames[static_cast<std::size_t>(old.frame)]}));
    }
    return to;
  };
  for (std::size_t f = 1; f < old_frames.size(); ++f)
    if (needed[f]) new_frames[f] = frame(moved(old_frames[f].places));
  for (State* state : kept) {
    if (*state == kDead) continue;
    const StateData& old = old_states[static_cast<std::size_t>(*state)];
    *state = intern({.places = moved(old.places), .accepts = old.accepts, .few = {}, .all = {}});
  }
  start_ = kDead;
}

}  // namespace attend::llm

// Runs a byte grammar: all the ways in which the text so far can be read, byte by byte.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "llm/constrain/byte_grammar.hpp"

namespace attend::llm {

// States are numbers; what was computed once is remembered. For one thread. The grammar must outlive it.
class ByteAutomaton {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;

  explicit ByteAutomaton(const ByteGrammar& grammar);
  State start() const { return start_; }
  State next(State state, std::uint8_t byte);  // kDead where that byte cannot come
  bool accepts(State state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  bool continues(State state) const { return !states_[static_cast<std::size_t>(state)].places.empty(); }
  std::size_t size() const { return states_.size(); }
  // Forgets all but `state`; its new number.
  State forget_others(State state);

 private:
  // Where one reading stands: a node, and the places to return to (another such pair, or kNowhere).
  struct Place {
    ByteGrammar::Node node;
    std::int32_t parent;
    std::int32_t depth;
  };
  static constexpr std::int32_t kNowhere = -1;
  static constexpr std::int32_t kDepth = 256;       // of calls: arrays in arrays in arrays ...
  static constexpr std::size_t kMostPlaces = 4096;  // readings at once
  static constexpr std::size_t kSparse = 8;         // successors that are kept as a list
  struct StateData {
    std::vector<std::int32_t> places;  // that wait for a byte; sorted
    bool accepts = false;
    std::vector<std::pair<std::uint8_t, State>> few;
    std::vector<State> all;  // by byte, once there are more than a few; kUnknown where nobody asked
  };
  static constexpr State kUnknown = -2;

  std::int32_t place(ByteGrammar::Node node, std::int32_t parent);
  void close(std::int32_t place, StateData& state);
  State intern(StateData state);
  State compute(State state, std::uint8_t byte);

  const ByteGrammar& grammar_;
  std::vector<Place> places_;
  std::unordered_map<std::uint64_t, std::int32_t> place_numbers_;
  std::vector<StateData> states_;
  std::map<std::pair<std::vector<std::int32_t>, bool>, State> state_numbers_;
  std::vector<std::uint32_t> seen_;  // by place: the last computation that came by
  std::uint32_t round_ = 0;
  std::size_t visited_ = 0;
  State start_ = 0;
};

}  // namespace attend::llm

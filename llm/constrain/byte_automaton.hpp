// Runs a byte grammar: all the readings of the text so far, byte by byte.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/keyed_hash.hpp"
#include "llm/constrain/byte_grammar.hpp"

namespace attend::llm {

// States are numbers; what was computed once is remembered. For one thread. The grammar must outlive it.
//
// The work of a byte is bounded: a state has at most kMaxPositions positions, and a step visits at most kMaxVisits.
// Readings beyond that are dropped, so a text that is accepted is always one of the grammar. Which are dropped
// depends on the text only, not on what was computed before.
class ByteAutomaton {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;
  static constexpr std::size_t kMaxPositions = 256, kMaxVisits = 2048;

  explicit ByteAutomaton(const ByteGrammar& grammar);
  State start() const { return start_; }
  State next(State state, std::uint8_t byte) { return step(state, byte).to; }  // kDead where that byte cannot come
  bool accepts(State state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  bool continues(State state) const { return !positions_of(state).empty(); }

  struct Step {
    State to;
    std::uint32_t visits;  // positions that were looked at: the same whether it is computed or remembered
    bool fresh;            // not taken since begin_count()
  };
  Step step(State state, std::uint8_t byte);
  void begin_count() { ++count_; }

  std::size_t positions(State state) const { return positions_of(state).size(); }
  std::size_t bytes() const { return bytes_; }  // of memory, about
  // Forgets all states but these, and renumbers them; kDead stays.
  void forget_others(std::span<State* const> kept);

 private:
  // Where a reading is: a node, how often it was repeated, and the frame to return to.
  struct Place {
    ByteGrammar::Node node;
    std::int32_t count, frame;
    bool operator==(const Place&) const = default;
  };
  // The call of a rule: all places that wait for its end. Callers at the same byte share it, so the number of frames
  // does not grow with the number of readings.
  struct Frame {
    std::vector<std::int32_t> places;
    std::int32_t depth;
  };
  static constexpr std::int32_t kOutside = 0;  // the frame of the whole text
  static constexpr std::int32_t kDepth = 256;  // of calls: arrays in arrays in arrays ...
  static constexpr std::size_t kSparse = 8;    // successors that are kept as a list
  struct Successor {
    State to;
    std::uint32_t visits, counted;
  };
  struct StateData {
    std::vector<std::int32_t> places;  // that wait for a byte, in the order in which they were found
    bool accepts = false;
    std::vector<std::pair<std::uint8_t, Successor>> few;
    std::vector<Successor> all;  // by byte, if there are more than kSparse; kUnknown if not computed
  };
  static constexpr State kUnknown = -2;
  struct Hash {
    std::size_t operator()(const Place& p) const {
      const KeyedHash hash;
      return hash((std::uint64_t{static_cast<std::uint32_t>(p.node)} << 32 | static_cast<std::uint32_t>(p.frame)) ^
                  hash(static_cast<std::uint64_t>(p.count)));
    }
    std::size_t operator()(const std::vector<std::int32_t>& numbers) const {
      return KeyedHash()(
          std::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int32_t)));
    }
  };
  struct Pending {
    ByteGrammar::Rule rule = -1;
    std::vector<std::int32_t> places{};  // that wait for its end
  };

  const std::vector<std::int32_t>& positions_of(State state) const {
    return states_[static_cast<std::size_t>(state)].places;
  }
  std::int32_t place(const Place& place);
  std::int32_t frame(std::vector<std::int32_t> places);
  void call(ByteGrammar::Rule rule, const Place& back);
  void visit(std::int32_t at, StateData& state);
  void close(StateData& state);
  State intern(StateData state);
  Successor compute(State state, std::uint8_t byte);
  void clear();

  const ByteGrammar& grammar_;
  std::vector<Place> places_;
  std::unordered_map<Place, std::int32_t, Hash> place_numbers_;
  std::vector<Frame> frames_;
  std::unordered_map<std::vector<std::int32_t>, std::int32_t, Hash> frame_numbers_;
  std::vector<StateData> states_;
  std::unordered_map<std::vector<std::int32_t>, State, Hash> state_numbers_;
  std::size_t bytes_ = 0;

  // Of the step that is being computed.
  std::vector<std::int32_t> open_;
  std::map<std::int32_t, Pending> pending_;  // by rank: rules that are called, and not yet entered
  std::vector<std::uint32_t> seen_;          // by place: the last step that visited it
  std::uint32_t round_ = 0, visits_ = 0;

  std::uint32_t count_ = 0;
  State start_ = 0;
};

}  // namespace attend::llm

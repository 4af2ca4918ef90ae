// Digit by digit, from what is known so far: whether the digits are those of a bound, and the remainder.
#include "llm/constrain/number_range.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace attend::llm {
namespace {

using Node = ByteGrammar::Node;

std::strong_ordering compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() <=> b.whole.size();
  return std::pair(a.whole.compare(b.whole), a.fraction.compare(b.fraction)) <=> std::pair(0, 0);
}

class Magnitudes {
 public:
  Magnitudes(ByteGrammar& grammar, Node to, const NumberRange& range) : grammar_(grammar), to_(to), range_(range) {}

  // Numbers without a sign, from `low` to `high`.
  bool link(Node from, const NumberBound& low, const std::optional<NumberBound>& high) {
    low_ = low;
    high_ = high;
    known_.clear();
    const auto of_low = static_cast<std::int32_t>(low.value.whole.size());
    const std::int32_t most =
        high ? static_cast<std::int32_t>(high->value.whole.size()) : std::max(range_.max_whole, of_low);
    if (most < of_low) return false;
    bool any = first_digit(from, {of_low, of_low, -1, true, high && most == of_low, 0});
    if (high && most > of_low) any |= first_digit(from, {most, most, -1, false, true, 0});
    const std::int32_t free = high ? most - 1 : most;
    if (free > of_low) any |= first_digit(from, {of_low + 1, free, -1, false, false, 0});
    return any;
  }

 private:
  struct State {
    std::int32_t min, max;   // digits of the whole part that are still to come
    std::int32_t fraction;   // digits of the fraction so far; -1: before the point
    bool at_low, at_high;    // the digits so far are those of the bound
    std::int64_t remainder;  // of the whole part
    auto operator<=>(const State&) const = default;
  };

  static int digit_of(const Decimal& number, const State& s) {
    if (s.fraction < 0) return number.whole[number.whole.size() - static_cast<std::size_t>(s.max)] - '0';
    const auto f = static_cast<std::size_t>(s.fraction);
    return f < number.fraction.size() ? number.fraction[f] - '0' : 0;
  }
  // Whether the number is `bound` if nothing follows; else it is less.
  static bool equals(const Decimal& bound, const State& s) {
    return bound.fraction.size() <= static_cast<std::size_t>(std::max(s.fraction, 0));
  }

  bool may_end(const State& s) const {
    if (s.min > 0 || s.fraction == 0 || s.remainder != 0) return false;
    if (s.at_low && (!equals(low_.value, s) || low_.exclusive)) return false;
    return !s.at_high || !equals(high_->value, s) || !high_->exclusive;
  }

  // The node after one more digit, or -1 if no number of the range continues with it.
  Node after(State s, int digit) {
    if (s.at_low) {
      const int bound = digit_of(low_.value, s);
      if (digit < bound) return -1;
      s.at_low = digit == bound;
    }
    if (s.at_high) {
      const int bound = digit_of(high_->value, s);
      if (digit > bound) return -1;
      s.at_high = digit == bound;
    }
    if (s.fraction >= 0) {
      ++s.fraction;
    } else {
      s.min = std::max(s.min - 1, 0);
      --s.max;
      s.remainder = (s.remainder * 10 + digit) % range_.multiple_of;
    }
    return node(s);
  }

  Node node(const State& s) {
    if (const auto found = known_.find(s); found != known_.end()) return found->second;
    std::vector<std::pair<char, Node>> next;
    const bool digits = s.fraction < 0 ? s.max > 0 : s.fraction < range_.max_fraction;
    for (int digit = 0; digits && digit < 10; ++digit)
      if (const Node to = after(s, digit); to >= 0) next.emplace_back(static_cast<char>('0' + digit), to);
    if (s.fraction < 0 && s.min == 0 && range_.max_fraction > 0) {
      State point = s;
      point.max = point.fraction = 0;
      if (const Node to = node(point); to >= 0) next.emplace_back('.', to);
    }
    Node at = -1;
    if (may_end(s) || !next.empty()) {
      at = grammar_.add_node();
      if (may_end(s)) grammar_.link(at, to_);
      link_all(at, next);
    }
    return known_[s] = at;
  }

  bool first_digit(Node from, const State& s) {
    std::vector<std::pair<char, Node>> next;
    for (int digit = s.max == 1 ? 0 : 1; digit < 10; ++digit)
      if (const Node to = after(s, digit); to >= 0) next.emplace_back(static_cast<char>('0' + digit), to);
    link_all(from, next);
    return !next.empty();
  }

  void link_all(Node from, const std::vector<std::pair<char, Node>>& next) {
    for (std::size_t i = 0, end; i < next.size(); i = end) {
      for (end = i + 1; end < next.size() && next[end].second == next[i].second; ++end) {
      }
      grammar_.link_bytes(from, static_cast<unsigned>(next[i].first), static_cast<unsigned>(next[end - 1].first),
                          next[i].second);
    }
  }

  ByteGrammar& grammar_;
  Node to_;
  const NumberRange& range_;
  NumberBound low_;
  std::optional<NumberBound> high_;
  std::map<State, Node> known_;
};

}  // namespace

Decimal decimal_of(const io::Json& number) {
  double value = 0;
  (void)number.number(value);
  const std::string text = number.integer() != nullptr ? std::to_string(*number.integer()) : io::json_number(value);
  Decimal decimal{.negative = text.front() == '-'};
  const std::size_t e = std::min(text.find('e'), text.size());
  std::string digits;
  std::int64_t point = 0;  // digits before it
  bool fraction = false;
  for (const char c : text.substr(0, e)) {
    if (c == '.') fraction = true;
    if (c < '0' || c > '9') continue;
    digits += c;
    point += fraction ? 0 : 1;
  }
  if (e < text.size()) point += std::strtoll(text.c_str() + e + 1, nullptr, 10);
  if (point < 0) digits.insert(0, static_cast<std::size_t>(-point), '0');
  point = std::max<std::int64_t>(point, 0);
  if (static_cast<std::size_t>(point) > digits.size()) digits.resize(static_cast<std::size_t>(point), '0');
  decimal.whole = digits.substr(0, static_cast<std::size_t>(point));
  decimal.fraction = digits.substr(static_cast<std::size_t>(point));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  if (decimal.whole.empty()) decimal.whole.push_back('0');
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

std::strong_ordering compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return b.negative <=> a.negative;
  return a.negative ? compare_magnitudes(b, a) : compare_magnitudes(a, b);
}

bool link_numbers(ByteGrammar& grammar, Node from, const NumberRange& range, Node to) {
  const auto magnitude = [](NumberBound bound) {
    bound.value.negative = false;
    return bound;
  };
  const Decimal zero;
  Magnitudes magnitudes(grammar, to, range);
  bool any = false;
  if (!range.low || range.low->value.negative) {
    const bool below = range.high && range.high->value.negative;
    const NumberBound nearest = below ? magnitude(*range.high) : NumberBound{zero, true};
    const Node sign = grammar.add_node();
    if (magnitudes.link(sign, nearest, range.low ? std::optional(magnitude(*range.low)) : std::nullopt)) {
      grammar.link_bytes(from, '-', '-', sign);
      any = true;
    }
  }
  if (!range.high || !range.high->value.negative) {
    const bool above = range.low && !range.low->value.negative;
    any |= magnitudes.link(from, above ? *range.low : NumberBound{zero, false}, range.high);
  }
  return any;
}

}  // namespace attend::llm

// Numbers between bounds, as decimal digits.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "io/json.hpp"
#include "llm/constrain/byte_grammar.hpp"

namespace attend::llm {

// A number without an exponent.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction{};  // digits; no zeros in front of the whole part or at the end of the fraction
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};
Decimal decimal_of(const io::Json& number);  // the shortest that reads back to the same
std::strong_ordering compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRange {
  std::optional<NumberBound> low, high;
  std::int32_t max_whole = 16, max_fraction = 16;  // digits; a bound may have more in its whole part
  std::int64_t multiple_of = 1;                    // for max_fraction 0
};

// The numbers of a range, written without an exponent. False when there are none.
bool link_numbers(ByteGrammar& grammar, ByteGrammar::Node from, const NumberRange& range, ByteGrammar::Node to);

}  // namespace attend::llm

// Python's pickles, read as data: calls are written down, never made.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_error.hpp"

namespace attend::io {

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,     // of at most 64 bits
  real,        //
  text,        // text and bytes
  other,       // a whole number of more than 64 bits, which nobody asked for yet
  global,      // text is the name of a class or function, one of the known ones
  tuple,       // items
  list,        // items
  dict,        // items are keys and values, alternating; an OrderedDict too
  call,        // items are the global and a tuple of arguments
  persistent,  // items is one, the name of something outside of the pickle
};
const char* kind_name(PickleKind kind);  // "a list", for messages

// A small handle. Lists and dicts may contain themselves: whoever walks them counts the depth.
struct PickleValue {
  PickleKind kind = PickleKind::none;
  std::int64_t integer = 0;  // also of a boolean; the place of items; the bits of a real
  std::string_view text = {};

  double real() const { return std::bit_cast<double>(integer); }
};

struct PickleLimits {
  std::size_t bytes = std::size_t{16} << 20;
  std::size_t steps = std::size_t{1} << 19;  // bounds values, stack and memo alike: each step makes at most one
};

// The opcodes that state dicts are made of, protocols 2 to 5. A global that is not among `known` (as "module.name"),
// and every opcode that makes an object of a class, is refused by its name. Views into `bytes` and into `known`.
class Pickle {
 public:
  Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> known, const std::string& what,
         const PickleLimits& limits = {});

  const PickleValue& root() const { return root_; }
  std::span<const PickleValue> items(const PickleValue& value) const;  // empty if it has none

 private:
  friend class Unpickler;
  PickleValue root_;
  std::deque<std::vector<PickleValue>> items_;
};

}  // namespace attend::io

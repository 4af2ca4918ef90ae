// Finds a token by its bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.hpp"
#include "llm/text/pieces.hpp"

namespace attend::llm {

// An open-addressed table of ids; the bytes stay in the vocabulary, which must outlive it and not change.
class PieceMap {
 public:
  PieceMap() = default;
  explicit PieceMap(std::size_t expected) : slots_(std::bit_ceil(expected + expected / 2 + 2)) {}

  // Nothing happens if the bytes are there already.
  void add(const Pieces& pieces, std::int32_t id) {
    if ((used_ + 1) * 4 > slots_.size() * 3) return grow(pieces, id);
    const std::string_view piece = pieces[static_cast<std::size_t>(id)];
    const std::uint32_t hash = hash_of(piece);
    Slot& slot = slots_[place(pieces, piece, hash)];
    if (slot.id >= 0) return;
    slot = {hash, id};
    ++used_;
  }
  std::int32_t find(const Pieces& pieces, std::string_view piece) const {  // -1: not there
    if (slots_.empty()) return -1;
    return slots_[place(pieces, piece, hash_of(piece))].id;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;
  };

  std::uint32_t hash_of(std::string_view bytes) const { return static_cast<std::uint32_t>(hash_(bytes)); }
  std::size_t place(const Pieces& pieces, std::string_view piece, std::uint32_t hash) const {
    std::size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id >= 0 && (slots_[i].hash != hash || pieces[static_cast<std::size_t>(slots_[i].id)] != piece)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    return i;
  }
  void grow(const Pieces& pieces, std::int32_t id) {
    PieceMap larger(slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.id >= 0) larger.add(pieces, slot.id);
    }
    *this = std::move(larger);
    add(pieces, id);
  }

  KeyedHash hash_;
  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

}  // namespace attend::llm

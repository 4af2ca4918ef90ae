// The merges of a BPE, found by their pair of tokens: at most 28 bytes a merge.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/keyed_hash.hpp"

namespace attend::llm {

class MergeTable {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();  // no rank
  static constexpr std::int32_t kMostTokens = (1 << 21) - 1;                         // ids are less
  static constexpr std::size_t kMostMerges = (std::size_t{1} << 22) - 1;

  explicit MergeTable(std::size_t merges = 0)  // how many will be added
      : slots_(std::bit_ceil(merges + merges / 2 + 2), kEmpty), shift_(64 - std::countr_zero(slots_.size())) {
    results_.reserve(merges);
  }

  // Its rank is the number of merges before it. A pair that is added again has its last rank.
  void add(std::int32_t left, std::int32_t right, std::int32_t result) {
    const std::uint64_t pair = pair_of(left, right);
    slots_[slot(pair)] = (pair << kRankBits) | results_.size();
    results_.push_back(result);
  }

  std::size_t size() const { return results_.size(); }
  std::uint32_t rank(std::int32_t left, std::int32_t right) const {  // kNone: they do not merge
    const std::uint64_t found = slots_[slot(pair_of(left, right))];
    return found == kEmpty ? kNone : static_cast<std::uint32_t>(found & kRanks);
  }
  std::int32_t result(std::uint32_t rank) const { return results_[rank]; }

 private:
  static constexpr int kRankBits = 22, kTokenBits = 21;
  static constexpr std::uint64_t kRanks = (std::uint64_t{1} << kRankBits) - 1;
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // no pair: its tokens would be kMostTokens

  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << kTokenBits) | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t pair) const {
    std::size_t i = hash_(pair) >> shift_;
    while (slots_[i] != kEmpty && slots_[i] >> kRankBits != pair) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  KeyedHash hash_;
  std::vector<std::uint64_t> slots_;  // left token, right token, rank: 21, 21 and 22 bits
  int shift_;
  std::vector<std::int32_t> results_;  // by rank
};

}  // namespace attend::llm

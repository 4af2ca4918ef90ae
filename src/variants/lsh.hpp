// Reformer's hashes, and the tokens of a head sorted by them.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/reformer.hpp"
#include "ops/scratch.hpp"
#include "variants/widened.hpp"

namespace attend {

struct LshPlan {
  // InvalidArgument unless the options make sense.
  LshPlan(const char* op, std::int64_t heads, std::int64_t length, std::int64_t dim, const ReformerOptions& options);

  std::int64_t H, L, D, rounds, chunk;
  bool causal;
  std::uint64_t seed;
  std::vector<std::int64_t> factors;
  std::int64_t columns;  // of R, all factors together
  std::int64_t buckets;
};

Tensor lsh_rotations(const LshPlan& plan);

// The buckets of tokens [first, first + count) of one head, count <= kHashBlock. scratch: lsh_scratch_bytes().
inline constexpr std::int64_t kHashBlock = 256;
std::int64_t lsh_scratch_bytes(const LshPlan& plan);
void hash_tokens(const LshPlan& plan, const FloatMatrix& tokens, const float* rotations, std::int32_t* buckets,
                 void* scratch);

// One round of several heads. Tokens by (bucket, position): order says which token stands where, rank where a token
// stands. The keys that the token at t may meet are those at [lo, hi), but for t itself; none where lo >= hi.
class SortedHeads {
 public:
  SortedHeads(const LshPlan& plan, std::int64_t heads);

  // Heads [first, first + count) of the B * H list.
  void sort(const WidenedInput& q, const Tensor& rotations, std::int64_t round, std::int64_t first, std::int64_t count);

  const std::int32_t* buckets(std::int64_t n) const { return buckets_.data() + n * plan_.L; }
  const std::int32_t* order(std::int64_t n) const { return order_.data() + n * plan_.L; }
  const std::int32_t* rank(std::int64_t n) const { return rank_.data() + n * plan_.L; }
  const std::int64_t* lo(std::int64_t n) const { return lo_.data() + n * plan_.L; }
  const std::int64_t* hi(std::int64_t n) const { return hi_.data() + n * plan_.L; }

 private:
  void sort_head(std::int64_t n, std::int32_t* counts);

  const LshPlan& plan_;
  Buffer<std::int32_t> buckets_, order_, rank_;
  Buffer<std::int64_t> lo_, hi_;
};

}  // namespace attend

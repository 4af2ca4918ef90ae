// Reformer's hashes: a product with random directions, the largest of them, a counting sort.
#include "variants/lsh.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"
#include "ops/matmul.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMostBuckets = std::int64_t{1} << 20;
constexpr std::int64_t kLargestFactor = 64;  // of those chosen here
constexpr std::int64_t kMostRounds = 256;
constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();

// The even number next to x, at least 2.
std::int64_t even(double x) {
  return std::max<std::int64_t>(2, 2 * static_cast<std::int64_t>(std::lround(x / 2)));
}

// About length / chunk buckets in as few even factors of at most kLargestFactor as will do.
std::vector<std::int64_t> chosen_factors(std::int64_t length, std::int64_t chunk) {
  constexpr std::int64_t kMost = kMostBuckets / 2;
  double left = std::min(static_cast<double>(length) / static_cast<double>(chunk), static_cast<double>(kMost));
  int count = 1;
  while (std::pow(static_cast<double>(kLargestFactor), count) < left) ++count;
  std::vector<std::int64_t> factors;
  for (; count > 0; --count) {
    factors.push_back(std::min(kLargestFactor, even(std::pow(left, 1.0 / count))));
    left /= static_cast<double>(factors.back());
  }
  return factors;
}

}  // namespace

LshPlan::LshPlan(const char* op, std::int64_t heads, std::int64_t length, std::int64_t dim,
                 const ReformerOptions& options)
    : H(heads),
      L(length),
      D(dim),
      rounds(options.rounds),
      chunk(options.chunk),
      causal(options.causal),
      seed(options.seed),
      factors(options.buckets),
      columns(0),
      buckets(1) {
  if (rounds < 1 || rounds > kMostRounds)
    fail(op, "rounds is " + std::to_string(rounds) + ", expected 1 to " + std::to_string(kMostRounds));
  if (chunk < 1) fail(op, "chunk is " + std::to_string(chunk) + ", expected at least 1 token");
  if (length < 0 || length > kLongest)
    fail(op, "length is " + std::to_string(length) + ", expected 0 to " + std::to_string(kLongest));
  if (heads < 1 || heads > kLongest || dim < 1)
    fail(op,
         "there are " + std::to_string(heads) + " heads of dim " + std::to_string(dim) + ", expected at least 1 each");
  if (factors.empty()) factors = chosen_factors(length, chunk);
  for (const std::int64_t factor : factors) {
    if (factor < 2 || factor % 2 != 0)
      fail(op, "a factor of the buckets is " + std::to_string(factor) +
                   ", expected an even number: half of them are the other half's opposites");
    if (factor > kMostBuckets / buckets)
      fail(op, "there are more than " + std::to_string(kMostBuckets) + " buckets, expected at most that many");
    buckets *= factor;
    columns += factor / 2;
  }
  chunk = std::min(chunk, std::max<std::int64_t>(1, length));  // so that no bound can overflow
}

Tensor lsh_rotations(const LshPlan& plan) {
  checked_product("rotations", {plan.rounds, plan.H, plan.columns, plan.D});
  Tensor rotations(DType::f32, {plan.rounds, plan.H, plan.columns, plan.D});
  const std::int64_t each = plan.columns * plan.D;
  parallel_for(plan.rounds * plan.H, [&](std::int64_t item, int) {
    float* to = rotations.data<float>() + item * each;
    // A stream per round and head, so that neither number shifts the others' draws.
    const auto stream = static_cast<std::uint64_t>(item / plan.H) << 56 | static_cast<std::uint64_t>(item % plan.H)
                                                                              << 32;
    for (std::int64_t n = 0; n < each; ++n)
      to[n] = static_cast<float>(normal(plan.seed, stream + static_cast<std::uint64_t>(n)));
  });
  return rotations;
}

std::int64_t lsh_scratch_bytes(const LshPlan& plan) {
  const std::int64_t products = checked_product("hashes", {plan.columns, kHashBlock, std::int64_t{sizeof(float)}});
  return (block_product_scratch_bytes() + 63) / 64 * 64 + products;
}

void hash_tokens(const LshPlan& plan, const FloatMatrix& tokens, const float* rotations, std::int32_t* buckets,
                 void* scratch) {
  const std::int64_t count = tokens.rows;
  auto* y = reinterpret_cast<float*>(static_cast<char*>(scratch) + (block_product_scratch_bytes() + 63) / 64 * 64);
  // Directions as rows: the largest is then found for many tokens side by side.
  block_product({const_cast<float*>(rotations), plan.columns, plan.D, plan.D}, tokens.transposed(),
                {y, plan.columns, count, kHashBlock}, false, scratch);
  float largest[kHashBlock];
  std::int32_t best[kHashBlock];
  std::fill_n(buckets, count, 0);
  std::int32_t unit = 1;
  for (const std::int64_t factor : plan.factors) {
    const auto half = static_cast<std::int32_t>(factor / 2);
    std::fill_n(largest, kHashBlock, -std::numeric_limits<float>::infinity());
    std::fill_n(best, kHashBlock, 0);
    for (const float sign : {1.0F, -1.0F})
      for (std::int32_t c = 0; c < half; ++c) {
        const float* row = y + c * kHashBlock;
        const std::int32_t number = sign > 0 ? c : half + c;
        for (std::int64_t t = 0; t < count; ++t) {
          const float value = sign * row[t];
          const bool larger = value > largest[t];
          best[t] = larger ? number : best[t];
          largest[t] = larger ? value : largest[t];
        }
      }
    for (std::int64_t t = 0; t < count; ++t) buckets[t] += unit * best[t];
    unit *= static_cast<std::int32_t>(factor);
    y += half * kHashBlock;
  }
}

SortedHeads::SortedHeads(const LshPlan& plan, std::int64_t heads)
    : plan_(plan),
      buckets_(checked_product("hashes", {heads, plan.L})),
      order_(heads * plan.L),
      rank_(heads * plan.L),
      lo_(heads * plan.L),
      hi_(heads * plan.L) {}

void SortedHeads::sort(const WidenedInput& q, const Tensor& rotations, std::int64_t round, std::int64_t first,
                       std::int64_t count) {
  const std::int64_t L = plan_.L, H = plan_.H, blocks = divide_up(L, kHashBlock);
  const Scratch scratch(std::max(lsh_scratch_bytes(plan_), (plan_.buckets + 1) * std::int64_t{sizeof(std::int32_t)}));
  parallel_for(count * blocks, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t n = item / blocks, head = first + n, begin = item % blocks * kHashBlock;
    const FloatMatrix tokens = q.matrix(head / H, head % H).part(begin, std::min(kHashBlock, L - begin));
    hash_tokens(plan_, tokens, rotations.data<float>() + (round * H + head % H) * plan_.columns * plan_.D,
                buckets_.data() + n * L + begin, scratch.of(worker));
  });
  parallel_for(count, scratch.workers(),
               [&](std::int64_t n, int worker) { sort_head(n, static_cast<std::int32_t*>(scratch.of(worker))); });
}

void SortedHeads::sort_head(std::int64_t n, std::int32_t* starts) {
  const std::int64_t L = plan_.L, chunk = plan_.chunk;
  const std::int32_t* bucket = buckets(n);
  std::int32_t *order = order_.data() + n * L, *rank = rank_.data() + n * L;
  std::fill_n(starts, plan_.buckets + 1, 0);
  for (std::int64_t i = 0; i < L; ++i) ++starts[bucket[i] + 1];
  for (std::int64_t b = 0; b < plan_.buckets; ++b) starts[b + 1] += starts[b];
  for (std::int64_t i = 0; i < L; ++i) {  // afterwards starts[b] is where bucket b ends
    rank[i] = starts[bucket[i]]++;
    order[rank[i]] = static_cast<std::int32_t>(i);
  }
  std::int64_t *lo = lo_.data() + n * L, *hi = hi_.data() + n * L;
  for (std::int64_t b = 0, begin = 0; b < plan_.buckets; ++b) {
    const std::int64_t end = starts[b];
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t own = t / chunk * chunk;
      lo[t] = std::max(begin, own - chunk);
      hi[t] = plan_.causal ? t : std::min(end, own + chunk);
      if (hi[t] - lo[t] == 1 && lo[t] == t) hi[t] = lo[t];  // nobody but itself
    }
    begin = end;
  }
}

}  // namespace attend

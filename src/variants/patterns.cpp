// Sparse attention patterns, put together from the rules of masks.
#include "attend/patterns.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/random.hpp"

namespace attend {
namespace {

constexpr std::int64_t kFarthest = std::int64_t{1} << 60;  // farther than any key

void check_at_least(const char* op, const char* what, std::int64_t got, std::int64_t least) {
  if (got < least || got > kFarthest)
    fail(op, std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(least) + " to 2^60");
}

std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// Blocks of one head: which of them a block of queries sees.
class Layout {
 public:
  Layout(const char* op, std::int64_t heads, std::int64_t rows, std::int64_t cols)
      : heads_(heads), rows_(rows), cols_(cols), bits_(at(checked_product(op, {heads, rows, cols}))) {}

  bool get(std::int64_t h, std::int64_t y, std::int64_t x) const { return bits_[at((h * rows_ + y) * cols_ + x)] != 0; }
  void set(std::int64_t h, std::int64_t y, std::int64_t x) { bits_[at((h * rows_ + y) * cols_ + x)] = 1; }
  void set_range(std::int64_t h, std::int64_t y, std::int64_t first, std::int64_t last) {
    for (std::int64_t x = std::max<std::int64_t>(first, 0); x <= std::min(last, cols_ - 1); ++x) set(h, y, x);
  }
  std::int64_t cols() const { return cols_; }
  Mask mask(std::int64_t block_queries, std::int64_t block_keys) && {
    return blocks(block_queries, block_keys, heads_, rows_, cols_, std::move(bits_));
  }

 private:
  std::int64_t heads_, rows_, cols_;
  std::vector<std::uint8_t> bits_;
};

std::uint32_t random_bits(std::uint64_t seed, std::int64_t h, std::int64_t y, std::int64_t x) {
  return philox(
      {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(h), 0x62697264U},
      seed)[0];
}

// Adds `count` of the blocks up to `last` that row y does not see yet: those with the smallest random numbers.
void add_random(Layout& layout, const BigBird& options, std::int64_t h, std::int64_t y, std::int64_t last) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> others;
  for (std::int64_t x = 0; x <= std::min(last, layout.cols() - 1); ++x)
    if (!layout.get(h, y, x)) others.emplace_back(random_bits(options.seed, h, y, x), x);
  const auto count = std::min<std::ptrdiff_t>(options.random_blocks, std::ssize(others));
  std::partial_sort(others.begin(), others.begin() + count, others.end());
  for (std::ptrdiff_t n = 0; n < count; ++n) layout.set(h, y, others[at(n)].second);
}

void check_lengths(const char* op, std::int64_t queries, std::int64_t keys) {
  check_at_least(op, "queries", queries, 0);
  check_at_least(op, "keys", keys, 0);
}

}  // namespace

Mask strided(std::int64_t stride, const Diagonal& diagonal) {
  check_at_least("strided", "stride", stride, 1);
  const Mask past = causal(diagonal);
  return past & (window(stride, 0, diagonal) | (past & dilated(stride, diagonal)));
}

Mask fixed(std::int64_t block, std::int64_t columns_seen, const Diagonal& diagonal) {
  check_at_least("fixed", "block", block, 1);
  check_at_least("fixed", "columns", columns_seen, 1);
  if (columns_seen > block)
    fail("fixed",
         "columns is " + std::to_string(columns_seen) + ", expected at most the block, " + std::to_string(block));
  return causal(diagonal) & (chunks(block, 0, diagonal) | columns(block, block - columns_seen, columns_seen));
}

Mask longformer(std::int64_t window_keys, std::int64_t dilation, std::vector<std::int64_t> global_positions,
                const Diagonal& diagonal) {
  check_at_least("longformer", "window", window_keys, 0);
  check_at_least("longformer", "dilation", dilation, 1);
  if (window_keys == 0 && dilation > 1)
    fail("longformer", "window is 0 with a dilation of " + std::to_string(dilation) +
                           ": it skips every key but a query's own; expected a window of at least 1");
  if (dilation > 1 && window_keys > kFarthest / dilation)
    fail("longformer", "window x dilation is more than 2^60: no key lies that far");
  const std::int64_t reach = window_keys * dilation;
  Mask near = window(reach, reach, diagonal);
  if (dilation > 1) near = near & dilated(dilation, diagonal);
  if (global_positions.empty()) return near;
  return near | global_tokens(std::move(global_positions), diagonal);
}

Mask streaming(std::int64_t sinks, std::int64_t window_keys, const Diagonal& diagonal) {
  check_at_least("streaming", "sinks", sinks, 0);
  check_at_least("streaming", "window", window_keys, 1);
  Mask recent = causal(diagonal) & window(window_keys - 1, kUnlimited, diagonal);
  if (sinks == 0) return recent;
  return causal(diagonal) & (recent | columns(kFarthest, 0, sinks));
}

Mask bigbird(std::int64_t queries, std::int64_t keys, const BigBird& options) {
  const char* op = "bigbird";
  check_lengths(op, queries, keys);
  check_at_least(op, "block", options.block, 1);
  check_at_least(op, "window_blocks", options.window_blocks, 1);
  check_at_least(op, "global_blocks", options.global_blocks, 0);
  check_at_least(op, "random_blocks", options.random_blocks, 0);
  check_at_least(op, "heads", options.heads, 1);
  if (options.window_blocks % 2 == 0)
    fail(op, "window_blocks is " + std::to_string(options.window_blocks) +
                 ", expected an odd number: a block's own and as many on each side");
  const std::int64_t block = options.block, rows = divide_up(queries, block), cols = divide_up(keys, block);
  if (options.global_blocks > cols || options.random_blocks > cols)
    fail(op, "global_blocks is " + std::to_string(options.global_blocks) + " and random_blocks " +
                 std::to_string(options.random_blocks) + ", expected at most the " + std::to_string(cols) +
                 " blocks of keys there are");
  Layout layout(op, options.heads, rows, cols);
  const std::int64_t side = options.window_blocks / 2;
  const auto block_of = [&](std::int64_t i) {  // where query i stands; before the first key: below 0
    const std::int64_t p = i + keys - queries;
    return p < 0 ? -1 - side : p / block;
  };
  for (std::int64_t h = 0; h < options.heads; ++h)
    for (std::int64_t y = 0; y < rows; ++y) {
      const std::int64_t first = block_of(y * block), last = block_of(std::min(queries, (y + 1) * block) - 1);
      const bool global = last >= 0 && first < options.global_blocks;
      layout.set_range(h, y, 0, global ? cols - 1 : options.global_blocks - 1);
      layout.set_range(h, y, first - side, last + side);
      add_random(layout, options, h, y, options.causal ? last : cols - 1);
    }
  Mask mask = std::move(layout).mask(block, block);
  return options.causal ? mask & causal() : mask;
}

Mask block_permutation(std::int64_t queries, std::int64_t keys,
                       const std::vector<std::vector<std::int64_t>>& permutations) {
  const char* op = "block_permutation";
  check_lengths(op, queries, keys);
  if (permutations.empty() || permutations[0].empty())
    fail(op, "got no permutation, expected one for all heads, or one for each head");
  const std::int64_t n = std::ssize(permutations[0]);
  const std::int64_t block_queries = divide_up(queries, n), block_keys = divide_up(keys, n);
  for (const auto& [what, length, block] :
       {std::tuple{"queries", queries, block_queries}, std::tuple{"keys", keys, block_keys}})
    if (block < 1 || divide_up(length, block) != n)
      fail(op, std::to_string(length) + " " + what + " do not cut into " + std::to_string(n) +
                   " blocks: some would be empty");
  const std::int64_t heads = std::ssize(permutations);
  Layout layout(op, heads, n, n);
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::vector<std::int64_t>& permutation = permutations[at(h)];
    check_equal(op, "permutation length", std::ssize(permutation), n, "as the first");
    std::vector<bool> taken(at(n), false);
    for (std::int64_t y = 0; y < n; ++y) {
      const std::int64_t x = permutation[at(y)];
      if (x < 0 || x >= n || taken[at(x)])
        fail(op, "permutation[" + std::to_string(y) + "] is " + std::to_string(x) + ", expected each of 0 to " +
                     std::to_string(n - 1) + " once");
      taken[at(x)] = true;
      layout.set(h, y, x);
    }
  }
  return std::move(layout).mask(block_queries, block_keys);
}

Mask block_permutation(std::int64_t queries, std::int64_t keys, std::int64_t blocks, std::int64_t heads,
                       std::uint64_t seed) {
  check_lengths("block_permutation", queries, keys);
  if (blocks < 1 || blocks > std::min(queries, keys))
    fail("block_permutation", "blocks is " + std::to_string(blocks) + ", expected 1 to " +
                                  std::to_string(std::min(queries, keys)) + ", the shorter length");
  check_at_least("block_permutation", "heads", heads, 1);
  checked_product("block_permutation", {heads, blocks, blocks});
  std::vector<std::vector<std::int64_t>> permutations(at(heads), std::vector<std::int64_t>(at(blocks)));
  for (std::int64_t h = 0; h < heads; ++h) {
    std::vector<std::int64_t>& permutation = permutations[at(h)];
    std::iota(permutation.begin(), permutation.end(), 0);
    for (std::int64_t n = blocks - 1; n > 0; --n) {  // Fisher and Yates
      const std::int64_t other = std::int64_t{random_bits(seed, h, blocks, n)} % (n + 1);
      std::swap(permutation[at(n)], permutation[at(other)]);
    }
  }
  return block_permutation(queries, keys, permutations);
}

}  // namespace attend

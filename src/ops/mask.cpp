// The masks: each factory checks what can be known without the tensors.
#include "attend/mask.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"

namespace attend {
namespace {

// Positions stay within this, so that sums of a position, an offset and a window side cannot wrap.
constexpr std::int64_t kFarthest = std::int64_t{1} << 60;

SharedInts share(std::vector<std::int64_t> values) {
  return std::make_shared<const std::vector<std::int64_t>>(std::move(values));
}

std::string element(const char* what, std::size_t index) {
  return std::string(what) + "[" + std::to_string(index) + "]";
}

SharedInts checked_counts(const char* op, const char* what, std::vector<std::int64_t> values) {
  if (values.empty()) fail(op, std::string(what) + " has 0 values, expected one per batch, or one for all");
  for (std::size_t b = 0; b < values.size(); ++b) {
    if (values[b] < 0) fail(op, element(what, b) + " is " + std::to_string(values[b]) + ", expected >= 0");
  }
  return share(std::move(values));
}

SharedInts checked_cumulative(const char* what, std::vector<std::int64_t> values) {
  if (values.empty()) fail("segments", std::string(what) + " has 0 values, expected at least the starting 0");
  if (values[0] != 0) fail("segments", element(what, 0) + " is " + std::to_string(values[0]) + ", expected 0");
  for (std::size_t s = 1; s < values.size(); ++s) {
    if (values[s] < values[s - 1]) {
      fail("segments", element(what, s) + " is " + std::to_string(values[s]) +
                           ", expected >= " + std::to_string(values[s - 1]) + " (the one before)");
    }
  }
  return share(std::move(values));
}

std::int64_t checked_side(const char* what, std::int64_t side) {
  if (side < kUnlimited) {
    fail("window", std::string(what) + " is " + std::to_string(side) + ", expected >= 0, or kUnlimited (-1)");
  }
  // Four times the farthest position: no key lies beyond, so it is no limit.
  return side >= 4 * kFarthest ? kUnlimited : side;
}

bool has_segments(const Mask& mask) {
  return std::any_of(mask.rules.begin(), mask.rules.end(),
                     [](const MaskRule& rule) { return std::holds_alternative<SegmentsRule>(rule); });
}

std::int64_t depth_of(const Mask& mask) {
  std::int64_t deepest = 0;
  for (const MaskRule& rule : mask.rules) {
    const auto* any = std::get_if<AnyRule>(&rule);
    if (any == nullptr || !any->masks) continue;
    for (const Mask& part : *any->masks) deepest = std::max(deepest, 1 + depth_of(part));
  }
  return deepest;
}

Mask group(const char* op, std::vector<Mask> parts, bool none) {
  Mask mask{{AnyRule{std::make_shared<const std::vector<Mask>>(std::move(parts)), none}}};
  const std::int64_t depth = depth_of(mask);
  if (depth > kDeepestMask)
    fail(op, "masks nest " + std::to_string(depth) + " deep, expected at most " + std::to_string(kDeepestMask));
  return mask;
}

void check_range(const char* op, const char* what, std::int64_t got, std::int64_t least) {
  if (got < least || got > kFarthest)
    fail(op, std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(least) + " to 2^60");
}

SharedInts checked_positions(const char* op, std::vector<std::int64_t> positions) {
  if (positions.empty()) fail(op, "positions has 0 values, expected at least one token");
  for (std::size_t n = 0; n < positions.size(); ++n) check_range(op, element("positions", n).c_str(), positions[n], 0);
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return share(std::move(positions));
}

}  // namespace

Diagonal Diagonal::at(std::vector<std::int64_t> offsets) {
  if (offsets.empty()) fail("Diagonal::at", "offsets has 0 values, expected one per batch, or one for all");
  for (std::size_t b = 0; b < offsets.size(); ++b) {
    if (offsets[b] < -kFarthest || offsets[b] > kFarthest) {
      fail("Diagonal::at", element("offsets", b) + " is " + std::to_string(offsets[b]) + ", expected within +-2^60");
    }
  }
  Diagonal diagonal(Align::first_key);
  diagonal.offsets = share(std::move(offsets));
  return diagonal;
}

Mask operator&(Mask a, const Mask& b) {
  if (has_segments(a) && has_segments(b)) {
    fail("mask &", "both sides have segments, expected one (positions count within the segment)");
  }
  a.rules.insert(a.rules.end(), b.rules.begin(), b.rules.end());
  return a;
}

Mask operator|(const Mask& a, const Mask& b) {
  if (a.rules.empty() || b.rules.empty()) return {};  // one side allows all
  std::vector<Mask> parts;
  for (const Mask* side : {&a, &b}) {
    const auto* any = side->rules.size() == 1 ? std::get_if<AnyRule>(&side->rules[0]) : nullptr;
    if (any != nullptr && any->masks && !any->none)
      parts.insert(parts.end(), any->masks->begin(), any->masks->end());
    else
      parts.push_back(*side);
  }
  return group("mask |", std::move(parts), false);
}

Mask except(const Mask& hidden) {
  return group("except", {hidden}, true);
}

Mask no_mask() {
  return {};
}

Mask causal(Diagonal diagonal) {
  return {{CausalRule{std::move(diagonal)}}};
}

Mask window(std::int64_t left, std::int64_t right, Diagonal diagonal) {
  return {{WindowRule{checked_side("left", left), checked_side("right", right), std::move(diagonal)}}};
}

Mask padding(std::vector<std::int64_t> lengths) {
  return {{PaddingRule{nullptr, checked_counts("padding", "lengths", std::move(lengths))}}};
}

Mask left_padding(std::vector<std::int64_t> counts) {
  return {{PaddingRule{checked_counts("left_padding", "counts", std::move(counts)), nullptr}}};
}

Mask prefix(std::vector<std::int64_t> lengths, Diagonal diagonal) {
  return {{PrefixRule{checked_counts("prefix", "lengths", std::move(lengths)), std::move(diagonal)}}};
}

Mask segments(std::vector<std::int64_t> cumulative) {
  const SharedInts both = checked_cumulative("cumulative", std::move(cumulative));
  return {{SegmentsRule{both, both}}};
}

Mask segments(std::vector<std::int64_t> cumulative_queries, std::vector<std::int64_t> cumulative_keys) {
  check_equal("segments", "number of cumulative_keys", static_cast<std::int64_t>(cumulative_keys.size()),
              static_cast<std::int64_t>(cumulative_queries.size()), "as cumulative_queries");
  return {{SegmentsRule{checked_cumulative("cumulative_queries", std::move(cumulative_queries)),
                        checked_cumulative("cumulative_keys", std::move(cumulative_keys))}}};
}

Mask blocks(std::int64_t block_queries, std::int64_t block_keys, std::int64_t heads, std::int64_t rows,
            std::int64_t cols, std::vector<std::uint8_t> bits) {
  const auto check_at_least = [](const char* what, std::int64_t got, std::int64_t least) {
    if (got < least)
      fail("blocks", std::string(what) + " is " + std::to_string(got) + ", expected >= " + std::to_string(least));
  };
  check_at_least("block_queries", block_queries, 1);
  check_at_least("block_keys", block_keys, 1);
  check_at_least("heads", heads, 1);
  check_at_least("rows", rows, 0);
  check_at_least("cols", cols, 0);
  check_equal("blocks", "number of bits", static_cast<std::int64_t>(bits.size()),
              checked_product("blocks: heads x rows x cols", {heads, rows, cols}), "heads x rows x cols");
  return {{BlocksRule{block_queries, block_keys, heads, rows, cols,
                      std::make_shared<const std::vector<std::uint8_t>>(std::move(bits))}}};
}

Mask chunks(std::int64_t size, std::int64_t back, Diagonal diagonal) {
  check_range("chunks", "size", size, 1);
  check_range("chunks", "back", back, 0);
  return {{ChunksRule{size, back, std::move(diagonal)}}};
}

Mask dilated(std::int64_t step, Diagonal diagonal) {
  check_range("dilated", "step", step, 1);
  return {{DilatedRule{step, std::move(diagonal)}}};
}

Mask columns(std::int64_t period, std::int64_t first, std::int64_t count) {
  check_range("columns", "period", period, 1);
  check_range("columns", "first", first, 0);
  check_range("columns", "count", count, 1);
  if (first >= period || count > period - first)
    fail("columns", "first is " + std::to_string(first) + " and count " + std::to_string(count) +
                        ", expected first + count at most the period, " + std::to_string(period));
  return {{ColumnsRule{period, first, count}}};
}

Mask tokens(std::vector<std::int64_t> positions) {
  return {{TokensRule{checked_positions("tokens", std::move(positions)), false, Align::last_key}}};
}

Mask global_tokens(std::vector<std::int64_t> positions, Diagonal diagonal) {
  return {{TokensRule{checked_positions("global_tokens", std::move(positions)), true, std::move(diagonal)}}};
}

Mask dense(const std::uint8_t* data, const Shape& shape, const Strides& strides) {
  check_layout("dense", "mask", data, shape, strides, 1);
  return {{DenseRule{data, shape, strides}}};
}

Mask dense(const std::uint8_t* data, const Shape& shape) {
  return dense(data, shape, contiguous_strides(shape));
}

}  // namespace attend

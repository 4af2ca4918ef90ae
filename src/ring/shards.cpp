// Splits of a sequence and masks of pairs of blocks.
#include "ring/shards.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <variant>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "ops/rows.hpp"

namespace attend::ring {
namespace {

using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kFar = std::int64_t{1} << 60;  // further than any sequence reaches, with room to add

// A side of a window as a distance.
std::int64_t reach(std::int64_t side) {
  return side == kUnlimited ? kFar : std::min(side, kFar);
}

// The whole sequence has as many queries as keys, so both alignments mean the same: query i stands at key i.
Ints offsets_of(const Diagonal& diagonal) {
  return diagonal.offsets == nullptr ? Ints{0} : *diagonal.offsets;
}

Diagonal moved(const Diagonal& diagonal, std::int64_t by) {
  Ints offsets = offsets_of(diagonal);
  for (std::int64_t& offset : offsets) offset += by;
  return Diagonal::at(std::move(offsets));
}

// Positions in the whole as positions among the keys of the chunk.
SharedInts within(const SharedInts& positions, const Chunk& keys) {
  if (positions == nullptr) return nullptr;
  Ints local = *positions;
  for (std::int64_t& x : local) x = std::clamp<std::int64_t>(x - keys.first, 0, keys.count);
  return std::make_shared<const Ints>(std::move(local));
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

template <class Rule>
MaskRule refused(const Rule& rule) {
  return rule;
}

// True if any batch's interval [first + lo, last + hi] of keys meets the chunk.
bool meets(const Ints& offsets, std::int64_t left, std::int64_t right, const Chunk& queries, const Chunk& keys) {
  return std::any_of(offsets.begin(), offsets.end(), [&](std::int64_t offset) {
    const std::int64_t lo = queries.first + offset - left, hi = queries.first + queries.count - 1 + offset + right;
    return lo < keys.first + keys.count && hi >= keys.first;
  });
}

bool padding_sees(const PaddingRule& rule, const Chunk& keys) {
  const std::size_t batches =
      std::max<std::size_t>(rule.starts ? rule.starts->size() : 1, rule.ends ? rule.ends->size() : 1);
  const auto value = [](const SharedInts& ints, std::size_t b, std::int64_t otherwise) {
    if (ints == nullptr || ints->empty()) return otherwise;
    return (*ints)[ints->size() == 1 ? 0 : std::min(b, ints->size() - 1)];
  };
  for (std::size_t b = 0; b < batches; ++b) {
    if (std::max(value(rule.starts, b, 0), keys.first) < std::min(value(rule.ends, b, kFar), keys.first + keys.count)) {
      return true;
    }
  }
  return false;
}

// FNV-1a, a word at a time.
struct Hash {
  std::uint64_t value = 0xCBF29CE484222325ULL;
  void add(std::int64_t x) { value = (value ^ static_cast<std::uint64_t>(x)) * 0x100000001B3ULL; }
  void add(double x) { add(std::bit_cast<std::int64_t>(x)); }
  void add(const Ints& xs) {
    add(static_cast<std::int64_t>(xs.size()));
    for (const std::int64_t x : xs) add(x);
  }
  void add(const SharedInts& xs) { add(xs == nullptr ? Ints{} : *xs); }
};

void check_offsets(const char* op, const char* what, const Ints& offsets) {
  for (const std::int64_t offset : offsets) {
    if (offset < -kFar || offset > kFar) {
      fail(op, std::string("the diagonal of ") + what + " lies at " + std::to_string(offset) +
                   ", expected at most 2^60 from the first key");
    }
  }
}

}  // namespace

std::vector<Chunk> chunks_of(RingSharding sharding, std::int64_t rank, std::int64_t ranks, std::int64_t local) {
  if (sharding == RingSharding::contiguous) return {{rank * local, 0, local}};
  const std::int64_t half = local / 2;
  return {{rank * half, 0, half}, {(2 * ranks - 1 - rank) * half, half, half}};
}

void check_options(const char* op, const RingOptions& options, std::int64_t local) {
  if (!(options.timeout_seconds > 0)) {
    fail(op, "timeout is " + std::to_string(options.timeout_seconds) + " s, expected more than 0");
  }
  const auto progress = static_cast<int>(options.progress);
  if (progress < 0 || progress > static_cast<int>(RingProgress::none)) {
    fail(op, "progress is " + std::to_string(progress) + ", expected automatic, thread, slices or none");
  }
  if (!(options.slice_work >= 1)) {
    fail(op, "slice_work is " + std::to_string(options.slice_work) + ", expected at least 1");
  }
  if (options.sharding != RingSharding::contiguous && options.sharding != RingSharding::zigzag) {
    fail(op, "sharding is " + std::to_string(static_cast<int>(options.sharding)) + ", expected contiguous or zigzag");
  }
  if (options.sharding == RingSharding::zigzag && local % 2 != 0) {
    fail(op, "a rank holds " + std::to_string(local) +
                 " tokens, expected an even number (zigzag gives each rank two chunks: the length must divide by twice "
                 "the number of ranks)");
  }
  const AttentionOptions& a = options.attention;
  const auto refuse = [&](const char* what, const char* why) {
    fail(op, std::string(what) + " is not for a ring: " + why);
  };
  if (a.distance_bias)
    refuse("a bias by distance", "its places count within one process; ALiBi and masks count positions");
  if (a.bias) refuse("a bias", "it would have to hold all keys on every rank; ALiBi and masks count positions");
  if (a.rule) refuse("a score rule", "it is told places in a block, not in the sequence");
  if (a.sinks) refuse("a sink", "every block would count it anew");
  if (a.dropout.probability != 0) refuse("dropout", "it draws by places in a block, not in the sequence");
  for (const MaskRule& rule : a.mask.rules) {
    std::visit(Overloaded{[&](const CausalRule& r) { check_offsets(op, "the causal mask", offsets_of(r.diagonal)); },
                          [&](const WindowRule& r) { check_offsets(op, "the window", offsets_of(r.diagonal)); },
                          [&](const PrefixRule& r) { check_offsets(op, "the prefix", offsets_of(r.diagonal)); },
                          [&](const PaddingRule&) {},
                          [&](const auto&) {
                            refuse(
                                "a mask of segments, blocks or bytes",
                                "its places are those of one process; causal, window, padding and prefix masks work");
                          }},
               rule);
  }
  check_offsets(op, "ALiBi", offsets_of(a.alibi_diagonal));
  if (a.alibi_slopes) {
    check_readable(op, "ALiBi slopes", *a.alibi_slopes);
    const Shape& shape = a.alibi_slopes->shape;
    check_shape(op, "ALiBi slopes", shape, {shape[0], shape[1], 1, 1});
  }
}

bool counts_positions(const AttentionOptions& options) {
  return !options.mask.rules.empty() || options.alibi_slopes.has_value();
}

bool sees(const Mask& mask, const Chunk& queries, const Chunk& keys) {
  if (queries.count == 0 || keys.count == 0) return false;
  const auto rule_sees = Overloaded{
      [&](const CausalRule& r) { return meets(offsets_of(r.diagonal), kFar, 0, queries, keys); },
      [&](const WindowRule& r) { return meets(offsets_of(r.diagonal), reach(r.left), reach(r.right), queries, keys); },
      [&](const PaddingRule& r) { return padding_sees(r, keys); },
      [&](const PrefixRule& r) {
        const bool prefix = r.lengths != nullptr && std::any_of(r.lengths->begin(), r.lengths->end(),
                                                                [&](std::int64_t n) { return n > keys.first; });
        return prefix || meets(offsets_of(r.diagonal), kFar, 0, queries, keys);
      },
      [](const auto&) { return true; }};
  return std::all_of(mask.rules.begin(), mask.rules.end(),
                     [&](const MaskRule& rule) { return std::visit(rule_sees, rule); });
}

AttentionOptions local_options(const AttentionOptions& options, const Chunk& queries, const Chunk& keys,
                               std::int64_t first_head, std::int64_t heads) {
  AttentionOptions local = options;
  const std::int64_t by = queries.first - keys.first;
  for (MaskRule& rule : local.mask.rules) {
    rule = std::visit(
        Overloaded{
            [&](const CausalRule& r) -> MaskRule { return CausalRule{moved(r.diagonal, by)}; },
            [&](const WindowRule& r) -> MaskRule { return WindowRule{r.left, r.right, moved(r.diagonal, by)}; },
            [&](const PaddingRule& r) -> MaskRule { return PaddingRule{within(r.starts, keys), within(r.ends, keys)}; },
            [&](const PrefixRule& r) -> MaskRule { return PrefixRule{within(r.lengths, keys), moved(r.diagonal, by)}; },
            [](const auto& r) { return refused(r); }},
        rule);
  }
  if (options.alibi_slopes) {
    local.alibi_slopes = slice(*options.alibi_slopes, 1, first_head, heads);
    local.alibi_diagonal = moved(options.alibi_diagonal, by);
  }
  return local;
}

std::int64_t hash_of(const RingOptions& options) {
  Hash hash;
  const AttentionOptions& a = options.attention;
  hash.add(static_cast<std::int64_t>(options.sharding));
  hash.add(a.scale.value_or(std::numeric_limits<double>::quiet_NaN()));
  hash.add(a.softcap);
  hash.add(static_cast<std::int64_t>(a.precision));
  if (a.alibi_slopes) {
    const auto& [B, H, one, other] = a.alibi_slopes->shape;
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t h = 0; h < H; ++h) hash.add(load(*a.alibi_slopes, b, h, 0, 0));
    }
    hash.add(offsets_of(a.alibi_diagonal));
  }
  for (const MaskRule& rule : a.mask.rules) {
    hash.add(static_cast<std::int64_t>(rule.index()));
    std::visit(Overloaded{[&](const CausalRule& r) { hash.add(offsets_of(r.diagonal)); },
                          [&](const WindowRule& r) {
                            hash.add(r.left);
                            hash.add(r.right);
                            hash.add(offsets_of(r.diagonal));
                          },
                          [&](const PaddingRule& r) {
                            hash.add(r.starts);
                            hash.add(r.ends);
                          },
                          [&](const PrefixRule& r) {
                            hash.add(r.lengths);
                            hash.add(offsets_of(r.diagonal));
                          },
                          [](const auto&) {}},
               rule);
  }
  return static_cast<std::int64_t>(hash.value);
}

}  // namespace attend::ring

namespace attend {
namespace {

void check_sharding(const char* op, RingSharding sharding, std::int64_t rank, std::int64_t ranks, std::int64_t length) {
  if (ranks < 1) fail(op, "ranks is " + std::to_string(ranks) + ", expected at least 1");
  if (rank < 0 || rank >= ranks) {
    fail(op, "rank is " + std::to_string(rank) + ", expected 0 to " + std::to_string(ranks - 1));
  }
  if (sharding != RingSharding::contiguous && sharding != RingSharding::zigzag) {
    fail(op, "sharding is " + std::to_string(static_cast<int>(sharding)) + ", expected contiguous or zigzag");
  }
  const bool zigzag = sharding == RingSharding::zigzag;
  if (zigzag && ranks > std::numeric_limits<std::int64_t>::max() / 2) fail(op, "ranks are too many to count chunks");
  const std::int64_t parts = zigzag ? 2 * ranks : ranks;
  if (length < 0 || length % parts != 0) {
    fail(op, "length is " + std::to_string(length) + ", expected a multiple of " + std::to_string(parts) +
                 (zigzag ? " (zigzag: two chunks for each of " : " (a part for each of ") + std::to_string(ranks) +
                 " ranks)");
  }
}

}  // namespace

std::vector<std::int64_t> ring_positions(RingSharding sharding, std::int64_t rank, std::int64_t ranks,
                                         std::int64_t length) {
  check_sharding("ring_positions", sharding, rank, ranks, length);
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(length / ranks));
  for (const ring::Chunk& chunk : ring::chunks_of(sharding, rank, ranks, length / ranks)) {
    for (std::int64_t i = 0; i < chunk.count; ++i) positions.push_back(chunk.first + i);
  }
  return positions;
}

Tensor ring_part(View whole, RingSharding sharding, std::int64_t rank, std::int64_t ranks) {
  check_readable("ring_part", "the whole", whole);
  check_sharding("ring_part", sharding, rank, ranks, whole.length());
  const std::int64_t local = whole.length() / ranks;
  Tensor part(whole.dtype, {whole.batch(), whole.heads(), local, whole.dim()});
  for (const ring::Chunk& chunk : ring::chunks_of(sharding, rank, ranks, local)) {
    copy_rows(slice(whole, 2, chunk.first, chunk.count), slice(part.view(), 2, chunk.at, chunk.count));
  }
  return part;
}

void ring_place(View part, MutableView whole, RingSharding sharding, std::int64_t rank, std::int64_t ranks) {
  check_readable("ring_place", "the part", part);
  check_writable("ring_place", "the whole", whole);
  check_sharding("ring_place", sharding, rank, ranks, whole.length());
  const std::int64_t local = whole.length() / ranks;
  check_shape("ring_place", "the part", part.shape, {whole.batch(), whole.heads(), local, whole.dim()});
  check_dtype("ring_place", "the part", part.dtype, whole.dtype);
  check_all_apart("ring_place", {{"the whole", whole}}, {{"the part", part}});
  for (const ring::Chunk& chunk : ring::chunks_of(sharding, rank, ranks, local)) {
    copy_rows(slice(part, 2, chunk.at, chunk.count), slice(whole, 2, chunk.first, chunk.count));
  }
}

}  // namespace attend

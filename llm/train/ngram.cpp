// Counts of one, two and three tokens in a row.
#include "llm/train/ngram.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.hpp"

namespace attend::llm {
namespace {

constexpr double kDiscount = 0.75;
constexpr int kBits = 21;  // of a token in a key: vocabularies are below 2^21

struct Context {
  std::int64_t seen = 0, kinds = 0;  // how often it occurred, and before how many different tokens
};

struct Counts {
  std::vector<std::int64_t> one;
  std::int64_t all = 0;
  std::unordered_map<std::uint64_t, std::int64_t> two, three;
  std::unordered_map<std::uint64_t, Context> after_one, after_two;
};

std::uint64_t key(std::int64_t a, std::int64_t b, std::int64_t c = 0) {
  return (static_cast<std::uint64_t>(a) << 2 * kBits) | (static_cast<std::uint64_t>(b) << kBits) |
         static_cast<std::uint64_t>(c);
}

void count_in(std::unordered_map<std::uint64_t, std::int64_t>& pairs, std::unordered_map<std::uint64_t, Context>& after,
              std::uint64_t pair, std::uint64_t context) {
  Context& c = after[context];
  ++c.seen;
  if (++pairs[pair] == 1) ++c.kinds;
}

double discounted(const std::unordered_map<std::uint64_t, std::int64_t>& pairs,
                  const std::unordered_map<std::uint64_t, Context>& after, std::uint64_t pair, std::uint64_t context,
                  double lower) {
  const auto found = after.find(context);
  if (found == after.end()) return lower;
  const auto n = pairs.find(pair);
  const double own = n == pairs.end() ? 0 : std::max(0.0, static_cast<double>(n->second) - kDiscount);
  const double rest = kDiscount * static_cast<double>(found->second.kinds);
  return (own + rest * lower) / static_cast<double>(found->second.seen);
}

}  // namespace

NgramLosses ngram_losses(const DocumentSplit& split, std::int64_t vocabulary, std::int64_t most) {
  NgramLosses losses;
  Counts n;
  n.one.assign(static_cast<std::size_t>(vocabulary), 0);
  for (std::int64_t d = 0; d < split.training() && losses.counted < most; ++d) {
    const DocumentTokens tokens = split.training_part(d);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t c = token_of(tokens[i]);
      ++n.one[static_cast<std::size_t>(c)], ++n.all, ++losses.counted;
      if (i == 0) continue;
      const std::int64_t b = token_of(tokens[i - 1]);
      count_in(n.two, n.after_one, key(0, b, c), key(0, b));
      if (i == 1) continue;
      const std::int64_t a = token_of(tokens[i - 2]);
      count_in(n.three, n.after_two, key(a, b, c), key(a, b));
    }
  }
  double one = 0, three = 0;
  for (std::int64_t d = 0; d < split.held_out() && losses.predicted < most; ++d) {
    const DocumentTokens tokens = split.held_out_part(d);
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      if (tokens[i] < 0) continue;
      const std::int64_t c = tokens[i], b = token_of(tokens[i - 1]);
      const double p1 =
          (static_cast<double>(n.one[static_cast<std::size_t>(c)]) + 1) / static_cast<double>(n.all + vocabulary);
      double p = discounted(n.two, n.after_one, key(0, b, c), key(0, b), p1);
      if (i > 1) {
        const std::int64_t a = token_of(tokens[i - 2]);
        p = discounted(n.three, n.after_two, key(a, b, c), key(a, b), p);
      }
      one -= std::log(p1), three -= std::log(p), ++losses.predicted;
    }
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(1, losses.predicted));
  losses.unigram = one / count, losses.trigram = three / count;
  return losses;
}

}  // namespace attend::llm

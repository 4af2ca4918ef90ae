// The KV cache: the same bits as attention over the same keys, whatever way they came in; int8 within its bound.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/paged_kv_cache.hpp"
#include "base/random.hpp"
#include "support/buffer.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t key) {
  std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<float>(normal(key, n));
  return to_tensor(dtype, shape, values);
}

struct Dims {
  int64_t H, Hk, D, E;
};

PagedKvCache make_cache(DType dtype, const Dims& d, int64_t pages, bool int8 = false) {
  return PagedKvCache(
      {.dtype = dtype, .kv_heads = d.Hk, .key_dim = d.D, .value_dim = d.E, .pages = pages, .int8 = int8});
}

// Appends in pieces of the given sizes, over and over.
void append_in_pieces(PagedKvCache& cache, int64_t sequence, const Tensor& k, const Tensor& v,
                      const std::vector<int64_t>& pieces) {
  const int64_t length = View(k).length();
  for (int64_t at = 0, n = 0; at < length; ++n) {
    const int64_t count = std::min(length - at, pieces[static_cast<std::size_t>(n % std::ssize(pieces))]);
    cache.append(sequence, slice(View(k), 2, at, count), slice(View(v), 2, at, count));
    at += count;
  }
}

TEST(PagedKvCache, SameBitsAsPlainAttention) {
  for (const DType dtype : kDTypes)
    for (const Dims& d : {Dims{4, 2, 64, 64}, {6, 2, 40, 24}, {3, 3, 1, 33}, {8, 1, 129, 96}})
      for (const int64_t length : {1, 63, 64, 65, 700, 1100}) {
        const Tensor k = random_tensor(dtype, {1, d.Hk, length, d.D}, 1),
                     v = random_tensor(dtype, {1, d.Hk, length, d.E}, 2);
        for (const auto& pieces : {std::vector<int64_t>{length}, {1}, {3, 64, 130}}) {
          if (length > 700 && pieces.front() == 1) continue;
          PagedKvCache cache = make_cache(dtype, d, 20);
          const int64_t sequence = cache.add();
          append_in_pieces(cache, sequence, k, v, pieces);
          ASSERT_EQ(cache.length(sequence), length);
          for (const int64_t M : {int64_t{1}, std::min<int64_t>(length, 40)}) {
            const Tensor q = random_tensor(dtype, {1, d.H, M, d.D}, 3);
            Tensor expected(dtype, {1, d.H, M, d.E}), got(dtype, {1, d.H, M, d.E});
            Tensor expected_lse(DType::f32, {1, d.H, M, 1}), got_lse(DType::f32, {1, d.H, M, 1});
            const AttentionOptions options{.mask = window(300, 0)};
            attention(q, k, v, expected, options, {.lse = expected_lse});
            attention(q, cache, std::vector<int64_t>{sequence}, got, options, {.lse = got_lse});
            ASSERT_TRUE(same_bits(expected, got)) << name(dtype) << " D" << d.D << " length " << length << " M" << M;
            ASSERT_TRUE(same_bits(expected_lse, got_lse));
          }
        }
      }
}

// Sequences of different lengths in one call, sharing pages: each as if alone.
TEST(PagedKvCache, SequencesDoNotSeeEachOther) {
  const Dims d{4, 2, 32, 48};
  for (const DType dtype : kDTypes) {
    PagedKvCache cache = make_cache(dtype, d, 64);
    std::vector<Tensor> keys, values;
    std::vector<int64_t> sequences;
    for (const int64_t length : {5, 0, 600, 130}) {
      keys.push_back(random_tensor(dtype, {1, d.Hk, length, d.D}, static_cast<std::uint64_t>(length)));
      values.push_back(random_tensor(dtype, {1, d.Hk, length, d.E}, static_cast<std::uint64_t>(length) + 1));
      sequences.push_back(cache.add());
      if (length > 0) cache.append(sequences.back(), keys.back(), values.back());
    }
    // A fork shares 512 tokens, has 38 of its own page, and 100 of its own.
    const int64_t fork = cache.fork(sequences[2], 550);
    const Tensor more_k = random_tensor(dtype, {1, d.Hk, 100, d.D}, 8),
                 more_v = random_tensor(dtype, {1, d.Hk, 100, d.E}, 9);
    cache.append(fork, more_k, more_v);
    PagedKvCache plain = make_cache(dtype, d, 64);
    const int64_t alone = plain.add();
    plain.append(alone, slice(View(keys[2]), 2, 0, 550), slice(View(values[2]), 2, 0, 550));
    plain.append(alone, more_k, more_v);
    sequences.push_back(fork);

    const auto B = std::ssize(sequences);
    const Tensor q = random_tensor(dtype, {B, d.H, 3, d.D}, 10);
    Tensor out(dtype, {B, d.H, 3, d.E});
    const AttentionOptions options{.mask = causal()};
    attention(q, cache, sequences, out, options);
    for (int64_t b = 0; b < B; ++b) {
      Tensor expected(dtype, {1, d.H, 3, d.E});
      const View q_b = slice(View(q), 0, b, 1);
      if (b + 1 == B)
        attention(q_b, plain, std::vector{alone}, expected, options);
      else
        attention(q_b, keys[static_cast<std::size_t>(b)], values[static_cast<std::size_t>(b)], expected, options);
      EXPECT_TRUE(same_bits(expected, slice(View(out), 0, b, 1))) << name(dtype) << " sequence " << b;
    }
  }
}

TEST(PagedKvCache, ForksAndTruncationsKeepTheirOwn) {
  const Dims d{2, 2, 16, 16};
  PagedKvCache cache = make_cache(DType::f32, d, 12);
  const Tensor k = random_tensor(DType::f32, {1, 2, 200, 16}, 1), v = random_tensor(DType::f32, {1, 2, 200, 16}, 2);
  const Tensor other = random_tensor(DType::f32, {1, 2, 50, 16}, 3), q = random_tensor(DType::f32, {1, 2, 1, 16}, 4);
  const int64_t a = cache.add();
  cache.append(a, k, v);
  EXPECT_EQ(cache.free_pages(), 8);
  const int64_t b = cache.fork(a, 128);
  EXPECT_EQ(cache.free_pages(), 8);  // whole pages are shared
  const int64_t c = cache.fork(a, 100);
  EXPECT_EQ(cache.free_pages(), 7);  // a part of one is copied
  const auto look = [&](int64_t sequence) {
    Tensor out(DType::f32, {1, 2, 1, 16});
    attention(q, cache, std::vector{sequence}, out);
    return out;
  };
  const auto plain = [&](int64_t length) {
    Tensor out(DType::f32, {1, 2, 1, 16});
    attention(q, slice(View(k), 2, 0, length), slice(View(v), 2, 0, length), out);
    return out;
  };
  cache.append(b, other, other);
  cache.append(c, other, other);
  EXPECT_TRUE(same_bits(look(a), plain(200)));
  cache.truncate(b, 128);
  EXPECT_TRUE(same_bits(look(b), plain(128)));
  cache.truncate(a, 90);  // its last page is shared with nobody, its first with b and c
  cache.append(a, other, other);
  EXPECT_TRUE(same_bits(look(b), plain(128)));
  cache.truncate(c, 100);
  EXPECT_TRUE(same_bits(look(c), plain(100)));
  for (const int64_t sequence : {a, b, c}) cache.remove(sequence);
  EXPECT_EQ(cache.free_pages(), 12);
  EXPECT_THROW(cache.length(a), InvalidArgument);
}

// A page used again holds nothing of its last owner, not even a NaN.
TEST(PagedKvCache, ForgetsAndReplacesWhatItIsTold) {
  for (const DType dtype : kDTypes) {
    const Dims d{4, 2, 48, 40};
    const Tensor k = random_tensor(dtype, {1, d.Hk, 400, d.D}, 1), v = random_tensor(dtype, {1, d.Hk, 400, d.E}, 2);
    const Tensor other_k = random_tensor(dtype, {1, d.Hk, 70, d.D}, 3),
                 other_v = random_tensor(dtype, {1, d.Hk, 70, d.E}, 4);
    const auto part = [](const Tensor& x, int64_t at, int64_t count) { return slice(View(x), 2, at, count); };
    PagedKvCache cache = make_cache(dtype, d, 30);
    const int64_t changed = cache.add(), expected = cache.add();
    cache.append(changed, k, v);
    const int64_t before = cache.fork(changed, 400);  // must not notice
    const int64_t free = cache.free_pages();
    EXPECT_EQ(cache.pages_to_append(changed, 48), 0);
    EXPECT_EQ(cache.pages_to_append(changed, 49), 1);
    EXPECT_EQ(cache.pages_to_append(expected, 65), 2);
    cache.replace(changed, 30, other_k, other_v);
    EXPECT_EQ(cache.free_pages(), free - 2);
    cache.forget(changed, 128, 192);
    EXPECT_EQ(cache.length(changed), 208);
    cache.append(expected, part(k, 0, 30), part(v, 0, 30));
    cache.append(expected, other_k, other_v);
    cache.append(expected, part(k, 100, 28), part(v, 100, 28));
    cache.append(expected, part(k, 320, 80), part(v, 320, 80));
    const Tensor q = random_tensor(dtype, {1, d.H, 3, d.D}, 5);
    const auto answer = [&](int64_t sequence) {
      Tensor out(dtype, {1, d.H, 3, d.E});
      attention(q, cache, std::vector<int64_t>{sequence}, out, {.mask = causal()});
      return out;
    };
    EXPECT_TRUE(same_bits(answer(changed), answer(expected))) << name(dtype);
    Tensor plain(dtype, {1, d.H, 3, d.E});
    attention(q, k, v, plain, {.mask = causal()});
    EXPECT_TRUE(same_bits(answer(before), plain)) << name(dtype);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{1, 64}, {0, 63}, {-64, 64}, {64, 256}, {0, -64}})
      EXPECT_THROW(cache.forget(changed, first, count), InvalidArgument) << first << " " << count;
    EXPECT_THROW(cache.replace(changed, 150, other_k, other_v), InvalidArgument);
    EXPECT_THROW(cache.replace(changed, -1, other_k, other_v), InvalidArgument);
  }
}

TEST(PagedKvCache, NothingIsLeftInAPage) {
  const Dims d{2, 1, 8, 8};
  for (const bool int8 : {false, true})
    for (const DType dtype : kDTypes) {
      PagedKvCache cache = make_cache(dtype, d, 1, int8);
      Tensor bad = random_tensor(dtype, {1, 1, 64, 8}, 1);
      set_all(bad, std::nan(""));
      const int64_t first = cache.add();
      cache.append(first, bad, bad);
      cache.remove(first);
      const Tensor k = random_tensor(dtype, {1, 1, 3, 8}, 2), q = random_tensor(dtype, {1, 2, 1, 8}, 3);
      const int64_t second = cache.add();
      cache.append(second, k, k);
      Tensor out(dtype, {1, 2, 1, 8}), expected(dtype, {1, 2, 1, 8});
      attention(q, cache, std::vector{second}, out);
      attention(q, k, k, expected);
      for (int64_t h = 0; h < 2; ++h) EXPECT_FALSE(row_has_nan(out, 0, h, 0));
      if (!int8) {
        EXPECT_TRUE(same_bits(out, expected));
      }
    }
}

// What int8 does to a row: off by at most 1/254 of its largest number. On the output: the error of V, and that of the
// scores, which shifts weights by a factor of at most exp(2 * error).
TEST(PagedKvCache, Int8StaysWithinItsBound) {
  const Dims d{4, 2, 64, 48};
  for (const DType dtype : kDTypes) {
    const int64_t length = 700;
    const Tensor k = random_tensor(dtype, {1, d.Hk, length, d.D}, 1),
                 v = random_tensor(dtype, {1, d.Hk, length, d.E}, 2);
    const Tensor q = random_tensor(dtype, {1, d.H, 5, d.D}, 3);
    PagedKvCache cache = make_cache(dtype, d, 11, true), whole = make_cache(dtype, d, 11);
    EXPECT_LT(cache.bytes_per_token() * 10, whole.bytes_per_token() * (dtype == DType::f32 ? 4 : 6));
    const int64_t sequence = cache.add();
    append_in_pieces(cache, sequence, k, v, {1, 200});
    Tensor out(dtype, {1, d.H, 5, d.E}), exact(dtype, {1, d.H, 5, d.E});
    attention(q, cache, std::vector{sequence}, out);
    attention(q, k, v, exact);

    const auto largest = [&](const Tensor& x) {
      double top = 0;
      for (const double value : to_doubles(x)) top = std::max(top, std::abs(value));
      return top;
    };
    double q_sum = 0;
    const std::vector<double> queries = to_doubles(q);
    for (std::size_t row = 0; row < queries.size() / 64; ++row) {
      double sum = 0;
      for (std::size_t n = 0; n < 64; ++n) sum += std::abs(queries[row * 64 + n]);
      q_sum = std::max(q_sum, sum);
    }
    const double rounding = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-10;
    const double per_number = 1.0 / 254 + rounding;
    const double score_error = q_sum / 8 * largest(k) * per_number;
    const double bound = largest(v) * (per_number + std::expm1(2 * score_error) + rounding);
    const std::vector<double> got = to_doubles(out), expected = to_doubles(exact);
    double worst = 0;
    for (std::size_t n = 0; n < got.size(); ++n) worst = std::max(worst, std::abs(got[n] - expected[n]));
    EXPECT_LE(worst, bound) << name(dtype);
    EXPECT_LE(worst, 0.02) << name(dtype);  // what is seen in practice, on normal numbers
    RecordProperty(std::string("worst_") + name(dtype), std::to_string(worst));
  }
}

Tensor answer_of(const PagedKvCache& cache, int64_t sequence, const Tensor& q) {
  Tensor out(DType::f32, {1, 2, 1, 16});
  attention(q, cache, std::vector{sequence}, out);
  return out;
}

// A call that finds too few pages changes nothing, and one page more is enough.
TEST(PagedKvCache, ACallTakesTheLastPageOrNone) {
  const Dims d{2, 2, 16, 16};
  const Tensor k = random_tensor(DType::f32, {1, 2, 192, 16}, 1), v = random_tensor(DType::f32, {1, 2, 192, 16}, 2);
  const Tensor q = random_tensor(DType::f32, {1, 2, 1, 16}, 3);
  const auto part = [](const Tensor& x, int64_t count) { return slice(View(x), 2, 0, count); };
  PagedKvCache cache = make_cache(DType::f32, d, 4);
  const int64_t whole = cache.add();
  cache.append(whole, part(k, 128), part(v, 128));
  const int64_t shorter = cache.fork(whole, 128);
  cache.truncate(shorter, 100);  // both see its second page
  const Tensor before = answer_of(cache, whole, q), before_shorter = answer_of(cache, shorter, q);
  EXPECT_EQ(cache.free_pages(), 2);
  EXPECT_EQ(cache.pages_to_append(shorter, 0), 0);
  EXPECT_EQ(cache.pages_to_append(shorter, 28), 1);  // the copy of the second page
  EXPECT_EQ(cache.pages_to_append(shorter, 29), 2);
  EXPECT_EQ(cache.pages_to_append(whole, 64), 1);  // its pages are full: nothing is copied
  EXPECT_EQ(cache.pages_to_append(whole, 65), 2);

  const int64_t filler = cache.add();
  cache.append(filler, part(k, 64), part(v, 64));
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_THROW(cache.append(shorter, part(k, 29), part(v, 29)), OutOfPages);
  EXPECT_THROW(cache.append(whole, part(k, 65), part(v, 65)), OutOfPages);
  EXPECT_THROW(cache.replace(shorter, 0, part(k, 65), part(v, 65)), OutOfPages);  // of two shared pages
  EXPECT_EQ(cache.length(shorter), 100);
  EXPECT_EQ(cache.length(whole), 128);
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_TRUE(same_bits(answer_of(cache, shorter, q), before_shorter));
  cache.append(shorter, part(k, 28), part(v, 28));
  EXPECT_EQ(cache.free_pages(), 0);
  EXPECT_THROW(cache.fork(whole, 127), OutOfPages);
  const int64_t twin = cache.fork(whole, 128), none = cache.fork(whole, 0);  // whole pages take none
  EXPECT_EQ(cache.length(none), 0);
  EXPECT_TRUE(same_bits(answer_of(cache, twin, q), before));
  EXPECT_TRUE(same_bits(answer_of(cache, whole, q), before));
  EXPECT_NO_THROW(cache.append(whole, part(k, 0), part(v, 0)));
}

TEST(PagedKvCache, ReplacesAndForgetsUpToTheLastToken) {
  const Dims d{2, 2, 16, 16};
  const Tensor k = random_tensor(DType::f32, {1, 2, 192, 16}, 1), v = random_tensor(DType::f32, {1, 2, 192, 16}, 2);
  const Tensor other = random_tensor(DType::f32, {1, 2, 10, 16}, 4), q = random_tensor(DType::f32, {1, 2, 1, 16}, 3);
  const auto part = [](const Tensor& x, int64_t count) { return slice(View(x), 2, 0, count); };
  PagedKvCache cache = make_cache(DType::f32, d, 7);
  const int64_t changed = cache.add(), expected = cache.add();
  cache.append(changed, k, v);
  EXPECT_THROW(cache.replace(changed, 183, other, other), InvalidArgument);
  cache.replace(changed, 182, other, other);
  EXPECT_NO_THROW(cache.replace(changed, 192, part(k, 0), part(v, 0)));
  EXPECT_THROW(cache.replace(changed, 193, part(k, 0), part(v, 0)), InvalidArgument);
  cache.append(expected, part(k, 182), part(v, 182));
  cache.append(expected, other, other);
  EXPECT_TRUE(same_bits(answer_of(cache, changed, q), answer_of(cache, expected, q)));
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_NO_THROW(cache.forget(changed, 192, 0));
  EXPECT_THROW(cache.forget(changed, 256, 0), InvalidArgument);
  cache.forget(changed, 128, 64);
  EXPECT_EQ(cache.length(changed), 128);
  EXPECT_EQ(cache.free_pages(), 2);
  cache.truncate(expected, 128);
  EXPECT_EQ(cache.free_pages(), 3);
  EXPECT_TRUE(same_bits(answer_of(cache, changed, q), answer_of(cache, expected, q)));
  cache.truncate(expected, 128);
  EXPECT_EQ(cache.free_pages(), 3);
  cache.truncate(expected, 65);
  EXPECT_EQ(cache.free_pages(), 3);
  cache.truncate(expected, 64);
  EXPECT_EQ(cache.free_pages(), 4);
}

TEST(PagedKvCache, TheSmallestFreeNumberIsUsedAgain) {
  PagedKvCache cache = make_cache(DType::f32, {2, 2, 16, 16}, 3);
  for (const int64_t number : {0, 1, 2}) EXPECT_EQ(cache.add(), number);
  cache.remove(2);
  cache.remove(1);
  EXPECT_EQ(cache.add(), 1);
  EXPECT_EQ(cache.fork(0, 0), 2);
  EXPECT_EQ(cache.add(), 3);
  EXPECT_EQ(cache.bytes(), cache.bytes_per_token() * PagedKvCache::kPageTokens * 3);
}

TEST(PagedKvCache, BadArguments) {
  const Dims d{4, 2, 8, 8};
  EXPECT_THROW(make_cache(DType::f64, d, 1), InvalidArgument);
  EXPECT_THROW(make_cache(DType::f32, d, 0), InvalidArgument);
  EXPECT_THROW(make_cache(DType::f32, {1, 1, int64_t{1} << 60, 8}, 1), InvalidArgument);
  EXPECT_THROW(make_cache(DType::f32, {1, 1, 8, 8}, int64_t{1} << 31), InvalidArgument);
  PagedKvCache cache = make_cache(DType::f32, d, 2);
  const int64_t sequence = cache.add();
  const Tensor k = random_tensor(DType::f32, {1, 2, 100, 8}, 1), q = random_tensor(DType::f32, {1, 4, 1, 8}, 2);
  Tensor out(DType::f32, {1, 4, 1, 8});
  cache.append(sequence, k, k);
  EXPECT_THROW(cache.append(sequence, k, k), OutOfPages);
  EXPECT_EQ(cache.length(sequence), 100);
  EXPECT_THROW(cache.append(7, k, k), InvalidArgument);
  EXPECT_THROW(cache.append(sequence, k, slice(View(k), 2, 0, 3)), InvalidArgument);
  EXPECT_THROW(cache.append(sequence, slice(View(k), 1, 0, 1), k), InvalidArgument);
  EXPECT_THROW(cache.truncate(sequence, 101), InvalidArgument);
  EXPECT_THROW(cache.fork(sequence, -1), InvalidArgument);
  EXPECT_THROW(cache.fork(sequence, 101), InvalidArgument);
  EXPECT_THROW(cache.truncate(sequence, -1), InvalidArgument);
  EXPECT_THROW(cache.remove(-1), InvalidArgument);
  EXPECT_THROW(cache.length(1), InvalidArgument);  // the next number that add() would give
  EXPECT_THROW(cache.pages_to_append(sequence, -1), InvalidArgument);
  EXPECT_THROW(cache.pages_to_append(sequence, std::numeric_limits<int64_t>::max()), InvalidArgument);
  const std::vector<int64_t> one{sequence}, none{9}, two{sequence, sequence};
  EXPECT_THROW(attention(q, cache, none, out), InvalidArgument);
  EXPECT_THROW(attention(q, cache, two, out), InvalidArgument);
  EXPECT_THROW(attention(q, cache, one, out, {.mask = segments({0, 1})}), InvalidArgument);
  Tensor weights(DType::f32, {1, 4, 1, 100});
  EXPECT_THROW(attention(q, cache, one, out, {}, {.weights = weights}), InvalidArgument);
}

}  // namespace
}  // namespace attend::test

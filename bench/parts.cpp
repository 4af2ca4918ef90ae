// Matrix products, decoding over a cache of each kind, and what a call costs beside its work.
#include "parts.hpp"

#include <fmt/core.h>

#include <cstdint>
#include <vector>

#include "attend/attend.hpp"
#include "measure.hpp"
#include "ops/matmul.hpp"
#include "support/buffer.hpp"

namespace attend::bench {
namespace {

Tensor random_tensor(DType dtype, const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  std::uint32_t state = 1;
  for (float& x : values) {
    state = state * 1664525U + 1013904223U;
    x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  }
  return test::to_tensor(dtype, shape, values);
}

template <class F>
double timed(F&& f) {
  const double start = seconds();
  f();
  return seconds() - start;
}

void product_row(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t inner, int rounds,
                 const std::function<double()>& ceiling) {
  const Tensor a = random_tensor(dtype, {1, 1, rows, inner}), b = random_tensor(dtype, {1, 1, cols, inner});
  Tensor c(dtype, {1, 1, rows, cols});
  const auto run = [&] {
    matmul({dtype, View(a).data, rows, inner, inner, 1}, {dtype, View(b).data, inner, cols, 1, inner}, std::nullopt,
           {dtype, MutableView(c).data, rows, cols, cols, 1});
  };
  const double work = 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(inner);
  const std::vector<Sample> s = interleave({ceiling, [&] { return work / timed(run); }}, rounds);
  fmt::print(
      "{:<5} {:>5} x {:>5} x {:>5}  {:7.1f} GFLOP/s ({:.1f}-{:.1f}), {:.0f} % of {:.1f}; b read at {:.1f} GB/s\n",
      name(dtype), rows, cols, inner, s[1].median / 1e9, s[1].low / 1e9, s[1].high / 1e9,
      100 * s[1].median / s[0].median, s[0].median / 1e9, static_cast<double>(b.bytes()) * s[1].median / work / 1e9);
  std::fflush(stdout);
}

void cache_row(DType dtype, bool int8, std::int64_t length, int rounds, const std::function<double()>& read) {
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
  const Tensor q = random_tensor(dtype, {1, kHeads, 1, kDim}), k = random_tensor(dtype, {1, kKvHeads, length, kDim}),
               v = random_tensor(dtype, {1, kKvHeads, length, kDim});
  Tensor out(dtype, {1, kHeads, 1, kDim});
  PagedKvCache cache({.dtype = dtype,
                      .kv_heads = kKvHeads,
                      .key_dim = kDim,
                      .value_dim = kDim,
                      .pages = (length + PagedKvCache::kPageTokens - 1) / PagedKvCache::kPageTokens,
                      .int8 = int8});
  const std::vector<std::int64_t> sequences = {cache.add()};
  const double appending = timed([&] { cache.append(sequences[0], k, v); });
  const double cached = static_cast<double>(cache.bytes_per_token() * length),
               plain = 2.0 * static_cast<double>(k.bytes());
  const std::vector<Sample> s =
      interleave({read, [&] { return plain / timed([&] { attention(q, k, v, out); }); },
                  [&] { return cached / timed([&] { attention(q, cache, sequences, out); }); }},
                 rounds);
  const double plain_time = plain / s[1].median, cached_time = cached / s[2].median;
  fmt::print(
      "{:<5}{:<5} {:>6} tokens  plain {:8.0f} us at {:5.1f} GB/s ({:3.0f} %)  cache {:8.0f} us at {:5.1f} GB/s "
      "({:3.0f} %)  append {:.2f} us a token\n",
      name(dtype), int8 ? "int8" : "", length, 1e6 * plain_time, s[1].median / 1e9, 100 * s[1].median / s[0].median,
      1e6 * cached_time, s[2].median / 1e9, 100 * s[2].median / s[0].median,
      1e6 * appending / static_cast<double>(length));
  std::fflush(stdout);
}

void call_row(DType dtype, std::int64_t dim, int rounds) {
  const Tensor q = random_tensor(dtype, {1, 1, 1, dim});
  Tensor out(dtype, q.shape()), lse(DType::f32, {1, 1, 1, 1}), dq(dtype, q.shape()), dk(dtype, q.shape()),
      dv(dtype, q.shape());
  constexpr int kCalls = 2000;
  const auto each = [&](auto&& f) {
    return timed([&] {
             for (int n = 0; n < kCalls; ++n) f();
           }) /
           kCalls;
  };
  const AttentionOptions options{.mask = causal()};
  const std::vector<Sample> s = interleave(
      {[&] { return each([&] { attention(q, q, q, out, options, {.lse = lse}); }); },
       [&] { return each([&] { attention_backward(out, q, q, q, out, lse, {dq, dk, dv, {}, {}}, options); }); }},
      rounds);
  fmt::print("{:<5} one query, one key, D{:<4} forward {:.2f} us, backward {:.2f} us\n", name(dtype), dim,
             1e6 * s[0].median, 1e6 * s[1].median);
}

}  // namespace

void run_parts(int rounds, const Ceilings& ceilings) {
  fmt::print("Matrix products, x . W^T: median (quartiles), share of the ceiling of the same run\n");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto& ceiling = dtype == DType::f32 ? ceilings.fma : ceilings.pairs;
    for (const std::int64_t n : {512, 2048}) product_row(dtype, n, n, n, rounds, ceiling);
    product_row(dtype, 1, 4096, 4096, rounds, ceiling);
  }
  fmt::print("\nDecoding, one query, 32/8 heads, D128: bytes read as a share of read bandwidth\n");
  for (const std::int64_t length : {4096, 16384}) {
    cache_row(DType::f32, false, length, rounds, ceilings.read);
    cache_row(DType::bf16, false, length, rounds, ceilings.read);
    cache_row(DType::bf16, true, length, rounds, ceilings.read);
  }
  fmt::print("\nThe cost of a call of a shape seen before\n");
  for (const DType dtype : {DType::f32, DType::bf16}) call_row(dtype, 8, rounds);
}

}  // namespace attend::bench

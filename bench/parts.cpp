// Matrix products, projections, decoding over a cache of each kind, and what a call costs beside its work.
#include "parts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attend/attend.hpp"
#include "attend/weight.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
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

// A projection of many rows, and its gradients: each sums over another dimension.
void linear_row(DType dtype, std::int64_t rows, std::int64_t in, std::int64_t out, int rounds,
                const std::function<double()>& ceiling) {
  const Tensor x = random_tensor(dtype, {1, 1, rows, in}), weight = random_tensor(dtype, {1, 1, out, in}),
               dy = random_tensor(dtype, {1, 1, rows, out});
  Tensor y(dtype, dy.shape()), dx(dtype, x.shape()), dweight(dtype, weight.shape());
  const double work = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const std::vector<Sample> s =
      interleave({ceiling, [&] { return work / timed([&] { linear(x, weight, std::nullopt, y); }); },
                  [&] { return work / timed([&] { linear_backward(dy, x, weight, {.dx = dx}); }); },
                  [&] { return work / timed([&] { linear_backward(dy, x, weight, {.dweight = dweight}); }); }},
                 rounds);
  const auto share = [&](std::size_t n) { return 100 * s[n].median / s[0].median; };
  fmt::print("{:<5} {} rows, {:>4} -> {:>4}  y {:.0f} %, dx {:.0f} %, dweight {:.0f} % of {:.1f} GFLOP/s\n",
             name(dtype), rows, in, out, share(1), share(2), share(3), s[0].median / 1e9);
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
                      .pages = PagedKvCache::pages_for(length),
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

// Decoding over a cache of DeepSeek-V3's latents: 128 query heads read one row of 512 + 64 numbers a token.
void latent_row(DType dtype, std::int64_t length, int rounds, const std::function<double()>& products,
                const std::function<double()>& read) {
  constexpr std::int64_t kHeads = 128, kRank = 512, kRope = 64;
  const Tensor q = random_tensor(dtype, {1, kHeads, 1, kRank + kRope}),
               rows = random_tensor(dtype, {1, 1, length, kRank + kRope});
  View values = rows;
  values.shape[3] = kRank;
  Tensor out(dtype, {1, kHeads, 1, kRank});
  const double work = 2.0 * static_cast<double>(kHeads * length * (kRank + kRope + kRank));
  const double bytes = static_cast<double>(rows.bytes());
  const std::vector<Sample> s = interleave(
      {products, read, [&] { return 1 / timed([&] { attention(q, rows, values, out, {.scale = 0.07}); }); }}, rounds);
  const double computing = work / s[0].median, reading = bytes / s[1].median, taken = 1 / s[2].median;
  fmt::print(
      "{:<5} {:>6} tokens  {:8.0f} us, {:6.1f} GFLOP/s: {:3.0f} % of its ceiling (products at {:.1f} "
      "GFLOP/s take {:.0f} us, reading {:.0f} us)\n",
      name(dtype), length, 1e6 * taken, work / taken / 1e9, 100 * std::max(computing, reading) / taken,
      s[0].median / 1e9, 1e6 * computing, 1e6 * reading);
  std::fflush(stdout);
}

// Products of bytes of all threads together, an addition for each.
double byte_rate() {
  constexpr std::int64_t kRounds = 1'000'000;
  std::vector<double> operations(static_cast<std::size_t>(threads()));
  const double time = timed([&] {
    parallel_for(threads(),
                 [&](std::int64_t n, int) { operations[static_cast<std::size_t>(n)] = kernels().byte_burst(kRounds); });
  });
  double total = 0;
  for (const double n : operations) total += n;
  return total / time;
}

// Any numbers, with scales (f16) or numbers of a size that is usual.
Weight random_weight(WeightFormat format, std::int64_t out, std::int64_t in) {
  const auto [numbers, bytes] = block_of(format);
  std::vector<std::byte> data(static_cast<std::size_t>(out * in / numbers * bytes));
  std::uint32_t state = 1;
  for (std::size_t n = 0; n < data.size(); ++n) {
    state = state * 1664525U + 1013904223U;
    const auto place = static_cast<std::int64_t>(n) % bytes;
    const bool scale = format == WeightFormat::q6_k ? place >= 208 : place < 4;
    data[n] = static_cast<std::byte>(scale && place % 2 == 1 ? 0x28U : state >> 24U);
  }
  if (format == WeightFormat::f32)  // the upper byte of each
    for (std::size_t n = 3; n < data.size(); n += 4) data[n] = std::byte{0x3D};
  return {format, out, in, data};
}

void projection_row(WeightFormat format, std::int64_t rows, std::int64_t in, std::int64_t out, int rounds,
                    const std::function<double()>& ceiling) {
  const Tensor x = random_tensor(DType::f32, {1, 1, rows, in});
  Tensor y(DType::f32, {1, 1, rows, out});
  const Weight weight = random_weight(format, out, in);
  const Projection p{.weight = &weight, .y = y};
  const double work = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const std::vector<Sample> s =
      interleave({ceiling, [&] { return work / timed([&] { project(x, {&p, 1}); }); }}, rounds);
  fmt::print("{:<5} {:>5} rows, {:>4} -> {:<4}  {:7.1f} GOP/s ({:.1f}-{:.1f}), {:.0f} % of {:.1f}\n", name(format),
             rows, in, out, s[1].median / 1e9, s[1].low / 1e9, s[1].high / 1e9, 100 * s[1].median / s[0].median,
             s[0].median / 1e9);
  std::fflush(stdout);
}

// The projections of 30 layers of a small model (SmolLM2-135M), one row each: more than the caches hold.
void decode_row(WeightFormat format, int rounds, const std::function<double()>& read) {
  const std::int64_t wide = block_of(format).numbers > 32 ? 768 : 576, inner = wide * 8 / 3;
  struct Layer {
    Weight q, k, v, o, gate, up, down;
  };
  std::vector<Layer> layers;
  double bytes = 0;
  for (int n = 0; n < 30; ++n) {
    const auto make = [&](std::int64_t out, std::int64_t in) {
      Weight weight = random_weight(format, out, in);
      bytes += static_cast<double>(weight.bytes());
      return weight;
    };
    layers.push_back({make(wide, wide), make(wide / 3, wide), make(wide / 3, wide), make(wide, wide), make(inner, wide),
                      make(inner, wide), make(wide, inner)});
  }
  const Tensor x = random_tensor(DType::f32, {1, 1, 1, wide}), h = random_tensor(DType::f32, {1, 1, 1, inner});
  Tensor q(DType::f32, x.shape()), k(DType::f32, {1, 1, 1, wide / 3}), v(DType::f32, k.shape()),
      o(DType::f32, x.shape());
  Tensor gate(DType::f32, h.shape()), up(DType::f32, h.shape()), down(DType::f32, x.shape());
  const auto run = [&] {
    for (const Layer& l : layers) {
      const Projection first[] = {{.weight = &l.q, .y = q}, {.weight = &l.k, .y = k}, {.weight = &l.v, .y = v}};
      const Projection second{.weight = &l.o, .y = o}, last{.weight = &l.down, .y = down};
      const Projection third[] = {{.weight = &l.gate, .y = gate}, {.weight = &l.up, .y = up}};
      project(x, first);
      project(x, {&second, 1});
      project(x, third);
      project(h, {&last, 1});
    }
  };
  const std::vector<Sample> s = interleave({read, [&] { return bytes / timed(run); }}, rounds);
  fmt::print("{:<5} {:5.1f} MB  {:6.2f} ms at {:5.1f} GB/s ({:.1f}-{:.1f}), {:.0f} % of {:.1f}\n", name(format),
             bytes / 1e6, 1e3 * bytes / s[1].median, s[1].median / 1e9, s[1].low / 1e9, s[1].high / 1e9,
             100 * s[1].median / s[0].median, s[0].median / 1e9);
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

// What lies between the products of a layer, on the rows of a prefill.
void block_rows(DType dtype, int rounds) {
  constexpr std::int64_t kRows = 512, kWidth = 576, kHeads = 9, kHidden = 1536;
  Tensor x = random_tensor(dtype, {1, 1, kRows, kWidth}), y(dtype, x.shape()), dweight(DType::f32, {1, 1, 1, kWidth});
  const Tensor weight = random_tensor(DType::f32, {1, 1, 1, kWidth});
  const Tensor gate = random_tensor(dtype, {1, 1, kRows, kHidden}), up = random_tensor(dtype, gate.shape());
  Tensor hidden(dtype, gate.shape()), dup(dtype, gate.shape());
  MutableView heads = x.view();
  heads.shape = {1, kHeads, kRows, kWidth / kHeads};
  heads.strides = length_major_strides(heads.shape);
  const RopeTable table(kWidth / kHeads, kRows);
  const auto row = [&](const char* what, const Tensor& of, const auto& run) {
    const double numbers = static_cast<double>(of.size());
    const std::vector<Sample> s = interleave({[&] { return 1e9 * timed(run) / numbers; }}, rounds);
    fmt::print("{:<5} {:<26} {:6.3f} ns a number ({:.3f}-{:.3f})\n", name(dtype), what, s[0].median, s[0].low,
               s[0].high);
    std::fflush(stdout);
  };
  row("rms_norm", x, [&] { rms_norm(x, weight, y); });
  row("rms_norm_backward", x, [&] { rms_norm_backward(x, y, weight, x, dweight); });
  row("layer_norm", x, [&] { layer_norm(x, weight, weight, y); });
  row("rope, nine heads", x, [&] { rope(heads, heads, table); });
  row("add", x, [&] { add(x, y, y); });
  row("dropout", x, [&] { dropout(x, y, {0.1, 1}); });
  for (const auto& [what, kind] :
       {std::pair{"silu, gated", Activation::silu}, std::pair{"gelu, gated", Activation::gelu},
        std::pair{"gelu_tanh, gated", Activation::gelu_tanh}})
    row(what, gate, [&, of = kind] { gated_activation(of, gate, up, hidden); });
  row("silu, gated, backward", gate, [&] { gated_activation_backward(Activation::silu, up, gate, up, hidden, dup); });
}

// Three products and the softmax between them.
void loss_row(DType dtype, int rounds, const std::function<double()>& ceiling) {
  constexpr std::int64_t kRows = 512, kWidth = 576, kVocabulary = 16384;
  const Tensor hidden = random_tensor(dtype, {1, 1, kRows, kWidth}),
               weight = random_tensor(dtype, {1, 1, kVocabulary, kWidth}),
               dloss = random_tensor(DType::f32, {1, 1, kRows, 1});
  Tensor dhidden(dtype, hidden.shape()), dweight(DType::f32, weight.shape()), loss(DType::f32, dloss.shape());
  const std::vector<std::int64_t> targets(kRows, 7);
  const double work = 2.0 * kRows * kWidth * kVocabulary;
  const std::vector<Sample> s = interleave(
      {ceiling, [&] { return work / timed([&] { cross_entropy(hidden, weight, targets, loss); }); },
       [&] {
         return 3 * work /
                timed([&] { cross_entropy_backward(dloss, hidden, weight, targets, {dhidden, dweight, loss}); });
       }},
      rounds);
  fmt::print("{:<5} cross_entropy, {} rows, {} words  {:.0f} %, backward {:.0f} % of {:.1f} GFLOP/s\n", name(dtype),
             kRows, kVocabulary, 100 * s[1].median / s[0].median, 100 * s[2].median / s[0].median, s[0].median / 1e9);
  std::fflush(stdout);
}

}  // namespace

void run_blocks(int rounds, const Ceilings& ceilings) {
  fmt::print("\nBlocks between the products of a layer: 512 rows of 576, hidden 1536\n");
  for (const DType dtype : {DType::f32, DType::bf16}) block_rows(dtype, rounds);
  loss_row(DType::f32, rounds, ceilings.fma);
  loss_row(DType::bf16, rounds, ceilings.pairs);
}

void run_latent(int rounds, const Ceilings& ceilings) {
  fmt::print("\nDecoding over latents (MLA), one query, 128 heads, 512 + 64 numbers a token\n");
  for (const std::int64_t length : {4096, 16384}) {
    latent_row(DType::f32, length, rounds, ceilings.fma, ceilings.read);
    latent_row(DType::bf16, length, rounds, ceilings.pairs, ceilings.read);
  }
}

void run_parts(int rounds, const Ceilings& ceilings) {
  fmt::print("Matrix products, x . W^T: median (quartiles), share of the ceiling of the same run\n");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto& ceiling = dtype == DType::f32 ? ceilings.fma : ceilings.pairs;
    for (const std::int64_t n : {512, 2048}) product_row(dtype, n, n, n, rounds, ceiling);
    product_row(dtype, 1, 4096, 4096, rounds, ceiling);
  }
  fmt::print("\nProjections of 4096 rows and their gradients: share of the ceiling of the same run\n");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto& ceiling = dtype == DType::f32 ? ceilings.fma : ceilings.pairs;
    linear_row(dtype, 4096, 256, 1024, rounds, ceiling);
    linear_row(dtype, 4096, 512, 1376, rounds, ceiling);
    linear_row(dtype, 4096, 1376, 512, rounds, ceiling);
  }
  fmt::print("\nProjections with weights as files hold them: share of products of floats, of bytes where quantised\n");
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::q4_0, WeightFormat::q4_1,
                                    WeightFormat::q5_1, WeightFormat::q8_0, WeightFormat::q4_k, WeightFormat::q6_k}) {
    const auto& ceiling = block_of(format).numbers == 1 ? ceilings.fma : std::function<double()>(byte_rate);
    if (block_of(format).numbers <= 32) {
      projection_row(format, 1024, 576, 576, rounds, ceiling);
      projection_row(format, 1024, 576, 1536, rounds, ceiling);
    }
    projection_row(format, 1024, 1536, 576, rounds, ceiling);
  }
  fmt::print("\nProjections of one row, 30 layers: bytes read as a share of read bandwidth\n");
  for (const WeightFormat format :
       {WeightFormat::f16, WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1,
        WeightFormat::q8_0, WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k})
    decode_row(format, rounds, ceilings.read);
  fmt::print("\nDecoding, one query, 32/8 heads, D128: bytes read as a share of read bandwidth\n");
  for (const std::int64_t length : {4096, 16384}) {
    cache_row(DType::f32, false, length, rounds, ceilings.read);
    cache_row(DType::bf16, false, length, rounds, ceilings.read);
    cache_row(DType::bf16, true, length, rounds, ceilings.read);
  }
  run_latent(rounds, ceilings);
  run_blocks(rounds, ceilings);
  fmt::print("\nThe cost of a call of a shape seen before\n");
  for (const DType dtype : {DType::f32, DType::bf16}) call_row(dtype, 8, rounds);
}

}  // namespace attend::bench

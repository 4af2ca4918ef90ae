// The plain kernels against the f64 reference, on the emulated driver: forward, LSE and gradients, with the bounds of
// tests/gpu/attention_test.py; which kernels a card runs; what they refuse. A word: cases whose name holds it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "attend/attend.hpp"
#include "attend/cuda.hpp"

extern "C" int emulated_kernels_used();

namespace {

using namespace attend;
using namespace emulated;

std::string wanted;

struct Case {
  std::string name;
  std::int64_t B, H, Hk, M, N, D, E;
  DType dtype = DType::bf16;
  Mask mask = no_mask();
  Terms terms = {};
};

double relative_error(const Array& got, const Array& expected) {
  double error = 0, norm = 0;
  for (std::size_t n = 0; n < got.wide.size(); ++n) {
    const double x = got.get(n) - expected.wide[n];
    error += x * x, norm += expected.wide[n] * expected.wide[n];
  }
  return std::sqrt(norm > 0 ? error / norm : error);
}

void run(const Case& c, bool gradients) {
  const std::string name = c.name + (gradients ? " gradients" : "");
  if (name.find(wanted) == std::string::npos) return;
  Array q(c.dtype, {c.B, c.H, c.M, c.D}, 1), k(c.dtype, {c.B, c.Hk, c.N, c.D}, 1), v(c.dtype, {c.B, c.Hk, c.N, c.E}, 1);
  Array bias(DType::f32, {c.B, c.H, c.M, c.N}, 1), slopes(DType::f32, {1, c.H, 1, 1}, 0.5);
  Array sinks(DType::f32, {1, c.H, 1, 1}, 1);
  for (std::size_t n = 0; n < slopes.wide.size(); ++n) slopes.set(n, std::abs(slopes.floats[n]));
  AttentionOptions options, wide;
  options.mask = wide.mask = c.mask, options.softcap = wide.softcap = c.terms.softcap;
  if (c.terms.scale != 0) options.scale = wide.scale = c.terms.scale;
  if (c.terms.dropout != 0) options.dropout = wide.dropout = {c.terms.dropout, 5};
  if (c.terms.bias) options.bias = bias.view(), wide.bias = bias.wide_view();
  if (c.terms.alibi) options.alibi_slopes = slopes.view(), wide.alibi_slopes = slopes.wide_view();
  if (c.terms.sinks) options.sinks = sinks.view(), wide.sinks = sinks.wide_view();

  Array out(c.dtype, {c.B, c.H, c.M, c.E}, 0), lse(DType::f32, {c.B, c.H, c.M, 1}, 0), expected = out, spread = out;
  Array expected_lse = lse, sizes = v;
  for (double& x : sizes.wide) x = std::abs(x);
  attention(q.wide_view(), k.wide_view(), v.wide_view(), expected.wide_view(), wide, {.lse = expected_lse.wide_view()});
  attention(q.wide_view(), k.wide_view(), sizes.wide_view(), spread.wide_view(), wide);
  cuda::attention(q.view(), k.view(), v.view(), out.view(), options, {.lse = lse.view()});
  // Weights are rounded to the dtype before they meet the values, results once more.
  const double unit = c.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  double worst = 0, worst_lse = 0;
  for (std::size_t n = 0; n < out.wide.size(); ++n) {
    const double off = std::abs(out.get(n) - expected.wide[n]);
    worst =
        std::max(worst, std::isfinite(off) ? off / (unit * (std::abs(expected.wide[n]) + spread.wide[n]) + 1e-5) : 1e9);
  }
  for (std::size_t n = 0; n < lse.wide.size(); ++n)
    if (lse.get(n) != expected_lse.wide[n])  // both may be -inf
      worst_lse = std::max(worst_lse, std::abs(lse.get(n) - expected_lse.wide[n]));
  check(name + ", of the bound", worst <= 1, worst);
  check(name + ": lse", worst_lse <= 1e-3, worst_lse);
  if (!gradients) return;

  Array dout(c.dtype, out.shape, 1), dq(c.dtype, q.shape, 0), dk(c.dtype, k.shape, 0), dv(c.dtype, v.shape, 0);
  Array dbias(DType::f32, bias.shape, 0), dsinks(DType::f32, sinks.shape, 0);
  Array right_q = dq, right_k = dk, right_v = dv, right_bias = dbias, right_sinks = dsinks;
  AttentionGradients got{dq.view(), dk.view(), dv.view()};
  AttentionGradients right{right_q.wide_view(), right_k.wide_view(), right_v.wide_view()};
  if (c.terms.bias) got.dbias = dbias.view(), right.dbias = right_bias.wide_view();
  if (c.terms.sinks) got.dsinks = dsinks.view(), right.dsinks = right_sinks.wide_view();
  attention_backward(dout.wide_view(), q.wide_view(), k.wide_view(), v.wide_view(), expected.wide_view(),
                     expected_lse.wide_view(), right, wide);
  cuda::attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), got, options);
  const double bound = c.dtype == DType::bf16 ? 1e-2 : 2e-3;
  const auto near = [&](const char* what, const Array& x, const Array& y, double most) {
    const double error = relative_error(x, y);
    check(name + ": " + what, error < most, error);
  };
  near("dq", dq, right_q, bound), near("dk", dk, right_k, bound), near("dv", dv, right_v, bound);
  if (c.terms.bias) near("dbias", dbias, right_bias, bound);
  if (c.terms.sinks) near("dsinks", dsinks, right_sinks, 5 * bound);
}

void each_case(std::int64_t D) {
  constexpr DType bf16 = DType::bf16, f16 = DType::f16;
  static const std::vector<std::uint8_t> shown = [] {
    std::vector<std::uint8_t> bits(2 * 300 * 300);
    for (std::uint8_t& x : bits) x = numbers() % 2;
    return bits;
  }();
  std::vector<std::uint8_t> some(2 * 5 * 10);
  for (std::uint8_t& x : some) x = numbers() % 3 == 0;
  std::vector<std::int64_t> many(901);
  for (std::size_t n = 0; n < many.size(); ++n) many[n] = static_cast<std::int64_t>(n);
  const Mask dense_mask = dense(shown.data(), {1, 2, 300, 300});
  const Mask whole_words = dense(shown.data(), {1, 1, 300, 320});  // rows that lie on multiples of 16 bytes
  const Terms cap{.softcap = 3, .scale = 0.5};
  const Terms all{.softcap = 3, .scale = 0.3, .dropout = 0.3, .alibi = true, .sinks = true};
  const std::vector<Case> both = {
      {"full", 1, 2, 2, 133, 277, D, D},
      {"f16 causal", 1, 4, 2, 150, 250, D, D, f16, causal()},
      {"causal M > N", 1, 2, 2, 250, 100, D, D, bf16, causal()},
      {"first key", 1, 2, 2, 100, 400, D, D, bf16, causal(Align::first_key)},
      {"window", 1, 1, 1, 400, 400, D, D, bf16, window(60, 20)},
      {"prefix", 1, 1, 1, 200, 200, D, D, bf16, prefix({77})},
      {"padding", 3, 1, 1, 130, 200, D, D, bf16, padding({200, 0, 70})},
      {"documents", 1, 2, 2, 350, 350, D, D, bf16, segments({0, 100, 103, 103, 300}) & causal()},
      {"many documents", 1, 1, 1, 900, 900, D, D, bf16, segments(many)},
      {"chunks", 1, 2, 1, 300, 300, D, D, bf16, chunks(70, 1) & causal()},
      {"ALiBi", 1, 2, 2, 150, 150, D, D, bf16, causal(), {.alibi = true}},
      {"soft cap", 1, 2, 2, 100, 150, D, D, bf16, no_mask(), cap},
      {"soft cap of 1e6", 1, 2, 2, 100, 150, D, D, f16, no_mask(), {.softcap = 1e6}},
      {"bias", 2, 2, 2, 100, 150, D, D, bf16, no_mask(), {.bias = true}},
      {"bias and soft cap", 1, 2, 2, 100, 150, D, D, bf16, causal(), {.softcap = 3, .scale = 0.5, .bias = true}},
      {"sinks", 1, 2, 2, 100, 150, D, D, bf16, causal(Align::first_key), {.sinks = true}},
      {"dropout", 2, 2, 1, 100, 150, D, D, f16, no_mask(), {.dropout = 0.3}},
      {"all terms", 2, 2, 1, 100, 150, D, D, f16, causal(), all},
      {"dense", 1, 2, 2, 300, 300, D, D, bf16, dense_mask},
      {"dense, whole words", 1, 2, 2, 300, 320, D, D, bf16, whole_words},
      {"dense and soft cap", 1, 2, 1, 300, 300, D, D, bf16, dense_mask & causal(), {.softcap = 3}},
      {"blocks", 1, 2, 2, 300, 500, D, D, bf16, blocks(60, 50, 2, 5, 10, some)},
      {"one key block", 1, 2, 1, 3, 40, D, D}};
  const std::string dims = std::string("D").append(std::to_string(D)).append(" ");
  for (Case c : both) c.name = dims + c.name, run(c, true);
  std::vector<Case> forward = {
      {"packed heads", 1, 12, 2, 40, 150, D, D, bf16, causal()},
      {"one query, padding", 4, 8, 2, 1, 600, D, D, bf16, padding({600, 0, 1, 333})},
      {"one query, window and sinks", 2, 8, 2, 1, 900, D, D, f16, window(300, 0), {.sinks = true}},
      {"few queries", 2, 8, 2, 5, 900, D, D, bf16, causal()},
      {"64 rows", 1, 16, 2, 8, 900, D, D, bf16, causal()},
      {"soft cap of 1e-7", 1, 2, 2, 100, 150, D, D, bf16, no_mask(), {.softcap = 1e-7}},
      {"few queries, soft cap", 1, 8, 2, 3, 600, D, D, bf16, no_mask(), {.softcap = 3, .sinks = true}}};
  for (const std::int64_t N : {127, 129, 700, 3000})  // one, some and all parts of the keys
    forward.push_back({"one query, " + std::to_string(N) + " keys", 2, 8, 2, 1, N, D, D});
  for (Case c : forward) c.name = dims + c.name, run(c, false);
}

// Where a soft-cap has nearly flattened the scores its slope is small, and still right to the rounding of what it
// becomes part of. One query of ones: dk is the slope times the gradient before it, which is the bias's.
void saturated(std::int64_t D) {
  constexpr std::int64_t N = 150;
  constexpr float kCap = 2;
  Array q(DType::bf16, {1, 1, 1, D}, 1), k(DType::bf16, {1, 1, N, D}, 0.02), v(DType::bf16, {1, 1, N, D}, 1);
  Array bias(DType::f32, {1, 1, 1, N}, 0), out = q, dout(DType::bf16, q.shape, 1), lse(DType::f32, {1, 1, 1, 1}, 0);
  Array dq = q, dk = k, dv = v, dbias = bias;
  const auto size = static_cast<std::size_t>(D);
  for (std::size_t d = 0; d < size; ++d) q.set(d, 1);
  for (std::size_t j = 0; j < N; ++j) {
    bias.set(j, 0);
    for (std::size_t d = 0; d < size; ++d)
      k.set(j * size + d,
            static_cast<float>(k.get(j * size + d) + (9 + 3.0 * static_cast<double>(j) / N) / static_cast<double>(D)));
  }
  AttentionOptions options;
  options.softcap = kCap, options.scale = 1, options.bias = bias.view();
  AttentionGradients got{dq.view(), dk.view(), dv.view()};
  got.dbias = dbias.view();
  cuda::attention(q.view(), k.view(), v.view(), out.view(), options, {.lse = lse.view()});
  cuda::attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), got, options);
  std::vector<double> right_dq(size), sizes(size);
  double worst_dk = 0, worst_dq = 0;
  for (std::size_t j = 0; j < N; ++j) {
    double score = 0;
    for (std::size_t d = 0; d < size; ++d) score += k.get(j * size + d);
    const double right = dbias.get(j) / std::pow(std::cosh(score / kCap), 2);
    for (std::size_t d = 0; d < size; ++d) {
      worst_dk = std::max(worst_dk, std::abs(dk.get(j * size + d) / right - 1));
      right_dq[d] += right * k.get(j * size + d), sizes[d] += std::abs(right * k.get(j * size + d));
    }
  }
  for (std::size_t d = 0; d < size; ++d)
    worst_dq = std::max(worst_dq, std::abs(dq.get(d) - right_dq[d]) / (sizes[d] + std::abs(right_dq[d])));
  const std::string name = std::string("D").append(std::to_string(D)).append(" saturated soft cap: ");
  check(name + "dk", worst_dk <= 1.01 * 0x1p-8, worst_dk * 0x1p8);
  check(name + "dq", worst_dq <= 1.01 * 0x1p-8, worst_dq * 0x1p8);
}

// The kernels of a card, and the sentence where there are none.
void choices() {
  const auto with = [](const char* capability, const char* kernels) {
    setenv("EMULATED_CAPABILITY", capability, 1), setenv("ATTEND_CUDA_KERNELS", kernels, 1);
    const std::string why_not = cuda::why_not();
    unsetenv("EMULATED_CAPABILITY"), unsetenv("ATTEND_CUDA_KERNELS");
    return why_not;
  };
  for (const char* card : {"80", "86", "89", "90", "100", "120"})
    for (const char* kernels : {"", "plain"})
      check(std::string("compute capability ") + card, with(card, kernels).empty(), 0);
  check("Hopper's kernels on Hopper", with("90", "hopper").empty(), 0);
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  check("before Ampere", has(with("75", ""), "7.5, and there are kernels for 8.0"), 0);
  check("Hopper's kernels elsewhere", has(with("86", "hopper"), "\"hopper\", expected one that runs"), 0);
  check("no such kernels", has(with("90", "ampere"), "capability 9.0: hopper, plain"), 0);
}

void refusals() {
  Array x(DType::bf16, {1, 1, 4, 64}, 1), rows(DType::f32, {1, 1, 4, 13}, 1), out = x;
  const MutableView odd{DType::bf16, x.data(), {1, 1, 4, 20}, {256, 256, 64, 1}};
  const MutableView odd_out{DType::bf16, out.data(), {1, 1, 4, 20}, {256, 256, 64, 1}};
  const auto refuses = [](const char* what, const std::function<void()>& call, const char* part) {
    try {
      call();
      check(what, false, 0);
    } catch (const InvalidArgument& error) {
      check(what, std::string(error.what()).find(part) != std::string::npos, 0);
    }
  };
  refuses("20 dims", [&] { cuda::attention(odd, odd, odd, odd_out); }, "multiple of 8");
  refuses(
      "statistics",
      [&] {
        Array result = x;
        cuda::attention(x.view(), x.view(), x.view(), result.view(), {}, {.statistics = RowStatistics{rows.view()}});
      },
      "statistics of rows are not supported by the plain kernels");
  cuda::CacheView cache;
  cache.k = cache.v = {x.data(), x.shape, contiguous_strides(x.shape)};
  refuses(
      "caches", [&] { cuda::attention(x.view(), cache, out.view()); }, "caches are not supported by the plain kernels");
  refuses("append", [&] { cuda::append(x.view(), x.view(), cache); }, "caches are not supported by the plain kernels");
}

// Memory of the caller's, filled with NaN: what a call took and has not freed.
class Scratch final : public cuda::Allocator {
 public:
  void* allocate(std::int64_t bytes) override {
    void* const memory = std::aligned_alloc(256, static_cast<std::size_t>(bytes + 255) / 256 * 256);
    std::memset(memory, 0xFF, static_cast<std::size_t>(bytes));
    held.insert(memory), ++count;
    return memory;
  }
  void free(void* memory) override { held.erase(memory), std::free(memory); }

  std::set<void*> held;
  int count = 0;
};

// Forward with split keys or mask bits, and backward: the same bits as with the pool, and every block freed.
void scratch() {
  constexpr std::int64_t M = 5, N = 600;
  std::vector<std::uint8_t> shown(M * N);
  for (std::uint8_t& x : shown) x = numbers() % 2;
  for (const Mask& mask : {causal(), dense(shown.data(), {1, 1, M, N})}) {
    Array q(DType::bf16, {1, 4, M, 64}, 1), k(DType::bf16, {1, 2, N, 64}, 1), v = k, dout = q;
    AttentionOptions options;
    options.mask = mask;
    Scratch allocator;
    std::vector<std::uint16_t> bits[2];  // of all results: with scratch memory, with the pool
    for (int pool = 0; pool < 2; ++pool) {
      cuda::Allocator* const from = pool == 0 ? &allocator : nullptr;
      Array out(DType::bf16, q.shape, 0), lse(DType::f32, {1, 4, M, 1}, 0), dq = out, dk(DType::bf16, k.shape, 0);
      Array dv = dk;
      const int before = allocator.count;
      cuda::attention(q.view(), k.view(), v.view(), out.view(), options, {.lse = lse.view()}, nullptr, from);
      const int between = allocator.count;
      const AttentionGradients gradients{dq.view(), dk.view(), dv.view()};
      cuda::attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), gradients, options,
                               cuda::Order::fixed, nullptr, from);
      check("scratch of forward", (between > before) == (pool == 0), between - before);
      check("scratch of backward", (allocator.count > between) == (pool == 0), allocator.count - between);
      check("scratch is freed", allocator.held.empty(), static_cast<double>(allocator.held.size()));
      for (const Array* x : {&out, &dq, &dk, &dv})
        bits[pool].insert(bits[pool].end(), x->aligned(), x->aligned() + x->wide.size());
    }
    check("bits with scratch", bits[0] == bits[1], 0);
  }
}

}  // namespace

int main(int count, char** words) {
  wanted = count > 1 ? words[1] : "";
  choices();
  for (const std::int64_t D : {64, 128, 256}) {
    each_case(D);
    if (wanted.empty() || wanted == "saturated") saturated(D);
  }
  const std::int64_t pairs[][2] = {{8, 8}, {32, 32}, {80, 80}, {96, 96}, {192, 128}, {128, 64}, {64, 256}, {40, 24}};
  for (const auto& [D, E] : pairs) {
    const std::string dims = std::string("D").append(std::to_string(D)).append(" E").append(std::to_string(E));
    run({dims, 1, 4, 2, 100, 150, D, E, DType::bf16, causal()}, true);
    run({dims + " one query", 2, 8, 4, 1, 600, D, E}, false);
  }
  if (wanted.empty() || wanted == "scratch") scratch();
  if (wanted.empty()) {
    refusals();
    check("kernels that have run, of 36", emulated_kernels_used() == 36, emulated_kernels_used());
  }
  std::printf("%d checks, %d failed\n", checks, failed);
  return failed == 0 ? 0 : 1;
}

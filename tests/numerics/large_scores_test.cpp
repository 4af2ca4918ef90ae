// Finite additive masks and huge scales: forward and backward against the truth over scores as they are held.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "attend/patterns.hpp"
#include "attend/runtime.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "support/buffer.hpp"
#include "support/check.hpp"
#include "support/large_scores.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kF32Min = -static_cast<double>(std::numeric_limits<float>::max());
constexpr double kBf16Min = -0x1.FEp127;
constexpr double kF16Min = -65504;

struct Types {
  DType inputs, bias;
};
constexpr Types kTypes[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                            {DType::f16, DType::f16}, {DType::f16, DType::f32},   {DType::f64, DType::f64}};
constexpr float kScales[] = {1e-6F, 0.125F, 1e3F, 1e6F, 1e10F, 1e20F};
enum Sinks { no_sinks, small_sinks, masked_sinks, kSinkKinds };
enum MaskOf { no_mask, causal_mask, padding_mask, kMaskKinds };

// What a mask adds; 0: there is no bias at all.
std::vector<double> masks_of(const Types& types) {
  if (types.bias == DType::f16) return {-1e4, kF16Min, -kInfinity};
  std::vector<double> masks = {0, -1e4, -1e9, -1e30, types.bias == DType::bf16 ? kBf16Min : kF32Min, -kInfinity};
  if (types.bias == DType::f64) masks.push_back(-std::numeric_limits<double>::max());
  return masks;
}

double held(DType dtype, double x) {
  Buffer one(dtype, {1, 1, 1, 1}, Layout::bhld);
  one.fill(std::vector<double>{x});
  return one.read()[0];
}

// Rows, alternating: masked at all keys, at all keys and at half of them twice, at some keys, at none.
void add_bias(LargeScores& p, double mask, std::uint64_t seed) {
  const double once = held(p.bias_dtype, mask), twice = held(p.bias_dtype, 2 * mask);
  p.bias.resize(static_cast<std::size_t>(p.B * p.H * p.M * p.N));
  for (std::size_t n = 0; n < p.bias.size(); ++n) {
    const auto j = static_cast<int64_t>(n) % p.N, i = static_cast<int64_t>(n) / p.N % p.M;
    const double usual = std::floor(uniform(seed, n) * 33 - 16) / 8;
    const bool some = uniform(seed + 1, n) < 0.4;
    switch (i % 4) {
      case 0:
        p.bias[n] = once;
        break;
      case 1:
        p.bias[n] = j % 2 == 0 ? twice : once;
        break;
      case 2:
        p.bias[n] = some ? once : usual;
        break;
      default:
        p.bias[n] = usual;
    }
  }
}

struct Crossing {
  Types types;
  double mask;
  float scale;
  bool grouped, capped, dropped, slopes;
  int sinks, masked;
};

std::vector<Crossing> all_crossings() {
  std::vector<Crossing> all;
  for (const Types& types : kTypes)
    for (const double mask : masks_of(types))
      for (const float scale : kScales)
        for (int n = 0; n < 2 * 2 * 2 * kSinkKinds * kMaskKinds; ++n) {
          const int sinks = n / 8 % kSinkKinds, masked = n / 8 / kSinkKinds;
          const bool slopes = all.size() % 5 == 0;
          all.push_back({types, mask, scale, n % 2 == 1, n / 2 % 2 == 1, n / 4 % 2 == 1, slopes, sinks, masked});
        }
  return all;
}

LargeScores make_problem(const Crossing& c, std::uint64_t seed, int64_t M, int64_t N) {
  LargeScores p;
  p.dtype = c.types.inputs;
  p.bias_dtype = c.types.bias;
  p.scale = c.scale;
  p.B = c.masked == padding_mask ? 2 : 1;
  p.H = c.grouped ? 4 : 2;
  p.M = M;
  p.N = N;
  p.draw(seed);
  p.softcap = c.capped ? 20.0F : 0.0F;
  if (c.masked == causal_mask) p.mask = causal();
  if (c.masked == padding_mask) p.mask = padding({N - N / 3, N / 2});
  if (c.dropped) p.dropout = {0.25, seed};
  if (c.mask != 0) add_bias(p, c.mask, seed * 7);
  const DType wide = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  for (int64_t h = 0; c.sinks != no_sinks && h < p.H; ++h)
    p.sinks.push_back(c.sinks == small_sinks ? static_cast<double>(h) - 1.5 : held(wide, c.mask));
  for (int64_t h = 0; c.slopes && h < p.H; ++h) p.slopes.push_back(std::ldexp(1.0, -static_cast<int>(h) - 1));
  char text[200];
  std::snprintf(text, sizeof text, "%s, bias %s %.9g, scale %g, %lldx%lld, %s%s%s%s, sinks %d, mask %d", name(p.dtype),
                name(p.bias_dtype), c.mask, static_cast<double>(c.scale), static_cast<long long>(M),
                static_cast<long long>(N), c.grouped ? "GQA" : "MHA", c.capped ? ", soft-cap" : "",
                c.dropped ? ", dropout" : "", c.slopes ? ", ALiBi" : "", c.sinks, c.masked);
  p.name = text;
  return p;
}

void check(const std::vector<LargeScores>& problems) {
  const int before = threads();
  set_threads(1);  // problems run on all CPUs at once
  std::vector<std::string> failures;
  std::mutex mutex;
  run_parallel(std::ssize(problems), [&](int64_t n) {
    const LargeScores& p = problems[static_cast<std::size_t>(n)];
    const auto found = compare_large(p, large_truth(p), large_compute(p));
    const std::lock_guard lock(mutex);
    failures.insert(failures.end(), found.begin(), found.end());
  });
  set_threads(before);
  std::printf("%zu cases\n", problems.size());
  EXPECT_TRUE(failures.empty()) << summary(failures);
}

// Masks, scales, dtypes, and all that crosses them. 5 shares no factor with the counts of the crossings.
TEST(LargeScores, EveryElementWithinBounds) {
  const std::string mode = sweep_mode();
  const std::vector<Crossing> all = all_crossings();
  std::vector<LargeScores> problems;
  const std::size_t step = mode == "all" ? 1 : mode == "quick" ? 55 : 5;
  for (std::size_t n = 0; n < all.size(); n += step) problems.push_back(make_problem(all[n], n + 1, 7, 70));
  check(problems);
}

// More than one split of keys, more rows than are worked on at once, and the few rows of decoding.
TEST(LargeScores, LongRowsManyRowsFewRows) {
  std::vector<LargeScores> problems;
  for (const Types& types : kTypes)
    for (const double mask : {0.0, -1e4, -1e9, kF32Min}) {
      if (mask < kF16Min && types.bias == DType::f16) continue;
      for (const float scale : {0.125F, 1e6F, 1e20F}) {
        const auto n = problems.size();
        const bool odd = n % 2 == 1;
        const int sinks = n % 3 == 0 ? small_sinks : no_sinks;
        problems.push_back(make_problem({types, mask, scale, odd, false, false, false, sinks, no_mask}, n, 5, 1100));
        problems.push_back(
            make_problem({types, mask, scale, odd, odd, !odd, false, no_sinks, causal_mask}, n, 130, 130));
        problems.push_back(make_problem({types, mask, scale, !odd, false, false, odd, sinks, no_mask}, n, 1, 640));
      }
    }
  if (sweep_mode() == "quick") problems.resize(problems.size() / 4);
  check(problems);
}

// A union with a dilation is computed in parts, whose shares an LSE cannot tell.
TEST(LargeScores, DilatedMasks) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const float scale : {1e3F, 1e6F, 1e20F})
      for (const Mask& mask : {strided(16), dilated(4) & window(100, 50)}) {
        LargeScores p;
        p.dtype = dtype;
        p.scale = scale;
        p.M = p.N = 520;
        p.D = p.E = 4;
        p.draw(77);
        p.mask = mask;
        p.name = std::string(name(dtype)) + " dilated";
        const auto failures = compare_large(p, large_truth(p), large_compute(p, false));
        EXPECT_TRUE(failures.empty()) << summary(failures);
      }
}

// A part of the keys under the LSE of all of them, as blockwise callers do it: it is believed as far as f32 holds it.
TEST(LargeScores, PartsOfTheKeysAddUp) {
  LargeScores p;
  p.scale = 100;
  p.draw(5);
  const auto tensor = [&](const Shape& shape, const std::vector<double>& values) {
    return to_tensor(DType::f32, shape, {values.begin(), values.end()});
  };
  // Keys in pairs that score alike, one in each part.
  const int64_t half = p.N / 2, row = p.N * p.D;
  for (int64_t h = 0; h < p.Hk; ++h) std::copy_n(p.k.begin() + h * row, half * p.D, p.k.begin() + h * row + half * p.D);
  const Tensor q = tensor({1, 2, p.M, p.D}, p.q), k = tensor({1, 2, p.N, p.D}, p.k), v = tensor({1, 2, p.N, p.E}, p.v);
  const Tensor dout = tensor({1, 2, p.M, p.E}, p.dout);
  AttentionOptions options;
  options.scale = 100;
  const AttentionResult r = attention(q, k, v, options, {.lse = true});
  const AttentionGradientTensors whole = attention_backward(dout, q, k, v, r.out, r.lse, options);
  for (const int64_t first : {int64_t{0}, half}) {
    const auto part = [&](const View& x) { return slice(x, 2, first, half); };
    const AttentionGradientTensors own = attention_backward(dout, q, part(k), part(v), r.out, r.lse, options);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < half; ++j)
        for (int64_t e = 0; e < p.E; ++e)
          EXPECT_NEAR(load(own.dv, 0, h, j, e), load(whole.dv, 0, h, first + j, e), 0.05) << h << " " << first + j;
  }
}

// What autograd hands back where a loss ignores its padded rows: a masked row without a gradient gives none.
TEST(LargeScores, MaskedRowsWithoutGradientGiveNone) {
  for (const Types& types : kTypes)
    for (const double mask : masks_of(types)) {
      if (mask == 0) continue;
      LargeScores p = make_problem({types, mask, 0.125F, true, false, false, false, small_sinks, no_mask}, 3, 12, 70);
      for (std::size_t n = 0; n < p.dout.size(); ++n)
        if (static_cast<int64_t>(n) / p.E % p.M % 4 < 2) p.dout[n] = 0;
      const LargeResults got = large_compute(p);
      for (std::size_t n = 0; n < got.dq.size(); ++n)
        EXPECT_TRUE(got.dq[n] == 0 || static_cast<int64_t>(n) / p.D % p.M % 4 >= 2) << p.name << " dq " << n;
      for (std::size_t n = 0; n < got.dbias.size(); ++n)
        EXPECT_TRUE(got.dbias[n] == 0 || static_cast<int64_t>(n) / p.N % p.M % 4 >= 2) << p.name << " dbias " << n;
      const auto failures = compare_large(p, large_truth(p), got);
      EXPECT_TRUE(failures.empty()) << summary(failures);
    }
}

}  // namespace
}  // namespace attend::test

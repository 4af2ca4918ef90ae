// The lens beside a plain forward pass of the same inputs, interleaved: CPU time, which other programs disturb least.
#include "lens.hpp"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <functional>
#include <vector>

#include "attend/attend.hpp"
#include "measure.hpp"

namespace attend::bench {
namespace {

constexpr std::int64_t kDim = 64;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Cost {
  double cpu, wall;
};
Cost cost_of(const std::function<void()>& f) {
  const double cpu = cpu_seconds(), start = seconds();
  f();
  return {cpu_seconds() - cpu, seconds() - start};
}

Tensor drawn(DType dtype, const Shape& shape, double step) {
  Tensor x(dtype, shape);
  for (std::int64_t n = 0; n < x.size(); ++n) {
    const double value = std::sin(static_cast<double>(n % 1000003) * step) * 1.5;
    if (dtype == DType::f32)
      x.data<float>()[n] = static_cast<float>(value);
    else
      x.data<BFloat16>()[n] = to_bfloat16(static_cast<float>(value));
  }
  return x;
}

struct Inputs {
  Inputs(DType dtype, std::int64_t heads, std::int64_t length)
      : q(drawn(dtype, {1, heads, length, kDim}, 0.371)),
        k(drawn(dtype, {1, heads, length, kDim}, 0.533)),
        v(drawn(dtype, {1, heads, length, kDim}, 0.719)),
        out(dtype, {1, heads, length, kDim}),
        lse(DType::f32, {1, heads, length, 1}) {}
  Tensor q, k, v, out, lse;
};

// Prints the best CPU times of both and the median of the ratios of neighbours.
void print_ratio(const std::string& what, const std::function<void()>& plain, const std::function<void()>& looking,
                 int rounds) {
  std::vector<double> ratios;
  double best_plain = INFINITY, best_looking = INFINITY, wall = INFINITY;
  for (int round = -1; round < rounds; ++round) {
    const Cost a = cost_of(plain), b = cost_of(looking);
    if (round < 0 && rounds > 1) continue;  // warms up
    ratios.push_back(b.cpu / a.cpu);
    best_plain = std::min(best_plain, a.cpu);
    best_looking = std::min(best_looking, b.cpu);
    wall = std::min(wall, b.wall);
    if (rounds == 1) break;
  }
  fmt::print("{:<58} {:9.1f} {:9.1f} {:9.1f}   {:5.3f} {:5.3f}\n", what, best_plain * 1e3, best_looking * 1e3,
             wall * 1e3, best_looking / best_plain, summary(ratios).median);
  std::fflush(stdout);
}

void statistics_cost(DType dtype, bool masked, bool tokens, int rounds) {
  constexpr std::int64_t kHeads = 2, kLength = 4096;
  Inputs t(dtype, kHeads, kLength);
  AttentionOptions options;
  if (masked) options.mask = causal();
  Tensor rows(DType::f32, {1, kHeads, kLength, kRowStatistics});
  RowStatisticsOptions asked;
  for (std::int64_t j = 0; tokens && j < kLength; ++j) asked.tokens.push_back(static_cast<std::int32_t>(j * j % 997));
  AttentionExtras extras;
  extras.statistics = RowStatistics{rows, asked};
  print_ratio(
      fmt::format("all statistics, {} L4096 D64 H2 {}{}", name(dtype), masked ? "causal" : "full",
                  tokens ? ", with tokens" : ""),
      [&] { attention(t.q, t.k, t.v, t.out, options); }, [&] { attention(t.q, t.k, t.v, t.out, options, extras); },
      rounds);
}

double allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

void map_cost(DType dtype, std::int64_t length, int rounds) {
  Inputs t(dtype, 1, length);
  AttentionOptions options;
  options.mask = causal();
  AttentionExtras extras;
  extras.lse = t.lse.view();
  const auto forward = [&] { attention(t.q, t.k, t.v, t.out, options, extras); };
  forward();
  const std::string where = fmt::format("{} L{} D64 causal", name(dtype), length);
  const Lens lens(t.q, t.k, options, {.lse = View(t.lse)});
  print_ratio("map 512x512, mass and peak, " + where, forward, [&] { lens.map({}, {}); }, rounds);
  print_ratio("  the same with the LSE swept for", forward, [&] { Lens(t.q, t.k, options).map({}, {}); }, rounds);
  print_ratio("  attention received", forward, [&] { lens.received({}); }, rounds);
  print_ratio("  top 8 of every row", forward, [&] { lens.top_keys({}, 8); }, rounds);
  const auto once = [&](const char* what, const std::function<void()>& f) {
    f();
    double cpu = INFINITY, wall = INFINITY;
    for (int n = 0; n < 5; ++n) {
      const Cost cost = cost_of(f);
      cpu = std::min(cpu, cost.cpu);
      wall = std::min(wall, cost.wall);
    }
    fmt::print("  {:<56} {:>9} {:9.1f} {:9.1f}\n", what, "", cpu * 1e3, wall * 1e3);
  };
  once("zoom 512x512", [&] { lens.zoom({}, {length / 2, 512, length / 4, 512}); });
  once("one row", [&] { lens.row({}, length - 1); });
  once("one column", [&] { lens.column({}, length / 3); });
  release_memory();
  const double before = allocated();
  const PooledMap map = lens.map({}, {});
  fmt::print("  {:<56} {:.1f} MiB, its result of {:.1f} MiB included\n", "memory beyond the inputs",
             (allocated() - before) / (1 << 20), static_cast<double>(map.mass.bytes() + map.peak.bytes()) / (1 << 20));
}

}  // namespace

void run_lens(int rounds) {
  fmt::print("{}, {} threads, kernels {}; CPU milliseconds, the best of {} rounds interleaved\n\n", cpu_info().model,
             threads(), kernel_name(), rounds);
  fmt::print("{:<58} {:>9} {:>9} {:>9}   {}\n", "", "forward", "looking", "wall", "ratio: of the best, median");
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool masked : {true, false})
      for (const bool tokens : {false, true}) statistics_cost(dtype, masked, tokens, rounds);
  map_cost(DType::f32, 16384, std::min(rounds, 3));
  map_cost(DType::f32, 131072, 1);
}

}  // namespace attend::bench

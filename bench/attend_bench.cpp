// Speed of attention on the shapes that matter, beside the multiply-add ceiling of the same run.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/attend.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "lengths.hpp"
#include "lens.hpp"
#include "measure.hpp"
#include "model_rates.hpp"
#include "parts.hpp"
#include "ratios.hpp"
#include "support/buffer.hpp"
#include "support/cases.hpp"
#include "support/problem.hpp"
#include "train.hpp"

namespace attend::bench {
namespace {

// Multiply-add rate of all threads together: of floats, or of bf16 where the CPU has products for it.
double burst_rate(double (*burst)(std::int64_t rounds)) {
  constexpr std::int64_t kRounds = 400000;
  std::vector<double> operations(static_cast<std::size_t>(threads()));
  const double start = seconds();
  parallel_for(threads(), [&](std::int64_t item, int) { operations[static_cast<std::size_t>(item)] = burst(kRounds); });
  const double elapsed = seconds() - start;
  double total = 0;
  for (const double n : operations) total += n;
  return total / elapsed;
}

double fma_rate() {
  return burst_rate(kernels().fma_burst);
}
double pair_rate() {
  return burst_rate(kernels().pair_burst);
}

// Bytes per second that all threads together read from memory that no cache holds.
double read_rate() {
  constexpr std::int64_t kWords = std::int64_t{1} << 26, kPart = std::int64_t{1} << 16;
  const std::vector<std::uint64_t> memory(static_cast<std::size_t>(kWords), 1);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(kWords / kPart));
  const double start = seconds();
  parallel_for(kWords / kPart, [&](std::int64_t item, int) {
    const std::uint64_t* words = memory.data() + item * kPart;
    sums[static_cast<std::size_t>(item)] = std::accumulate(words, words + kPart, std::uint64_t{0});
  });
  const double elapsed = seconds() - start;
  std::uint64_t total = 0;
  for (const std::uint64_t n : sums) total += n;
  if (total != static_cast<std::uint64_t>(kWords)) throw std::logic_error("memory was not read as it was written");
  return static_cast<double>(kWords) * 8 / elapsed;
}

// Pairs of query and key that the mask lets through, counted as is the custom: half of them when causal.
double score_count(const test::Case& c) {
  const double all = static_cast<double>(c.B * c.H) * static_cast<double>(c.M) * static_cast<double>(c.N);
  return c.mask == test::MaskKind::causal_last && c.M == c.N ? all / 2 : all;
}

void run(const test::Case& c, int rounds) {
  const test::Problem problem(c);
  const Tensor q = test::to_tensor(c.dtype, problem.q_shape(), problem.q);
  const Tensor k = test::to_tensor(c.dtype, problem.k_shape(), problem.k);
  const Tensor v = test::to_tensor(c.dtype, problem.v_shape(), problem.v);
  const Tensor dout = test::to_tensor(c.dtype, problem.out_shape(), problem.dout);
  const AttentionOptions& options = problem.options(c.dtype);
  Tensor out(c.dtype, problem.out_shape()), lse(DType::f32, problem.lse_shape());
  Tensor dq(c.dtype, problem.q_shape()), dk(c.dtype, problem.k_shape()), dv(c.dtype, problem.v_shape());
  const AttentionExtras extras{lse.view(), {}};
  const double flops = 2.0 * score_count(c) * static_cast<double>(c.D + c.E);
  const bool decode = c.M == 1;

  const auto rate = [](double work, auto&& f) {
    const double start = seconds();
    f();
    return work / (seconds() - start);
  };
  const auto forward = [&] { return rate(flops, [&] { attention(q, k, v, out, options, extras); }); };
  const auto backward = [&] {
    return rate(2.5 * flops, [&] { attention_backward(dout, q, k, v, out, lse, {dq, dk, dv, {}, {}}, options); });
  };
  std::vector<std::function<double()>> candidates = {c.dtype == DType::bf16 ? pair_rate : fma_rate, forward};
  if (!decode) candidates.emplace_back(backward);
  const std::vector<Sample> samples = interleave(candidates, rounds);
  const double peak = samples[0].median;
  const auto cell = [&](const Sample& s) {
    return fmt::format("{:7.1f} ({:5.1f}-{:5.1f}) {:3.0f} %", s.median / 1e9, s.low / 1e9, s.high / 1e9,
                       100 * s.median / peak);
  };
  const double bytes = static_cast<double>(k.bytes() + v.bytes());
  fmt::print(
      "{:<56} {:7.1f}  {}  {}\n", c.name(), peak / 1e9, cell(samples[1]),
      decode ? fmt::format("K and V read at {:.1f} GB/s", bytes * samples[1].median / flops / 1e9) : cell(samples[2]));
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  CLI::App app{"Measures attention on the shapes that matter, beside the multiply-add ceiling of the same run."};
  int rounds = 7, thread_option = 0;
  std::string only, svg;
  bool ceilings = false, lengths = false, parts = false, latents = false, blocks = false;
  app.add_option("--rounds", rounds, "Timed rounds; each runs ceiling, forward and backward")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", thread_option, "Threads (default: ATTEND_THREADS or all CPUs)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--only", only, "Only cases whose name contains this, e.g. f32 or M4096");
  app.add_flag("--ceilings", ceilings, "Only measure multiply-add rate and read bandwidth, once, as JSON");
  app.add_flag("--lengths", lengths, "Cost against length instead: 1,024 to 65,536 tokens, time and working memory");
  app.add_flag("--parts", parts, "Matrix products, decoding over caches and the cost of a call instead");
  app.add_option("--svg", svg, "With --lengths and --ratios: draw into this file");
  std::string ratios;
  app.add_option("--ratios", ratios, "Draw the chart of ratios to PyTorch from this file, which run.py --json wrote");
  std::string model, cache = "f16";
  app.add_option("--model", model, "Load this language model and obey standard input (model_rates.hpp says what)");
  app.add_option("--cache", cache, "With --model: f16, f32 or bf16");
  app.add_flag("--latents", latents, "Decoding over a cache of latents (MLA) instead");
  app.add_flag("--blocks", blocks, "Norms, rotations, activations and the loss of a model instead");
  bool training = false, served_training = false;
  bool lens = false;
  app.add_flag("--lens", lens, "What looking costs beside a plain forward pass: statistics, maps, zoom; in CPU time");
  app.add_flag("--train", training, "A step of training instead, whole and in parts");
  std::string shape = "minimind2-small";
  app.add_option("--shape", shape,
                 "With --train and --serve-train: what is trained, by a name that 'attend info' knows");
  app.add_flag("--serve-train", served_training, "Train as standard input says (train.hpp says what)");
  CLI11_PARSE(app, argc, argv);
  if (thread_option > 0) set_threads(thread_option);
  if (!ratios.empty()) {
    draw_ratios(ratios, svg);
    return 0;
  }
  if (ceilings) {
    fma_rate();  // wakes the threads
    fmt::print("{{\"FMA\": {:.6g}, \"bf16\": {:.6g}, \"read\": {:.6g}}}\n", fma_rate(), pair_rate(), read_rate());
    return 0;
  }

  if (!model.empty()) {
    serve_model(model, cache);
    return 0;
  }
  if (training) {
    run_training(shape, rounds, {fma_rate, pair_rate, read_rate});
    return 0;
  }
  if (served_training) {
    serve_training(shape);
    return 0;
  }
  if (parts) {
    run_parts(rounds, {fma_rate, pair_rate, read_rate});
    return 0;
  }
  if (latents) {
    run_latent(rounds, {fma_rate, pair_rate, read_rate});
    return 0;
  }
  if (blocks) {
    run_blocks(rounds, {fma_rate, pair_rate, read_rate});
    return 0;
  }
  if (lens) {
    run_lens(rounds);
    return 0;
  }
  if (lengths) {
    run_lengths(rounds, svg);
    return 0;
  }

  const CpuInfo cpu = cpu_info();
  fmt::print("{}, {} threads, kernels {}\n", cpu.model, threads(), kernel_name());
  fmt::print("GFLOP/s: median (quartiles) and share of the ceiling; backward counts 2.5 x forward\n\n");
  fmt::print("{:<56} {:>7}  {:<28}  {}\n", "case", "ceiling", "forward", "backward");
  for (const test::Case& c : test::benchmark_cases())
    if (c.name().find(only) != std::string::npos) run(c, rounds);
  return 0;
}

}  // namespace
}  // namespace attend::bench

int main(int argc, char** argv) {
  try {
    return attend::bench::main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "attend_bench: {}\n", error.what());
    return 1;
  }
}

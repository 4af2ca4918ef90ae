// Cost against length, as a table and as an SVG on logarithmic axes.
#include "lengths.hpp"

#include <fmt/core.h>
#include <malloc.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "attend/attend.hpp"
#include "draw/picture.hpp"
#include "io/atomic_file.hpp"
#include "io/readable.hpp"
#include "measure.hpp"
#include "support/buffer.hpp"
#include "support/cases.hpp"
#include "support/problem.hpp"

namespace attend::bench {
namespace {

constexpr std::int64_t kFirst = 1024, kLast = 65536, kWindow = 1024, kDim = 64;

struct Kind {
  const char* name;
  Mask mask;
  double law;  // time grows with this power of the length
};

struct Point {
  std::int64_t length;
  Sample time;
  double megabytes;
};

double allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

// One head. The working memory is what the call's threads keep of it afterwards.
Point measure(const Kind& kind, std::int64_t length, int rounds) {
  const Shape shape = {1, 1, length, kDim};
  std::vector<float> values(static_cast<std::size_t>(length * kDim));
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = std::sin(static_cast<float>(n % 10007) * 0.37F);
  const View x = view_of(values.data(), shape);
  Tensor out(DType::f32, shape);
  const AttentionOptions options{.mask = kind.mask};
  release_memory();
  const double before = allocated();
  attention(x, x, x, out, options);
  Point point{length, {}, (allocated() - before) / (1 << 20)};
  const int runs = length > 16384 ? std::min(rounds, 3) : rounds;
  point.time = interleave({[&] {
                            const double start = seconds();
                            attention(x, x, x, out, options);
                            return seconds() - start;
                          }},
                          runs)
                   .front();
  return point;
}

// The power of the length that time grows with over the longer half, by least squares on logarithms.
double growth(const std::vector<Point>& points) {
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const Point& p : points) {
    if (p.length < 4096) continue;
    const double x = std::log2(static_cast<double>(p.length)), y = std::log2(p.time.median);
    n += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

draw::Chart chart_of(const std::vector<Kind>& kinds, const std::vector<std::vector<Point>>& lines) {
  draw::Panel panel{"time, and the most working memory",
                    {},
                    {"tokens", 2, [](double v) { return fmt::format("{:g}k", v / 1024); }},
                    {"", 10, [](double v) { return io::readable_time(v); }}};
  for (std::size_t n = 0; n < kinds.size(); ++n) {
    double most = 0;
    for (const Point& p : lines[n]) most = std::max(most, p.megabytes);
    draw::Series series{fmt::format("{}: length^{:.2f}, {:.1f} MiB", kinds[n].name, growth(lines[n]), most), {}};
    for (const Point& p : lines[n]) series.points.emplace_back(static_cast<double>(p.length), p.time.median);
    panel.series.push_back(std::move(series));
  }
  return {{fmt::format("One head against length (f32, D{})", kDim),
           {fmt::format("{}, {}, kernels {}. Logarithmic axes.", cpu_info().model, io::counted(threads(), "thread"),
                        kernel_name())}},
          {std::move(panel)}};
}

}  // namespace

void run_lengths(int rounds, const std::string& svg) {
  if (!svg.empty()) io::check_can_write(svg);
  const std::vector<Kind> kinds = {
      {"full", no_mask(), 2}, {"causal", causal(), 2}, {"window 1024", causal() & window(kWindow - 1, 0), 1}};
  fmt::print("One head of dimension {}, f32, forward; time and working memory beyond arguments and result\n\n", kDim);
  fmt::print("{:>8}", "tokens");
  for (const Kind& kind : kinds) fmt::print("  {:>14} {:>10}", kind.name, "memory");
  fmt::print("\n");
  std::vector<std::vector<Point>> lines(kinds.size());
  for (std::int64_t length = kFirst; length <= kLast; length *= 2) {
    fmt::print("{:>8}", length);
    for (std::size_t n = 0; n < kinds.size(); ++n) {
      lines[n].push_back(measure(kinds[n], length, rounds));
      const Point& p = lines[n].back();
      fmt::print("  {:>11.3f} ms {:>6.1f} MiB", 1e3 * p.time.median, p.megabytes);
      std::fflush(stdout);
    }
    fmt::print("\n");
  }
  fmt::print("\nfrom 4,096 tokens on, time grows as\n");
  for (std::size_t n = 0; n < kinds.size(); ++n)
    fmt::print("  {:<12} length^{:.2f} (law: {:g})\n", kinds[n].name, growth(lines[n]), kinds[n].law);
  if (svg.empty()) return;
  const std::string text = draw::to_svg(chart_of(kinds, lines), {.theme = draw::Theme::readers});
  io::write_file_atomically(svg, std::as_bytes(std::span(text)));
  fmt::print("chart: {}\n", svg);
}

}  // namespace attend::bench

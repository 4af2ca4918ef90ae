// Cost against length, as a table and as an SVG on logarithmic axes.
#include "lengths.hpp"

#include <fmt/core.h>
#include <malloc.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "attend/attend.hpp"
#include "io/atomic_file.hpp"
#include "measure.hpp"
#include "support/buffer.hpp"
#include "support/cases.hpp"
#include "support/problem.hpp"

namespace attend::bench {
namespace {

constexpr std::int64_t kFirst = 1024, kLast = 65536, kWindow = 1024, kDim = 64;

struct Kind {
  const char* name;
  const char* color;
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

std::string drawing(const std::vector<Kind>& kinds, const std::vector<std::vector<Point>>& lines) {
  constexpr double kLeft = 70, kTop = 60, kWidth = 480, kHeight = 300;
  double low = 1e9, high = 0;
  for (const auto& points : lines)
    for (const Point& p : points) low = std::min(low, p.time.median), high = std::max(high, p.time.median);
  low = std::floor(std::log10(low)), high = std::ceil(std::log10(high));
  const auto x = [&](double length) { return kLeft + kWidth * (std::log2(length) - 10) / 6; };
  const auto y = [&](double time) { return kTop + kHeight * (high - std::log10(time)) / (high - low); };
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 430\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"760\" height=\"430\" fill=\"#ffffff\"/>\n"
      "<text x=\"20\" y=\"28\" font-size=\"16\" font-weight=\"600\">Time of one head against length (f32, "
      "D64)</text>\n";
  for (double power = low; power <= high; ++power) {
    const double at = y(std::pow(10, power));
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#d8dee4\"/>\n", kLeft, at,
                       kLeft + kWidth, at);
    const double ms = 1e3 * std::pow(10, power);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#59636e\">{}</text>\n", kLeft - 8,
                       at + 4, ms >= 1000 ? fmt::format("{:g} s", ms / 1000) : fmt::format("{:g} ms", ms));
  }
  for (std::int64_t length = kFirst; length <= kLast; length *= 2)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#59636e\">{}k</text>\n",
                       x(static_cast<double>(length)), kTop + kHeight + 18, length / 1024);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#59636e\">tokens</text>\n",
                     kLeft + kWidth / 2, kTop + kHeight + 38);
  for (std::size_t n = 0; n < kinds.size(); ++n) {
    std::string path;
    for (const Point& p : lines[n])
      path +=
          fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : " L", x(static_cast<double>(p.length)), y(p.time.median));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n", path, kinds[n].color);
    const Point& end = lines[n].back();
    double most = 0;
    for (const Point& p : lines[n]) most = std::max(most, p.megabytes);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" fill=\"{}\">{}: length^{:.2f}</text>\n", kLeft + kWidth + 8,
                       y(end.time.median) + (n == 0 ? -6 : 8), kinds[n].color, kinds[n].name, growth(lines[n]));
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" fill=\"#59636e\">at most {:.1f} MiB of memory</text>\n",
                       kLeft + kWidth + 8, y(end.time.median) + (n == 0 ? 9 : 23), most);
  }
  svg += fmt::format(
      "<text x=\"20\" y=\"{}\" fill=\"#59636e\">{}, {} threads, kernels {}. Logarithmic axes.</text>\n</svg>\n", 410,
      cpu_info().model, threads(), kernel_name());
  return svg;
}

}  // namespace

void run_lengths(int rounds, const std::string& svg) {
  if (!svg.empty()) io::check_can_write(svg);
  const std::vector<Kind> kinds = {{"full", "#d55e00", no_mask(), 2},
                                   {"causal", "#0072b2", causal(), 2},
                                   {"window 1024", "#009e73", causal() & window(kWindow - 1, 0), 1}};
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
  const std::string text = drawing(kinds, lines);
  io::write_file_atomically(svg, std::as_bytes(std::span(text)));
  fmt::print("chart: {}\n", svg);
}

}  // namespace attend::bench

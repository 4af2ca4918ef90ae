// `attend variants`: measures time, memory and cache of every attention variant on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>

#include "attend/runtime.hpp"
#include "command.hpp"
#include "draw/picture.hpp"
#include "inputs.hpp"
#include "io/atomic_file.hpp"
#include "io/readable.hpp"
#include "llm/runtime/memory.hpp"
#include "other_processes.hpp"
#include "progress.hpp"
#include "screen.hpp"
#include "variant_list.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::int64_t first = 1024, last = 65536, heads = 4, dim = 64, seed = 1;
  int threads = 0;
  std::string only, svg, png;
};

struct Point {
  std::int64_t length;
  double seconds;
  double memory;                // bytes beyond inputs and result; -1 where the system does not tell
  std::optional<double> cache;  // bytes that a decoder keeps
};

struct Result {
  std::string name;
  std::size_t against;  // the place of the result it is measured by
  std::vector<Point> points;
};

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Calls interleaved, so that noise of the machine meets them all; the median of each.
std::vector<double> interleaved(const std::vector<std::function<void()>>& calls, const std::vector<double>& first) {
  constexpr double kBudget = 3.0;  // seconds for all of them
  double once = 0;
  for (const double seconds : first) once += seconds;
  const int rounds = std::clamp(static_cast<int>(kBudget / once), 0, 8);
  std::vector<std::vector<double>> times(calls.size());
  for (std::size_t n = 0; n < calls.size(); ++n) times[n].push_back(first[n]);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t n = 0; n < calls.size(); ++n) times[n].push_back(seconds_of(calls[n]));
  }
  std::vector<double> medians;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

// All variants at one length. The first call of each, which the memory is watched at, only counts where it is the only
// one.
void measure(const std::vector<Variant>& variants, const Arguments& arguments, std::int64_t length,
             std::vector<Result>& results, const std::function<void()>& tick) {
  const VariantInputs inputs =
      variant_inputs(arguments.heads, arguments.dim, length, static_cast<std::uint64_t>(arguments.seed));
  Tensor out(DType::f32, {1, arguments.heads, length, arguments.dim});
  std::vector<std::function<void()>> calls;
  std::vector<double> first;
  std::vector<std::size_t> who;
  for (std::size_t n = 0; n < variants.size(); ++n) {
    const Variant& variant = variants[n];
    if (variant.longest != 0 && length > variant.longest) continue;
    const auto call = variant.prepare(inputs);
    release_memory();
    const llm::MemoryWatch watch;
    call(out);
    const auto memory = watch.growth();
    results[n].points.push_back({length, 0, memory ? static_cast<double>(*memory) : -1, variant.cache_bytes(length)});
    calls.emplace_back([call, &out] { call(out); });
    first.push_back(seconds_of(calls.back()));
    who.push_back(n);
    tick();
  }
  const std::vector<double> medians = interleaved(calls, first);
  for (std::size_t n = 0; n < who.size(); ++n) results[who[n]].points.back().seconds = medians[n];
}

// The power of the length that time grows with from 4k on (from the start, if that is all there is), by least squares
// on logarithms; nothing for a single point.
std::optional<double> growth(const std::vector<Point>& points) {
  const std::int64_t from = std::min<std::int64_t>(4096, points.back().length / 4);
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const Point& p : points) {
    if (p.length < from) continue;
    const double x = std::log2(static_cast<double>(p.length)), y = std::log2(p.seconds);
    n += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  const double spread = n * sxx - sx * sx;
  if (spread <= 0) return std::nullopt;
  return (n * sxy - sx * sy) / spread;
}

const Point* at_length(const Result& result, std::int64_t length) {
  for (const Point& p : result.points) {
    if (p.length == length) return &p;
  }
  return nullptr;
}

std::string tokens_text(std::int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}k", tokens / 1024) : io::readable_count(tokens);
}

// The longest length at which exact attention was measured too.
const Point& last_common(const Result& result, const Result& exact) {
  for (auto p = result.points.rbegin(); p != result.points.rend(); ++p) {
    if (at_length(exact, p->length) != nullptr) return *p;
  }
  return result.points.front();
}

// What full attention keeps at this length, whether it was measured there or not.
double full_cache(const Point& point, const Result& exact) {
  const Point& any = exact.points.front();
  return any.cache.value_or(0) / static_cast<double>(any.length) * static_cast<double>(point.length);
}

std::string cache_text(const Result& result, const Result& exact) {
  const Point& end = result.points.back();
  if (!end.cache) return "it cannot decode token by token";
  const bool grows = result.points.size() < 2 || *end.cache > 1.01 * *result.points[result.points.size() - 2].cache;
  if (!grows) return fmt::format("a decoder keeps {} however long the text", io::readable_bytes(*end.cache));
  const double each = *end.cache / static_cast<double>(end.length), less = full_cache(end, exact) / *end.cache;
  return fmt::format("a decoder keeps {} a token{}", io::readable_bytes(each),
                     less > 1.05 ? fmt::format(", 1/{:.2g} of {}'s", less, exact.name) : "");
}

// On a machine that others used meanwhile a power is what it seemed, not what it is.
std::string sentence(const Result& result, const Result& exact, bool busy) {
  const auto power = growth(result.points);
  const Point& common = last_common(result, exact);
  const double gain = at_length(exact, common.length)->seconds / common.seconds;
  std::string text = "One length measured";
  if (power) text = fmt::format("Time {} as L^{:.2f}", busy ? "seemed to grow (busy machine)" : "grows", *power);
  if (&result != &exact) {
    text += gain >= 1 ? fmt::format(", {:.3g}x faster than {} at {}", gain, exact.name, tokens_text(common.length))
                      : fmt::format(", {:.3g}x slower than {} at {}", 1 / gain, exact.name, tokens_text(common.length));
  }
  return text + fmt::format("; {}.", cache_text(result, exact));
}

void print_table(const draw::Screen& screen, const std::vector<Result>& results,
                 const std::vector<std::int64_t>& lengths) {
  constexpr int kName = 34;
  fmt::print("\n{:<{}}", draw::emphasised(screen, "forward, time"),
             kName + static_cast<int>(draw::emphasised(screen, "").size()));
  for (const std::int64_t length : lengths) fmt::print("{:>10}", tokens_text(length));
  fmt::print("{:>12}{:>12}\n", "memory", "cache/token");
  for (const Result& result : results) {
    if (result.points.empty()) continue;
    fmt::print("{:<{}}", result.name, kName);
    for (const std::int64_t length : lengths) {
      const Point* p = at_length(result, length);
      fmt::print("{:>10}", p == nullptr ? "-" : io::readable_time(p->seconds));
    }
    const Point& end = result.points.back();
    fmt::print("{:>12}{:>12}\n", end.memory < 0 ? "?" : io::readable_bytes(end.memory),
               end.cache ? io::readable_bytes(*end.cache / static_cast<double>(end.length)) : "-");
  }
  fmt::print(
      "\nmemory: beyond inputs and result, at the longest length of the row. cache/token: what a decoder keeps, "
      "divided by\nthat length.\n\n");
}

// Words at most `columns` wide, after a name.
void print_wrapped(const std::string& name, const std::string& text, int columns) {
  const std::size_t indent = 4, width = static_cast<std::size_t>(std::clamp(columns, 60, 110));
  fmt::print("{}\n", name);
  std::string line(indent, ' ');
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t space = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, space - at);
    if (line.size() + word.size() + 1 > width) {
      fmt::print("{}\n", line);
      line.assign(indent, ' ');
    }
    if (line.size() > indent) line += ' ';
    line += word;
    at = space + 1;
  }
  fmt::print("{}\n", line);
}

draw::Panel panel_of(const std::vector<Result>& results, const std::string& title, double base,
                     std::string (*label)(double), double (*value)(const Point&)) {
  draw::Panel panel{title, {}, {"tokens", 2, [](double v) { return tokens_text(std::llround(v)); }}, {"", base, label}};
  for (const Result& result : results) {
    draw::Series& series = panel.series.emplace_back(draw::Series{result.name});
    for (const Point& p : result.points)
      if (value(p) > 0) series.points.emplace_back(static_cast<double>(p.length), value(p));
  }
  return panel;
}

draw::Chart chart_of(const std::vector<Result>& results, const Arguments& arguments, const std::string& warning) {
  const auto bytes = [](double v) { return io::readable_bytes(v); };
  return {{"Attention variants against length",
           {fmt::format("{} heads of {}, f32, forward; {}, {}, kernels {}", arguments.heads, arguments.dim,
                        cpu_info().model, io::counted(threads(), "thread"), kernel_name())},
           warning},
          {panel_of(
               results, "time", 10, [](double v) { return io::readable_time(v); },
               [](const Point& p) { return p.seconds; }),
           panel_of(results, "memory beyond inputs and result", 16, bytes, [](const Point& p) { return p.memory; }),
           panel_of(results, "what a decoder keeps", 16, bytes, [](const Point& p) { return p.cache.value_or(0); })}};
}

void write_charts(const std::vector<Result>& results, const Arguments& arguments, const std::string& warning) {
  const draw::Chart chart = chart_of(results, arguments, warning);
  if (!arguments.svg.empty()) {
    const std::string text = draw::to_svg(chart);
    io::write_file_atomically(arguments.svg, std::as_bytes(std::span(text)));
    fmt::print("\nchart: {}\n", arguments.svg);
  }
  if (!arguments.png.empty()) {
    io::write_file_atomically(arguments.png, draw::to_png(chart));
    fmt::print("\nchart: {}\n", arguments.png);
  }
}

// Those whose names contain what is wanted, and what they are measured by.
std::vector<Variant> chosen_variants(const Arguments& arguments) {
  std::vector<Variant> all = variant_list(arguments.heads, arguments.dim), chosen;
  std::vector<bool> wanted(all.size());
  for (std::size_t n = 0; n < all.size(); ++n) {
    if (all[n].name.find(arguments.only) != std::string::npos) wanted[n] = wanted[all[n].against] = true;
  }
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) {
    std::string names;
    for (const Variant& variant : all) names += "\n  " + variant.name;
    throw UsageError(fmt::format("no variant's name contains \"{}\"; there are:{}", arguments.only, names));
  }
  std::vector<std::size_t> place(all.size());
  for (std::size_t n = 0; n < all.size(); ++n) {
    place[n] = chosen.size();
    if (!wanted[n]) continue;
    all[n].against = place[all[n].against];  // measures come before those they measure
    chosen.push_back(std::move(all[n]));
  }
  return chosen;
}

int run_variants(const Arguments& arguments) {
  if (arguments.last < arguments.first) {
    throw UsageError(fmt::format("--to is {}, expected at least --from, {}", arguments.last, arguments.first));
  }
  for (const std::string& path : {arguments.svg, arguments.png}) {
    if (!path.empty()) io::check_can_write(path);
  }
  if (arguments.threads > 0) set_threads(arguments.threads);
  const draw::Screen screen = look_at_screen(true);
  const std::vector<Variant> variants = chosen_variants(arguments);
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = arguments.first; length <= arguments.last; length *= 2) lengths.push_back(length);
  fmt::print("{} heads of {}, f32, kernels {}, {}; queries, keys and values of a made-up text (attend demo shows it)\n",
             arguments.heads, arguments.dim, kernel_name(), io::counted(threads(), "thread"));
  (void)std::fflush(stdout);

  const OtherProcesses others;
  std::vector<Result> results;
  for (const Variant& variant : variants) results.push_back({variant.name, variant.against, {}});
  {
    ProgressBar bar("measuring", static_cast<std::int64_t>(lengths.size() * variants.size()), "runs");
    std::int64_t done = 0;
    for (const std::int64_t length : lengths)
      measure(variants, arguments, length, results, [&] { bar.update(++done); });
  }
  const std::string warning = others.warning();
  print_table(screen, results, lengths);
  if (!warning.empty()) fmt::print("{}.\n\n", warning);
  for (const Result& result : results) {
    if (!result.points.empty())
      print_wrapped(result.name, sentence(result, results[result.against], !warning.empty()), screen.columns);
  }
  write_charts(results, arguments, warning);
  return kSuccess;
}

}  // namespace

Command add_variants(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  const Subcommand app =
      program.add_subcommand("variants", "Measure every attention variant here: time, memory, cache");
  const auto number = [&](const char* flag, auto& value, std::int64_t least, std::int64_t most, const char* text) {
    app.add_option(flag, value, text).check(whole_number(least, most)).type_name("N").show_default();
  };
  number("--from", arguments->first, 64, 1 << 20, "The shortest length, in tokens");
  number("--to", arguments->last, 64, 1 << 20, "The longest; in between each is twice the one before");
  number("--heads", arguments->heads, 1, 64, "Heads");
  number("--dim", arguments->dim, 8, 256, "Numbers per head and token");
  number("--seed", arguments->seed, 0, INT64_MAX, "Another seed makes another text");
  number("--threads", arguments->threads, 0, 1024, "Threads; 0: ATTEND_THREADS, or one for each CPU");
  app.add_option("--only", arguments->only, "Only variants whose name contains this, and what they are measured by")
      .type_name("TEXT");
  app.add_option("--svg", arguments->svg, "Draw the charts here").type_name("PATH");
  app.add_option("--png", arguments->png, "Draw the charts here, as a picture").type_name("PATH");
  app.footer(
      "Every figure is measured in this run: time, memory, and what a decoder keeps. When other processes\n"
      "take more than 3 % of the CPUs meanwhile, BUSY MACHINE says so. How good a model with a variant is\n"
      "after training is not measured here.\n"
      "\nExamples:\n"
      "  attend variants                              all of them, 1k to 64k tokens\n"
      "  attend variants --to 8192 --png charts.png   a quick look, with pictures\n"
      "  attend variants --only linear --to 1048576   one family, to a million tokens (and exact attention,\n"
      "                                               which takes long there)");
  return {app, [arguments] { return run_variants(*arguments); }};
}

}  // namespace attend::cli

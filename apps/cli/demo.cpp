// `attend demo`: attention at a real size, timed, checked against the reference, and one head's pattern to look at.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "attend/runtime.hpp"
#include "check.hpp"
#include "command.hpp"
#include "demo_model.hpp"
#include "draw/picture.hpp"
#include "draw/terminal.hpp"
#include "head_maps.hpp"
#include "inputs.hpp"
#include "io/atomic_file.hpp"
#include "io/readable.hpp"
#include "llm/runtime/memory.hpp"
#include "other_processes.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr std::int64_t kPictureCells = 512;  // the most along a side of the picture

struct Arguments {
  Problem problem;
  std::string dtype = "f32";
  std::int64_t head = 0;
  int threads = 0;  // 0: as the library chooses
  std::string png = "attend-demo.png";
  bool no_png = false;
  bool no_color = false;
  bool no_model = false;
};

std::optional<DType> dtype_of(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    if (text == name(dtype)) return dtype;
  return std::nullopt;
}

// Everything that can be known to be wrong before any work is done.
void check_arguments(const Arguments& arguments) {
  const Problem& p = arguments.problem;
  if (p.heads % p.kv_heads != 0) {
    throw UsageError(fmt::format("--kv-heads is {}, expected a divisor of --heads, which is {}", p.kv_heads, p.heads));
  }
  if (arguments.head >= p.heads) {
    throw UsageError(
        fmt::format("--head is {}, expected 0 to {} (--heads is {})", arguments.head, p.heads - 1, p.heads));
  }
  // In double, which cannot wrap. Inputs pass through f32, there is a table of words, and the check holds one KV head
  // in double.
  const double elements = static_cast<double>(p.length) * static_cast<double>(p.dim);
  const double heads = static_cast<double>(2 * p.heads + 2 * p.kv_heads);
  const double bytes =
      elements * (heads * static_cast<double>(size_of(p.dtype)) + static_cast<double>(p.heads) * 4 + 8 + 32);
  const auto available = llm::available_memory();
  if (bytes > 0.9 * static_cast<double>(available.value_or(INT64_MAX))) {
    throw UsageError(
        fmt::format("{} heads ({} KV heads) of {} tokens, dim {} need {} of memory, and {} are free; "
                    "make --length, --heads or --dim smaller",
                    p.heads, p.kv_heads, p.length, p.dim, io::readable_bytes(bytes),
                    io::readable_bytes(static_cast<double>(available.value_or(INT64_MAX)))));
  }
  kernel_name();  // throws if ATTEND_ISA names none that runs here
  if (arguments.no_png) return;
  try {
    io::check_can_write(arguments.png);
  } catch (const io::FileError& error) {
    throw UsageError(fmt::format("{}; give another place with --png, or --no-png for none", error.what()));
  }
}

class Report {
 public:
  explicit Report(const draw::Screen& screen) : screen_(screen) {}
  // Shown at once, since the next line may take a while.
  void line(const char* label, const std::string& text) const {
    fmt::print("  {}{}\n", draw::emphasised(screen_, fmt::format("{:<10}", label)), text);
    (void)std::fflush(stdout);  // main looks at the state of stdout in the end
  }

 private:
  const draw::Screen& screen_;
};

std::string describe(const Problem& p) {
  const std::string mask = p.window == 0 ? "causal" : fmt::format("causal, window {}", p.window);
  return fmt::format("{}, {} for keys and values, {}, dim {}, {}, {}", io::counted(p.heads, "head"), p.kv_heads,
                     io::counted(p.length, "token"), p.dim, name(p.dtype), mask);
}

struct Timing {
  double median = 0, fastest = 0;
  int repetitions = 0;
  std::optional<std::int64_t> memory;  // beyond inputs and output
  std::string warning;                 // of others at work on the machine
};

Timing run_attention(const Problem& problem, const Inputs& inputs, Tensor& out) {
  AttentionOptions options;
  options.mask = mask_of(problem, 0);
  const auto seconds_of_one = [&] {
    const auto start = std::chrono::steady_clock::now();
    attention(inputs.q, inputs.k, inputs.v, out, options);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Timing timing;
  const OtherProcesses others;
  const llm::MemoryWatch memory;
  const double first = seconds_of_one();  // the warm-up: threads start, memory is touched for the first time
  timing.memory = memory.growth();
  timing.repetitions = first < 0.25 ? 9 : first < 1 ? 5 : first < 5 ? 3 : 1;
  std::vector<double> times(static_cast<std::size_t>(timing.repetitions));
  for (double& time : times) time = seconds_of_one();
  std::sort(times.begin(), times.end());
  timing.median = times[times.size() / 2];
  timing.fastest = times.front();
  timing.warning = others.warning();
  return timing;
}

void report_timing(const Report& report, const Problem& p, const Timing& timing) {
  report.line("time", timing.repetitions == 1
                          ? fmt::format("{} (one run, after a warm-up)", io::readable_time(timing.median))
                          : fmt::format("{} (median of {}, fastest {})", io::readable_time(timing.median),
                                        timing.repetitions, io::readable_time(timing.fastest)));
  if (!timing.warning.empty()) report.line("", timing.warning);
  const double flop = 4.0 * visible_pairs(p) * static_cast<double>(p.heads) * static_cast<double>(p.dim);
  report.line("speed", fmt::format("{:.1f} GFLOP/s ({:.3g} GFLOP: 4 x dim for each visible pair)",
                                   flop / timing.median * 1e-9, flop * 1e-9));
  const double matrices =
      4.0 * static_cast<double>(p.length) * static_cast<double>(p.length) * static_cast<double>(p.heads);
  const std::string used = timing.memory
                               ? io::readable_bytes(static_cast<double>(*timing.memory)) + " beyond inputs and output"
                               : "not measured: /proc/self/clear_refs cannot be written";
  report.line("memory", fmt::format("{}\n{:12}(the {} x {} weights of {} would take {})", used, "", p.length, p.length,
                                    io::counted(p.heads, "head"), io::readable_bytes(matrices)));
}

void report_check(const Report& report, const CheckResult& check) {
  const std::string verdict =
      check.passed ? fmt::format("passed: {} rows agree with the reference in double precision", check.rows)
                   : fmt::format("FAILED: {} rows compared with the reference in double precision", check.rows);
  report.line("check",
              fmt::format("{}\n{:12}largest error {:.2g}; nearest to its bound: {:.2g} of {:.2g} ({:.2g} %)", verdict,
                          "", check.error, check.ratio * check.allowed, check.allowed, check.ratio * 100));
}

draw::Captions captions_of(const Problem& p, const draw::HeatMap& map, std::int64_t head) {
  const std::int64_t cell = map.across.per_cell;
  return {fmt::format("Head {} of {} looks for {}", head, p.heads, looks_for(head)),
          {fmt::format(
              "{} tokens, dim {}, {}, {}; {}", p.length, p.dim, name(p.dtype),
              p.window == 0 ? "causal" : fmt::format("causal, window {}", p.window),
              cell == 1 ? "a cell is one query and one key" : fmt::format("a cell is {0} queries x {0} keys", cell))}};
}

std::string meaning_of_cell(const draw::HeatMap& map) {
  const std::int64_t cell = map.across.per_cell;
  if (cell == 1) return "Each cell: the share of its attention\n  that a query (down) gives to a key (across)";
  return fmt::format("Each cell: the share of their attention\n  that {0} queries (down) give to {0} keys (across)",
                     cell);
}

int run_demo(const Arguments& arguments) {
  const Problem& p = arguments.problem;
  check_arguments(arguments);
  if (arguments.threads > 0) set_threads(arguments.threads);
  const draw::Screen screen = look_at_screen(!arguments.no_color);
  const Report report(screen);

  fmt::print("{} {}: exact attention, computed and checked on this CPU\n\n", draw::emphasised(screen, "attend"),
             version());
  report.line("problem", describe(p));
  report.line("inputs", fmt::format("queries and keys of a made-up text, seed {}", p.seed));
  report.line("kernel", fmt::format("{}, {}", kernel_name(), io::counted(threads(), "thread")));

  const Inputs inputs = with_progress("making inputs", [&] { return make_inputs(p); });
  Tensor out(p.dtype, {1, p.heads, p.length, p.dim});
  const Timing timing = with_progress("running attention", [&] { return run_attention(p, inputs, out); });
  report_timing(report, p, timing);
  const CheckResult check =
      with_progress("checking rows in double precision", [&] { return check_rows(p, inputs, out); });
  report_check(report, check);
  std::vector<draw::HeatMap> maps = with_progress("collecting one head's weights", [&] {
    return head_maps(p, inputs, arguments.head, {draw::cells_that_fit(screen), kPictureCells});
  });
  fmt::print("\n  Head {} looks for {}. {}; blank is masked.\n\n{}\n", arguments.head, looks_for(arguments.head),
             meaning_of_cell(maps[0]), draw::to_terminal(maps[0], screen));
  if (!arguments.no_png) {
    maps[1].captions = captions_of(p, maps[1], arguments.head);
    io::write_file_atomically(arguments.png, draw::to_png(maps[1]));
    report.line("picture", arguments.png);
  }
  if (!arguments.no_model) demo_model(screen, arguments.no_png ? "" : arguments.png);
  return check.passed ? kSuccess : kFailure;
}

}  // namespace

Command add_demo(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  Problem& p = arguments->problem;
  const Subcommand app = program.add_subcommand("demo", "Run attention at a real size, check it, look at one head");
  const auto number = [&](const char* flag, auto& value, std::int64_t least, std::int64_t most, const char* text) {
    app.add_option(flag, value, text).check(whole_number(least, most)).type_name("N").show_default();
  };
  number("--heads", p.heads, 1, 65536, "Query heads");
  number("--kv-heads", p.kv_heads, 1, 65536, "Key and value heads; must divide --heads");
  number("--length", p.length, 1, kMostTokens, "Tokens");
  number("--dim", p.dim, 1, 65536, "Numbers per head and token");
  number("--window", p.window, 0, kMostTokens, "Keys that a query sees, its own and the latest before it; 0: all");
  app.add_option("--dtype", arguments->dtype, "Number format of inputs and output: f32, bf16 or f16")
      .check(text_that([](const std::string& text) -> std::string {
        if (dtype_of(text)) return "";
        return fmt::format("got '{}', expected f32, bf16 or f16", text);
      }))
      .type_name("NAME")
      .show_default();
  number("--threads", arguments->threads, 0, 1024, "Threads; 0: ATTEND_THREADS, or one for each CPU");
  number("--seed", p.seed, 0, INT64_MAX, "Another seed makes another text");
  number("--head", arguments->head, 0, 65535, "The head to draw: 0 repeats, 1 neighbours, 2 topic, 3 first token, ...");
  app.add_option("--png", arguments->png, "Where the picture goes").type_name("PATH").show_default();
  app.add_flag("--no-png", arguments->no_png, "Write no picture");
  app.add_flag("--no-model", arguments->no_model, "Leave out the language model that comes after");
  app.add_flag("--no-color", arguments->no_color, "Print no colours (nor does NO_COLOR=1, nor a pipe)");
  app.footer(
      "The inputs are the queries and keys of a made-up text, so that every head has\n"
      "something to find. The pattern is what attention computed; nothing in it is painted.\n"
      "\nExamples:\n"
      "  attend demo                                   8 heads, 2 KV heads, 4096 tokens, causal, f32\n"
      "  attend demo --length 16384 --dtype bf16       longer, in bfloat16\n"
      "  attend demo --window 512 --head 1             a sliding window, seen by another head\n"
      "  attend demo --head 2 --png topic.png          the head that looks for its topic\n"
      "  ATTEND_ISA=scalar attend demo --length 512    without vector instructions\n"
      "\nExit codes: 0 computed and checked, 1 the check or a file failed, 2 wrong use.");
  return {app, [arguments] {
            arguments->problem.dtype = *dtype_of(arguments->dtype);
            return run_demo(*arguments);
          }};
}

}  // namespace attend::cli

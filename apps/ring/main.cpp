// The program attend_ring: reads its arguments, starts MPI, and turns errors into messages and the end of all ranks.
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "measure.hpp"

namespace attend::ring_app {
namespace {

constexpr int kSuccess = 0, kFailure = 1, kUsage = 2;

void add_options(CLI::App& app, Settings& s) {
  const auto size = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--length", s.length, "Tokens of the whole sequence, a multiple of the ranks (zigzag: twice)")
      ->check(size);
  app.add_option("--batch", s.batch, "Sequences")->check(size);
  app.add_option("--heads", s.heads, "Query heads")->check(size);
  app.add_option("--kv-heads", s.kv_heads, "KV heads; 0: as many as query heads");
  app.add_option("--dim", s.dim, "Head dimension")->check(size);
  app.add_option("--dtype", s.dtype, "f32, f16 or bf16")->check(CLI::IsMember({"f32", "f16", "bf16"}));
  app.add_flag("--causal", s.causal, "A token sees itself and what came before");
  app.add_option("--window", s.window, "A token sees this many before it (with --causal), or on both sides; 0: all");
  app.add_flag("--zigzag", s.zigzag, "Split so that a causal mask gives all ranks the same work");
  app.add_flag("--layer", s.layer, "The whole layer: projections, RoPE, attention, and all their gradients");
  app.add_flag("--forward", s.forward_only, "No backward pass");
  app.add_flag("--check", s.check, "Compare with one process that has the whole sequence");
  app.add_option("--repeat", s.repeat, "Runs; the one with the median time is printed")->check(CLI::Range(1, 1000));
  app.add_option("--threads", s.threads, "Threads of each rank; 0: the CPUs shared among the ranks of a machine")
      ->check(CLI::Range(0, 1024));
  app.add_option("--timeout", s.timeout, "Seconds of silence after which a rank counts as gone")
      ->check(CLI::Range(0.01, 1e6));
  app.add_option("--progress", s.progress, "Who keeps transfers moving: auto, thread, slices or none")
      ->check(CLI::IsMember({"auto", "thread", "slices", "none"}));
  app.add_option("--slice-work", s.slice_work, "Multiplications between two looks at the transfers")
      ->check(CLI::Range(1.0, 1e18));
  const std::string fault = "To see how the run ends: in its second step, rank R ";
  app.add_option("--kill-rank", s.kill_rank, fault + "is killed")->type_name("R");
  app.add_option("--throw-rank", s.throw_rank, fault + "throws an exception")->type_name("R");
  app.add_option("--stop-rank", s.stop_rank, fault + "stops without a word")->type_name("R");
  app.footer(
      "Examples:\n"
      "  mpirun -n 4 attend_ring --length 8192 --causal --zigzag --check\n"
      "  mpirun -n 2 attend_ring --layer --dtype bf16 --causal --check\n"
      "  mpirun -n 4 attend_ring --kill-rank 2\n"
      "\nMore ranks than processors: mpirun --oversubscribe. Exit codes: 0 success, 1 a check failed, 2 wrong use.");
}

int complain(bool speak, const std::string& text) {
  if (speak) (void)std::fputs(("attend_ring: " + text + "\n").c_str(), stderr);
  return kUsage;
}

int parse_and_run(int argc, char** argv) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  CLI::App app{"Ring attention: one sequence over the ranks of mpirun, timed and checked.", "attend_ring"};
  app.set_version_flag("--version", std::string("attend ") + version(), "Print the version and exit");
  app.get_formatter()->column_width(28);
  Settings settings;
  add_options(app, settings);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return rank == 0 ? app.exit(error) : kSuccess;
    return complain(rank == 0, fmt::format("{}\nSee 'attend_ring --help'.", error.what()));
  }
  try {
    return measure(settings) ? kSuccess : kFailure;
  } catch (const InvalidArgument& error) {  // thrown on all ranks alike
    return complain(rank == 0, error.what());
  }
}

}  // namespace
}  // namespace attend::ring_app

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  int code = 1;
  attend::ring_run({MPI_Comm_c2f(MPI_COMM_WORLD)}, [&] { code = attend::ring_app::parse_and_run(argc, argv); });
  (void)std::fflush(stdout);
  MPI_Finalize();
  return code;
}

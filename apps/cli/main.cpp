// The program `attend`: wires the sub-commands together and turns errors into messages and exit codes.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "command.hpp"
#include "commit.hpp"
#include "draw/columns.hpp"
#include "truncated_files.hpp"

namespace attend::cli {
namespace {

// Never throws for a standard error that is closed.
int complain(const std::string& who, const std::string& what, int code) {
  (void)std::fflush(stdout);
  (void)std::fputs(fmt::format("{}: {}\n", who, what).c_str(), stderr);
  return code;
}

// "attend 0.1.0 (4a5109d38d84)"
std::string version_text() {
  const std::string_view from = commit();
  return from.empty() ? fmt::format("attend {}", version()) : fmt::format("attend {} ({})", version(), from);
}

int parse_and_run(int argc, char** argv) {
  Program program(
      "Exact attention on the CPU: fast, checked, and open to view.", version_text(),
      "Start here:\n"
      "  attend demo                     run attention at a real size, check it, look at one head\n"
      "  attend pull smollm2             bring a small language model; attend models lists those that are here\n"
      "  attend chat smollm2             talk with it; generate, embed, eval and info are there too\n"
      "  attend serve smollm2            let programs that speak OpenAI's API talk with it\n"
      "  attend explore                  see it think: every head and weight, in the browser\n"
      "  attend cpu                      see what this machine has and which kernel is used\n"
      "  attend variants                 measure every attention variant on this machine\n"
      "  attend lab                      learn attention by experiments, in English or Chinese\n"
      "  attend demo --help              every command explains itself\n"
      "\nEnvironment:\n"
      "  ATTEND_ISA=scalar|avx2|...      use these kernels instead of the best ones (attend cpu lists them)\n"
      "  ATTEND_THREADS=N                use this many threads\n"
      "  ATTEND_HOME=FOLDER              keep models there instead of in the user's cache folder\n"
      "  NO_COLOR=1                      print no colours\n"
      "\nExit codes: 0 success, 1 the job failed, 2 wrong use.");
  const Command commands[] = {
      // the engine
      add_demo(program), add_cpu(program), add_variants(program),
      // models
      add_pull(program), add_models(program), add_rm(program), add_info(program), add_convert(program),
      // asked
      add_generate(program), add_chat(program), add_embed(program), add_eval(program), add_look(program),
      add_explore(program), add_serve(program), add_bench(program),
      // trained
      add_corpus(program), add_prepare(program), add_train(program), add_compare(program), add_merge(program),
      // taught
      add_lab(program), add_quiz(program),
      // for the shell
      add_completion(program), add_man(program)};

  std::string who = "attend";
  try {
    const Command* command = program.parse(argc, argv, commands, who);
    return command != nullptr ? command->run() : kSuccess;
  } catch (const UsageError& error) {
    return complain(who, error.what(), kUsage);
  } catch (const InvalidArgument& error) {
    return complain(who, error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return complain(who, "out of memory; try a smaller problem", kFailure);
  } catch (const std::exception& error) {
    return complain(who, error.what(), kFailure);
  }
}

}  // namespace
}  // namespace attend::cli

int main(int argc, char** argv) {
  attend::cli::explain_truncated_files();
  try {
    attend::draw::use_utf8();
    const int code = attend::cli::parse_and_run(argc, argv);
    // A report that did not arrive (a full disk behind a redirection) is no success.
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    return attend::cli::complain("attend", fmt::format("cannot write the output: {}", std::strerror(errno)),
                                 attend::cli::kFailure);
  } catch (...) {  // no memory left even for a message
    return attend::cli::kFailure;
  }
}

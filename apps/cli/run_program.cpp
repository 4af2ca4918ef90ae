// Runs a program of sub-commands and turns errors into messages and exit codes.
#include "run_program.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "commit.hpp"
#include "draw/columns.hpp"
#include "screen.hpp"
#include "truncated_files.hpp"

namespace attend::cli {
namespace {

// Never throws for a standard error that is closed.
int complain(const std::string& who, const std::string& what, int code) {
  (void)std::fflush(stdout);
  tell(fmt::format("{}: {}", who, what));
  return code;
}

// "attend 0.1.0 (4a5109d38d84)"
std::string version_text() {
  const std::string_view from = commit();
  return from.empty() ? fmt::format("attend {}", version()) : fmt::format("attend {} ({})", version(), from);
}

int parse_and_run(int argc, char** argv, const char* footer,
                  const std::function<std::vector<Command>(Program& program)>& add_commands) {
  Program program("Exact attention on the CPU: fast, checked, and open to view.", version_text(), footer);
  const std::vector<Command> commands = add_commands(program);
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

int run_program(int argc, char** argv, const char* footer,
                const std::function<std::vector<Command>(Program& program)>& commands) {
  explain_truncated_files();
  try {
    draw::use_utf8();
    const int code = parse_and_run(argc, argv, footer, commands);
    // A report that did not arrive (a full disk behind a redirection) is no success.
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    return complain("attend", fmt::format("cannot write the output: {}", std::strerror(errno)), kFailure);
  } catch (...) {  // no memory left even for a message
    return kFailure;
  }
}

}  // namespace attend::cli

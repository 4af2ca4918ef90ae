// Running an untrusted program in a sandbox, with limits of time, memory and output.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace attend::labs {

struct Limits {
  double seconds = 10;                          // by the clock
  std::int64_t memory = std::int64_t{2} << 30;  // address space of each process, bytes
};

// The layers that depend on the system. The filter of system calls and the limits are not among them: without these
// nothing is run.
struct Layers {
  bool namespaces = true;  // processes, network, IPC, users
  bool file_tree = true;   // only what it needs is mounted, read-only; requires namespaces
  bool landlock = true;    // the same for files, by rules

  bool operator==(const Layers&) const = default;
};

struct SandboxedProgram {
  // A learner's program starts no process, opens no file for writing and no socket. A compiler may do the first two,
  // and writes in its folder only. What is trusted (the user's Python, asked where its modules are) gets limits only.
  enum class Kind { learner, compiler, trusted };

  Kind kind = Kind::learner;
  std::vector<std::string> argv{};      // argv[0]: a path
  std::filesystem::path folder{};       // where it runs
  std::vector<std::string> readable{};  // files and folders that it may read, besides the system's and its own folder
  std::string input{};                  // its standard input
  Limits limits{};
};

struct Outcome {
  enum class End { exited, signalled, timed_out, flooded, not_started } end = End::not_started;
  int code = 0;         // exit status, signal, or the error that kept it from starting
  std::string output;   // the beginning of what it printed, both streams
  std::string answers;  // what it wrote to descriptor 3
  Layers held{false, false, false};
};

constexpr std::size_t kMaxWritten = std::size_t{16} << 20;  // bytes of answers, and of output: beyond it is stopped

// Runs the program and waits for it; afterwards no process that it started is left. `layers`: those to try. `on_wait`
// is called ten times a second; if it throws, the program is killed.
Outcome run_sandboxed(const SandboxedProgram& program, const Layers& layers = {},
                      const std::function<void()>& on_wait = {});

}  // namespace attend::labs

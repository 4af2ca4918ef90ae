// Running a learner's program in a process of its own, with limits of time, memory and files, and without children.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace attend::labs {

struct Limits {
  double seconds = 10;                          // by the clock
  std::int64_t memory = std::int64_t{2} << 30;  // address space, bytes
  std::int64_t file = std::int64_t{64} << 20;   // the largest file it may write
  bool may_start_processes = false;             // a compiler does, a learner's file does not
};

struct Outcome {
  enum class End { exited, signalled, timed_out, not_started } end = End::not_started;
  int code = 0;        // exit status, or the signal
  std::string output;  // the beginning of what it printed, both streams
};

// Runs argv[0] (a path) in `folder` and waits; afterwards nothing of it runs any more. It guards against accidents and
// pranks (loops, memory, forks), not against somebody who wants to read the user's files.
Outcome run_limited(const std::vector<std::string>& argv, const std::filesystem::path& folder, const Limits& limits);

}  // namespace attend::labs

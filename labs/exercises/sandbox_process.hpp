// The processes of a sandbox: one that sets it up, waits and ends all others, and the program itself. After clone()
// both make system calls only: other threads may have held locks.
#pragma once

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "labs/exercises/file_view.hpp"

namespace attend::labs {

// What the processes tell the caller, through `status`.
struct SandboxReport {
  enum class Kind : std::int32_t {
    no_namespaces,  // they exist, but cannot be used: try without
    layers,         // value: the layers that hold, as bits
    not_started,    // value: the error
    ended           // value: as waitpid gives it
  } kind;
  std::int32_t value;
};
constexpr std::int32_t kHoldsNamespaces = 1, kHoldsFileTree = 2, kHoldsLandlock = 4;

struct SandboxPlan {
  char** argv = nullptr;
  char** environment = nullptr;
  const FileView* view = nullptr;
  std::vector<sock_filter>* filter = nullptr;  // the copy of the process is completed in place
  SandboxedProgram::Kind kind = SandboxedProgram::Kind::learner;
  Limits limits{};
  Layers layers{};
  const char *user_map = nullptr, *group_map = nullptr;
  // Descriptors. Everything is killed when the other end of `control` is closed.
  int input = -1, output = -1, answers = -1, control = -1, status = -1;
};

// The process id, or -1. All signals must be blocked in the calling thread.
pid_t start_sandbox(const SandboxPlan& plan);

}  // namespace attend::labs

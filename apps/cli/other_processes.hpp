// Whether the machine was ours alone while something was measured.
#pragma once

#include <optional>
#include <string>

namespace attend::cli {

// Watches what other processes take of the CPUs, from /proc/stat, as the benchmarks do.
class OtherProcesses {
 public:
  OtherProcesses() : start_(now()) {}
  std::optional<double> share() const;  // since the watch began, 0 to 1; nothing where the system does not tell
  // "BUSY MACHINE: ..." when they took more than times bear, else "".
  std::string warning() const;

 private:
  struct Seconds {
    double all, busy, ours;  // of all CPUs together
  };
  static std::optional<Seconds> now();
  std::optional<Seconds> start_;
};

}  // namespace attend::cli

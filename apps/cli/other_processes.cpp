// What others take of the CPUs: all that was busy, less our own.
#include "other_processes.hpp"

#include <fmt/format.h>
#include <sys/times.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace attend::cli {
namespace {

constexpr double kBusy = 0.03;  // the benchmarks' bound: bench/peers/run.py

}  // namespace

std::optional<OtherProcesses::Seconds> OtherProcesses::now() {
  // "cpu  user nice system idle iowait irq softirq steal ..."
  std::ifstream file("/proc/stat");
  std::string name;
  std::array<double, 8> ticks{};
  file >> name;
  for (double& tick : ticks) file >> tick;
  tms own{};
  const auto second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (!file || name != "cpu" || second <= 0 || ::times(&own) == static_cast<clock_t>(-1)) return std::nullopt;
  double all = 0;
  for (const double tick : ticks) all += tick;
  const double ours = static_cast<double>(own.tms_utime + own.tms_stime + own.tms_cutime + own.tms_cstime);
  return Seconds{all / second, (all - ticks[3] - ticks[4]) / second, ours / second};
}

std::optional<double> OtherProcesses::share() const {
  const std::optional<Seconds> end = now();
  if (!start_ || !end || end->all <= start_->all) return std::nullopt;
  const double others = (end->busy - start_->busy) - (end->ours - start_->ours);
  return std::clamp(others / (end->all - start_->all), 0.0, 1.0);
}

std::string OtherProcesses::warning() const {
  const double part = share().value_or(0);
  if (part <= kBusy) return "";
  return fmt::format("BUSY MACHINE: others took {:.0f} % of the CPUs meanwhile, so these times are not to be trusted",
                     100 * part);
}

}  // namespace attend::cli

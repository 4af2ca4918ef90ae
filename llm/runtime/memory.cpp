// Memory, as Linux tells it under /proc and /sys.
#include "llm/runtime/memory.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace attend::llm {
namespace {

// "VmRSS:    1234 kB" -> bytes; -1 if there is no such line.
std::int64_t kilobytes_line(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return -1;
}

std::int64_t number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = -1;
  return file >> value ? value : -1;  // "max" is no number
}

}  // namespace

void keep_few_arenas() {
  (void)::mallopt(M_ARENA_MAX, 2);
}

void give_back_memory() {
  (void)::malloc_trim(0);
}

MemoryWatch::MemoryWatch() {
  give_back_memory();  // so that using it anew counts
  // 5 sets the peak (VmHWM) back to what is held now.
  std::ofstream reset("/proc/self/clear_refs");
  if (reset << 5 << std::flush) start_ = kilobytes_line("/proc/self/status", "VmRSS");
}

std::optional<std::int64_t> MemoryWatch::growth() const {
  const std::int64_t peak = kilobytes_line("/proc/self/status", "VmHWM");
  if (start_ < 0 || peak < 0) return std::nullopt;
  return std::max<std::int64_t>(0, peak - start_);
}

std::int64_t held_memory() {
  return std::max<std::int64_t>(0, kilobytes_line("/proc/self/status", "VmRSS"));
}

std::optional<std::int64_t> available_memory() {
  std::int64_t available = kilobytes_line("/proc/meminfo", "MemAvailable");
  // Without /proc, as in a bare chroot: all there is in the machine.
  if (available < 0) available = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");  // of a container
  if (limit >= 0) available = available < 0 ? limit : std::min(available, limit);
  if (available < 0) return std::nullopt;
  return available;
}

}  // namespace attend::llm

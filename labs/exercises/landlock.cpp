// Landlock by its system calls; the constants are written here, since many headers are older than the kernel.
#include "labs/exercises/landlock.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace attend::labs {
namespace {

constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr unsigned kAskVersion = 1;
constexpr int kPathBeneath = 1;
constexpr std::uint64_t kExecute = 1, kWriteFile = 2, kReadFile = 4, kReadFolder = 8;

struct Ruleset {
  std::uint64_t files, network, scope;
};
struct [[gnu::packed]] PathRule {
  std::uint64_t allowed;
  std::int32_t parent;
};

// What a version of the interface can restrict: later ones know more rights.
Ruleset all_of(long version, std::size_t& size) {
  Ruleset all{(1U << 13) - 1, 0, 0};
  size = sizeof(std::uint64_t);
  if (version >= 2) all.files = (1U << 14) - 1;  // linking and renaming between folders
  if (version >= 3) all.files = (1U << 15) - 1;  // truncating
  if (version >= 4) {
    all.network = 3;  // TCP: bind and connect
    size = 2 * sizeof(std::uint64_t);
  }
  if (version >= 5) all.files = (1U << 16) - 1;  // ioctl of devices
  if (version >= 6) {
    all.scope = 3;  // abstract sockets and signals to processes outside
    size = sizeof all;
  }
  return all;
}

bool allow(int rules, const char* path, std::uint64_t rights) {
  const int place = ::open(path, O_PATH | O_CLOEXEC);
  if (place < 0) return false;
  struct stat status{};
  const bool folder = ::fstat(place, &status) == 0 && S_ISDIR(status.st_mode);
  const PathRule rule{folder ? rights : rights & (kExecute | kReadFile | kWriteFile), place};
  const bool added = ::syscall(kAddRule, rules, kPathBeneath, &rule, 0U) == 0;
  ::close(place);
  return added;
}

}  // namespace

bool restrict_files(const FileView& view, bool own_processes) {
  const long version = ::syscall(kCreateRuleset, nullptr, std::size_t{0}, kAskVersion);
  if (version < 1) return false;
  std::size_t size = 0;
  const Ruleset all = all_of(version, size);
  const auto rules = static_cast<int>(::syscall(kCreateRuleset, &all, size, 0U));
  if (rules < 0) return false;
  constexpr std::uint64_t kRead = kExecute | kReadFile | kReadFolder;
  for (const std::string& path : view.readable) (void)allow(rules, path.c_str(), kRead);
  for (const std::string& path : view.devices) (void)allow(rules, path.c_str(), kReadFile | kWriteFile);
  if (own_processes) (void)allow(rules, "/proc", kReadFile | kReadFolder);
  (void)allow(rules, view.folder.c_str(), view.writable ? all.files : kRead);
  const bool restricted = ::syscall(kRestrictSelf, rules, 0U) == 0;
  ::close(rules);
  return restricted;
}

}  // namespace attend::labs

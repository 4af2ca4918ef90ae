// Maps files, over POSIX calls.
#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace attend::io {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw FileError("cannot read " + path.string() + ": " + what);
}
std::string system_said() {
  return std::generic_category().message(errno);
}

// The mapped files, for mapped_path: written by whoever maps, read from a signal handler. A slot is free without a
// path, and its path is set last and taken away first.
struct Slot {
  std::atomic<char*> path{nullptr};
  std::atomic<std::uintptr_t> first{0}, last{0};  // addresses [first, last)
  std::atomic<bool> taken{false};
};
std::array<Slot, 4096> g_slots;

int note(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  for (std::size_t n = 0; n < g_slots.size(); ++n) {
    Slot& slot = g_slots[n];
    if (slot.taken.load(std::memory_order_relaxed) || slot.taken.exchange(true)) continue;
    slot.first = reinterpret_cast<std::uintptr_t>(bytes.data());
    slot.last = slot.first + bytes.size();
    slot.path = ::strdup(printable(path.string()).c_str());
    return static_cast<int>(n);
  }
  return -1;
}
void forget(int place) {
  if (place < 0) return;
  Slot& slot = g_slots[static_cast<std::size_t>(place)];
  std::free(slot.path.exchange(nullptr));
  slot.first = slot.last = 0;
  slot.taken = false;
}

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hold us up
  if (fd < 0) fail(path, system_said());
  const Descriptor descriptor{fd};
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail(path, system_said());
  if (!S_ISREG(status.st_mode)) fail(path, S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a regular file");
  if (status.st_size == 0) return;  // nothing to map
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED) fail(path, system_said());
  bytes_ = {static_cast<const std::byte*>(memory), size};
  noted_ = note(path, bytes_);
}

MappedFile::~MappedFile() {
  forget(noted_);
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})), noted_(std::exchange(other.noted_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(noted_, other.noted_);
  return *this;
}

const char* mapped_path(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto page = static_cast<std::uintptr_t>(4096);
  for (const Slot& slot : g_slots) {
    const char* path = slot.path;
    // The fault of a piece that a kernel reads at once may be said to be at the beginning of its page.
    if (path != nullptr && at >= slot.first / page * page && at < (slot.last + page - 1) / page * page) return path;
  }
  return nullptr;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void not_needed_now(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t past = reinterpret_cast<std::uintptr_t>(bytes.data()) % page, skip = past == 0 ? 0 : page - past;
  if (skip >= bytes.size()) return;
  const std::size_t whole = (bytes.size() - skip) / page * page;
  // Only advice; the bytes are those of a mapping that may be read alone.
  if (whole > 0) (void)::madvise(const_cast<std::byte*>(bytes.data() + skip), whole, MADV_DONTNEED);
}

}  // namespace attend::io

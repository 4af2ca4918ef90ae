// A lock on a file in the store, which goes when its process goes.
#include "store_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/file_error.hpp"

namespace attend::cli {

StoreLock::StoreLock(const std::filesystem::path& store) {
  std::filesystem::create_directories(store);
  const std::filesystem::path path = store / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0)
    throw io::FileError(fmt::format("cannot write {}: {}", path.string(), std::generic_category().message(errno)));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd_);
    throw io::FileError(
        fmt::format("another 'attend pull' or 'attend rm' is at work in {}: wait for it to end", store.string()));
  }
}

StoreLock::~StoreLock() {
  ::close(fd_);
}

}  // namespace attend::cli

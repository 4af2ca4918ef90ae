// A lock on a file in the store, which goes when its process goes.
#include "llm/store/store_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/file_error.hpp"

namespace attend::llm {

StoreLock::StoreLock(const std::filesystem::path& store) {
  std::filesystem::create_directories(store);
  const std::filesystem::path path = store / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw io::FileError("cannot write " + path.string() + ": " + std::generic_category().message(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd_);
    throw io::FileError("another 'attend pull' or 'attend rm' is at work in " + store.string() +
                        ": wait for it to end");
  }
}

StoreLock::~StoreLock() {
  ::close(fd_);
}

}  // namespace attend::llm

// A lock on a file in the folder, which goes when its process goes.
#include "io/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "io/file_error.hpp"

namespace attend::io {

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& busy) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd_ < 0) throw FileError("cannot write " + path.string() + ": " + std::generic_category().message(errno));
  // Somebody who only asks (is_held) has it for a moment.
  for (int tries = 0; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (tries == 3) {
      ::close(fd_);
      throw FileError(busy);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool FolderLock::is_held(const std::filesystem::path& folder) {
  const int fd = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0;
  ::close(fd);
  return held;
}

FolderLock::~FolderLock() {
  ::close(fd_);
}

}  // namespace attend::io

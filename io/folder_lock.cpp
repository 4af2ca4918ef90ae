// A lock on a file in the folder, which goes when its process goes.
#include "io/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/file_error.hpp"

namespace attend::io {

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& busy) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw FileError("cannot write " + path.string() + ": " + std::generic_category().message(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd_);
    throw FileError(busy);
  }
}

FolderLock::~FolderLock() {
  ::close(fd_);
}

}  // namespace attend::io

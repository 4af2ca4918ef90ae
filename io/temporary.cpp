// Temporaries over POSIX calls and flock.
#include "io/temporary.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <vector>

namespace attend::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".attend-tmp-";

bool same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// One of ours whose maker is gone: its lock is free. The lock is held while it is removed, so that a maker who had not
// taken it yet sees what happened.
void remove_if_left_over(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  struct stat status{};
  const bool ours =
      ::fstat(fd, &status) == 0 && status.st_uid == ::geteuid() && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
  std::error_code ignored;
  if (ours && ::flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
  ::close(fd);
}

void remove_left_over(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kPrefix) && name.find_first_not_of("0123456789-", kPrefix.size()) == name.npos)
      found.push_back(entry->path());
  }
  for (const fs::path& path : found) remove_if_left_over(path);
}

}  // namespace

void fail_to_write(const fs::path& path, const std::string& step, int error) {
  throw FileError("cannot write " + path.string() + ": " + step + ": " + std::generic_category().message(error));
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void sync_folder_of(const fs::path& path) {
  const int fd = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == EACCES) return;  // a folder one may write but not read cannot be synced by anybody
    fail_to_write(path, "opening its folder to sync it (the new content is in place)", errno);
  }
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL: a file system that does not sync folders.
  if (error != 0 && error != EINVAL) fail_to_write(path, "syncing its folder (the new content is in place)", error);
}

Temporary::Temporary(const fs::path& target, Kind kind) : target_(target) {
  remove_left_over(folder_of(target));
  // A short name of its own, since the target's may already be as long as names can be.
  const std::string base = (folder_of(target) / kPrefix).string() + std::to_string(::getpid()) + "-";
  for (int attempt = 0; attempt < 1000; ++attempt) {
    path_ = base + std::to_string(attempt);
    if (make(kind) && lock()) return;
  }
  path_.clear();
  fail_to_write(target, "making a temporary in its folder", EEXIST);
}

// False if there is one of this name already.
bool Temporary::make(Kind kind) {
  const char* step = kind == Kind::file ? "making a temporary file in its folder" : "making a folder beside it";
  if (kind == Kind::folder && ::mkdir(path_.c_str(), 0777) != 0) {
    if (errno == EEXIST) return false;
    fail_to_write(target_, step, errno);
  }
  // O_EXCL rather than mkstemp, so that a new file gets the permissions the umask gives.
  const int flags = kind == Kind::file ? O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC : O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  fd_ = ::open(path_.c_str(), flags, 0666);
  // A folder may have been taken for left over between the two calls.
  const bool again = errno == EEXIST || errno == EINTR || (kind == Kind::folder && errno == ENOENT);
  if (fd_ < 0 && !again) fail_to_write(target_, step, errno);
  return fd_ >= 0;
}

// False if somebody who cleaned up took it for left over before it was locked. Where the system has no locks there is
// none to be had for cleaning up either.
bool Temporary::lock() {
  (void)::flock(fd_, LOCK_EX);
  struct stat held{}, named{};
  if (::fstat(fd_, &held) == 0 && ::lstat(path_.c_str(), &named) == 0 && same(held, named)) {
    lock_ = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    return true;
  }
  ::close(fd_);
  fd_ = -1;
  return false;
}

Temporary::~Temporary() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (fd_ >= 0) ::close(fd_);
  if (lock_ >= 0) ::close(lock_);
}

void Temporary::close_file() {
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 && errno != EINTR) fail_to_write(target_, "closing", errno);
}

void Temporary::moved() {
  path_.clear();
}

}  // namespace attend::io

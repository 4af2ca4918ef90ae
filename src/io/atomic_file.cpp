// Writing a file atomically, over POSIX calls.
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

namespace attend::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& step, int error) {
  throw FileError("cannot write " + path.string() + ": " + step + ": " + std::generic_category().message(error));
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

struct Target {
  fs::path path;               // with symbolic links followed
  std::optional<mode_t> mode;  // of the file that is there now
};

Target resolve(const fs::path& path) {
  if (path.empty() || !path.has_filename()) {
    throw FileError("cannot write '" + path.string() + "': expected the name of a file");
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) fail(path, "looking at it", errno);
    return {path, std::nullopt};
  }
  fs::path real = path;
  if (S_ISLNK(status.st_mode)) {
    std::error_code error;
    real = fs::canonical(path, error);
    if (error) fail(path, "following the symbolic link", error.value());
    if (::stat(real.c_str(), &status) != 0) fail(path, "looking at it", errno);
  }
  if (!S_ISREG(status.st_mode)) {
    const char* what = S_ISDIR(status.st_mode) ? "a folder" : "not a regular file";
    throw FileError("cannot write " + path.string() + ": it is " + what + ", expected a file or nothing there");
  }
  return {real, status.st_mode & 07777};
}

// Closes on every way out; the temporary goes away unless it was renamed.
class Temporary {
 public:
  explicit Temporary(const Target& target) : target_(target) {
    // A short name of its own, since the target's may already be as long as names can be.
    const std::string base = (folder_of(target.path) / ".attend-tmp-").string() + std::to_string(::getpid()) + "-";
    // O_EXCL rather than mkstemp, so that a new file gets the permissions the umask gives.
    for (int attempt = 0;; ++attempt) {
      path_ = base + std::to_string(attempt);
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ >= 0) break;
      if (errno == EINTR || (errno == EEXIST && attempt < 1000)) continue;
      fail(target.path, "making a temporary file in its folder", errno);
    }
  }
  ~Temporary() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(target_.path, "writing", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void commit() {
    if (target_.mode && ::fchmod(fd_, *target_.mode) != 0) fail(target_.path, "keeping its permissions", errno);
    if (::fsync(fd_) != 0) fail(target_.path, "fsync", errno);
    const int closed = ::close(fd_);
    fd_ = -1;
    if (closed != 0 && errno != EINTR) fail(target_.path, "closing", errno);
    if (::rename(path_.c_str(), target_.path.c_str()) != 0) fail(target_.path, "renaming", errno);
    path_.clear();
  }

 private:
  const Target& target_;
  std::string path_;
  int fd_ = -1;
};

// Without this the rename itself may be lost with the power.
void sync_folder_of(const fs::path& path) {
  const int fd = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == EACCES) return;  // a folder one may write but not read cannot be synced by anybody
    fail(path, "opening its folder to sync it (the new content is in place)", errno);
  }
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL: a file system that does not sync folders.
  if (error != 0 && error != EINVAL) fail(path, "syncing its folder (the new content is in place)", error);
}

// A file or a folder that is already there.
void sync_in_place(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) fail(path, "opening it to sync it", errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL) fail(path, "fsync", error);
}

}  // namespace

void stream_file_atomically(const fs::path& path, const std::function<void(const PutBytes&)>& content) {
  const Target target = resolve(path);
  Temporary temporary(target);
  content([&](std::span<const std::byte> bytes) { temporary.write_all(bytes); });
  temporary.commit();
  sync_folder_of(target.path);
}

void write_file_atomically(const fs::path& path, std::span<const std::byte> bytes) {
  stream_file_atomically(path, [&](const PutBytes& put) { put(bytes); });
}

void move_folder_atomically(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(from, error), end; !error && entry != end; entry.increment(error))
    sync_in_place(entry->path());
  if (error) fail(from, "listing it", error.value());
  sync_in_place(from);
  // Under a name of its own first: a folder half removed must not stand where whole ones are looked for.
  const fs::path old = from.string() + "-old";
  if (::rename(to.c_str(), old.c_str()) != 0 && errno != ENOENT) fail(to, "moving the old folder away", errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    (void)::rename(old.c_str(), to.c_str());
    fail(to, "renaming", reason);
  }
  sync_folder_of(to);
  fs::remove_all(old, error);  // its failure costs space alone
}

void check_can_write(const fs::path& path) {
  const fs::path folder = folder_of(resolve(path).path);
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) fail(path, "its folder " + folder.string(), errno);
  if (!S_ISDIR(status.st_mode)) fail(path, "its folder " + folder.string(), ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail(path, "its folder " + folder.string(), errno);
}

}  // namespace attend::io

// Writing a file atomically, over POSIX calls.
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

#include "io/temporary.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;

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
    if (errno != ENOENT) fail_to_write(path, "looking at it", errno);
    return {path, std::nullopt};
  }
  fs::path real = path;
  if (S_ISLNK(status.st_mode)) {
    std::error_code error;
    real = fs::canonical(path, error);
    if (error) fail_to_write(path, "following the symbolic link", error.value());
    if (::stat(real.c_str(), &status) != 0) fail_to_write(path, "looking at it", errno);
  }
  if (!S_ISREG(status.st_mode)) {
    const char* what = S_ISDIR(status.st_mode) ? "a folder" : "not a regular file";
    throw FileError("cannot write " + path.string() + ": it is " + what + ", expected a file or nothing there");
  }
  return {real, status.st_mode & 07777};
}

void write_all(const fs::path& target, int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_write(target, "writing", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

// The temporary takes the target's place.
void commit(Temporary& temporary, const Target& target) {
  const int fd = temporary.descriptor();
  if (target.mode && ::fchmod(fd, *target.mode) != 0) fail_to_write(target.path, "keeping its permissions", errno);
  if (::fsync(fd) != 0) fail_to_write(target.path, "fsync", errno);
  temporary.close_file();
  if (::rename(temporary.path().c_str(), target.path.c_str()) != 0) fail_to_write(target.path, "renaming", errno);
  temporary.moved();
}

}  // namespace

void stream_file_atomically(const fs::path& path, const std::function<void(const PutBytes&)>& content) {
  const Target target = resolve(path);
  Temporary temporary(target.path, Temporary::Kind::file);
  content([&](std::span<const std::byte> bytes) { write_all(target.path, temporary.descriptor(), bytes); });
  commit(temporary, target);
  sync_folder_of(target.path);
}

void write_file_atomically(const fs::path& path, std::span<const std::byte> bytes) {
  stream_file_atomically(path, [&](const PutBytes& put) { put(bytes); });
}

void append_to_file(const fs::path& path, std::int64_t keep, const std::function<void(const PutBytes&)>& content) {
  struct File {
    int fd;
    ~File() { ::close(fd); }
  };
  const File file{::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644)};
  if (file.fd < 0) fail_to_write(path, "opening", errno);
  if (::ftruncate(file.fd, keep) != 0) fail_to_write(path, "cutting it", errno);
  if (::lseek(file.fd, 0, SEEK_END) < 0) fail_to_write(path, "seeking", errno);
  content([&](std::span<const std::byte> bytes) { write_all(path, file.fd, bytes); });
  if (::fsync(file.fd) != 0) fail_to_write(path, "fsync", errno);
  sync_folder_of(path);
}

std::uint64_t put_and_count(std::size_t n, const PutTensor& content, const PutBytes& put) {
  std::uint64_t bytes = 0;
  content(n, [&](std::span<const std::byte> piece) {
    bytes += piece.size();
    put(piece);
  });
  return bytes;
}

void check_can_write(const fs::path& path) {
  const fs::path folder = folder_of(resolve(path).path);
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) fail_to_write(path, "its folder " + folder.string(), errno);
  if (!S_ISDIR(status.st_mode)) fail_to_write(path, "its folder " + folder.string(), ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail_to_write(path, "its folder " + folder.string(), errno);
}

}  // namespace attend::io

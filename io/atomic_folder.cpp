// Folders that appear whole, over POSIX calls and Linux's exchanging rename.
#include "io/atomic_folder.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace attend::io {
namespace {

namespace fs = std::filesystem;

// A file or a folder that is already there.
void sync_in_place(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) fail_to_write(path, "opening it to sync it", errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL: a file system that does not sync folders.
  if (error != 0 && error != EINVAL) fail_to_write(path, "fsync", error);
}

void sync_all(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    sync_in_place(entry->path());
  if (error) fail_to_write(folder, "listing it", error.value());
  sync_in_place(folder);
}

fs::path old_name(const fs::path& to) {
  return folder_of(to) / (".attend-old-" + to.filename().string());
}

int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}
bool not_supported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

// Never onto what is there; a plain rename would take an empty folder's place.
void move_to_free_place(const fs::path& from, const fs::path& to) {
  int error = rename_with(from, to, RENAME_NOREPLACE);
  struct stat status{};
  if (not_supported(error)) {
    if (::lstat(to.c_str(), &status) == 0)
      error = EEXIST;
    else
      error = ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }
  if (error != 0) fail_to_write(to, "renaming", error);
  sync_folder_of(to);
}

// As it is named in its folder: "out/" is "out".
fs::path named(const fs::path& target) {
  fs::path path = target.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (!path.has_filename() || path.filename() == "." || path.filename() == "..")
    throw FileError("cannot write '" + target.string() + "': expected the name of a folder");
  return path;
}

}  // namespace

void move_folder_in_two_steps(const fs::path& from, const fs::path& to) {
  const fs::path old = old_name(to);
  std::error_code ignored;
  fs::remove_all(old, ignored);
  if (::rename(to.c_str(), old.c_str()) != 0) fail_to_write(to, "moving the old folder away", errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    (void)::rename(old.c_str(), to.c_str());
    fail_to_write(to, "renaming", reason);
  }
  sync_folder_of(to);
  fs::remove_all(old, ignored);  // its failure costs space alone
}

void restore_folder(const fs::path& to) {
  const fs::path old = old_name(to);
  struct stat status{};
  if (::lstat(old.c_str(), &status) != 0) return;
  std::error_code ignored;
  if (rename_with(old, to, 0) != 0) fs::remove_all(old, ignored);
}

void move_folder_atomically(const fs::path& from, const fs::path& to) {
  sync_all(from);
  const int error = rename_with(from, to, RENAME_EXCHANGE);
  if (error == ENOENT) return move_to_free_place(from, to);
  if (not_supported(error)) return move_folder_in_two_steps(from, to);
  if (error != 0) fail_to_write(to, "exchanging it with the old folder", error);
  sync_folder_of(to);
  std::error_code ignored;
  fs::remove_all(from, ignored);  // the old one by now; its failure costs space alone
}

NewFolder::NewFolder(const fs::path& target, bool replace)
    : target_(named(target)), replace_(replace), temporary_(target_, Temporary::Kind::folder) {
  restore_folder(target_);
  struct stat status{};
  if (::lstat(target_.c_str(), &status) == 0 && !replace)
    throw FileError(target.string() + ": is there already; expected the name of a new folder");
}

void NewFolder::commit() {
  struct stat status{};
  if (replace_ && ::lstat(target_.c_str(), &status) == 0) {
    move_folder_atomically(temporary_.path(), target_);
  } else {
    sync_all(temporary_.path());
    move_to_free_place(temporary_.path(), target_);
  }
  temporary_.moved();
}

}  // namespace attend::io

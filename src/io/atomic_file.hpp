// Writing a file so that its path holds either the old bytes or the new ones, whatever happens in between.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "io/file_error.hpp"

namespace attend::io {

// Temporary in the same folder, write all, fsync, rename, fsync the folder. A file that was there before keeps its
// permissions and, when anything fails before the rename, its content; a symbolic link is followed. Only regular files
// are replaced: never a folder, a device or a pipe.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Throws the FileError that a write to this path would surely meet: found before an hour of work, not after it.
void check_can_write(const std::filesystem::path& path);

}  // namespace attend::io

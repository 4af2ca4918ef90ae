// Writing a file so that its path holds either the old bytes or the new ones, whatever happens in between.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

#include "io/file_error.hpp"

namespace attend::io {

// Temporary in the same folder, write all, fsync, rename, fsync the folder. A file that was there before keeps its
// permissions and, when anything fails before the rename, its content; a symbolic link is followed. Only regular files
// are replaced: never a folder, a device or a pipe.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

// The same for content that comes in pieces, for files too large to stand in memory: `content` hands them to the
// function it is given, in order. What it throws passes through and leaves the old file.
using PutBytes = std::function<void(std::span<const std::byte>)>;
void stream_file_atomically(const std::filesystem::path& path, const std::function<void(const PutBytes&)>& content);

// Puts the folder `from`, with all that is in it, at `to`: the files reach the disk before the name does, so that `to`
// is whole or absent. What was at `to` goes away first. Both lie in one file system.
void move_folder_atomically(const std::filesystem::path& from, const std::filesystem::path& to);

// Throws the FileError that a write to this path would surely meet: found before an hour of work, not after it.
void check_can_write(const std::filesystem::path& path);

}  // namespace attend::io

// Writing a file so that its path holds either the old bytes or the new ones, whatever happens in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "io/file_error.hpp"

namespace attend::io {

// Temporary in the same folder, write all, fsync, rename, fsync the folder. A file that was there before keeps its
// permissions and, when anything fails before the rename, its content; a symbolic link is followed. Only regular files
// are replaced: never a folder, a device or a pipe. What a killed one left goes away with the next write to that
// folder.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

// The same for content that comes in pieces, for files too large to stand in memory: `content` hands them to the
// function it is given, in order. What it throws passes through and leaves the old file.
using PutBytes = std::function<void(std::span<const std::byte>)>;
void stream_file_atomically(const std::filesystem::path& path, const std::function<void(const PutBytes&)>& content);

// Cuts the file to its first `keep` bytes, then appends `content`; it is made if it is not there. All of it is on the
// disk when this returns; whatever ends it before leaves the first bytes as they were. For a file that grows from one
// run to the next and is not read until it is whole.
void append_to_file(const std::filesystem::path& path, std::int64_t keep,
                    const std::function<void(const PutBytes&)>& content);

// For files of many tensors, one made after another: hands over the bytes of tensor n, in pieces.
using PutTensor = std::function<void(std::size_t n, const PutBytes& put)>;
// Runs it and counts what it handed over.
std::uint64_t put_and_count(std::size_t n, const PutTensor& content, const PutBytes& put);

// Throws the FileError that a write to this path would surely meet: found before an hour of work, not after it.
void check_can_write(const std::filesystem::path& path);

}  // namespace attend::io

// What a stored model's folder says about itself, and the sums of its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "attend/llm/store.hpp"

namespace attend::llm {

inline constexpr const char* kManifest = "attend.json";

// Writes what `stored_model` reads, into the model's folder before it is moved to its place.
void write_manifest(const std::filesystem::path& folder, const ModelSource& source, std::span<const StoredFile> files);

// SHA-256 in pieces: `done` grows by what was read, and `tell` is called for each.
std::string sha256_in_pieces(std::span<const std::byte> bytes, std::int64_t& done, const std::function<void()>& tell);

}  // namespace attend::llm

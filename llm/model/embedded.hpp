// The model inside the library, so that there is one without any file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "io/gguf.hpp"

namespace attend::llm {

inline constexpr const char* kEmbeddedModel = "storyteller";

// Stands for the embedded model where a path is asked for. No file has to be there, and one that is there is not read.
std::filesystem::path embedded_path();
bool is_embedded(const std::filesystem::path& path);

std::span<const std::byte> embedded_bytes();
// A GGUF file, or the embedded model.
io::Gguf open_gguf(const std::filesystem::path& path);

}  // namespace attend::llm

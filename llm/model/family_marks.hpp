// How far each family of models was compared with code that is not ours.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace attend::llm {

// Of a family as config.json or GGUF names it. "real weights": published weights in the table of docs/guide/models.md.
// "architecture": random weights equal to the original code, read and written. "experimental": neither, as far as is
// known. "" for a description of attend's own.
std::string_view family_mark(std::string_view family);

// For messages: "llama, mistral (experimental), qwen2".
std::string marked_families(std::span<const std::string_view> families);

}  // namespace attend::llm

// Where tokenizers come from.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "attend/llm/tokenizer.hpp"
#include "io/gguf.hpp"

namespace attend::llm {

// `what` names the file in errors. All throw io::FileError. Reading takes at most 64 MiB in addition to the file's
// size. `tokenizer_json` is the text of a tokenizer.json.
Tokenizer tokenizer_from_json(std::string_view tokenizer_json, const std::string& what);
// tokenizer.json, with tokenizer_config.json and chat_template.jinja beside it if they are there; or vocab.txt alone.
Tokenizer tokenizer_from_folder(const std::filesystem::path& folder);
Tokenizer tokenizer_from_gguf(const io::Gguf& gguf, const std::string& what);

}  // namespace attend::llm

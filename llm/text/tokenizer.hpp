// Where tokenizers come from.
#pragma once

#include <filesystem>
#include <string>

#include "attend/llm/tokenizer.hpp"
#include "io/gguf.hpp"
#include "io/json.hpp"

namespace attend::llm {

// `what` names the file in errors. All throw io::FileError.
Tokenizer tokenizer_from_json(const io::Json& tokenizer_json, const std::string& what);
// tokenizer.json, with tokenizer_config.json and chat_template.jinja beside it if they are there; or vocab.txt alone.
Tokenizer tokenizer_from_folder(const std::filesystem::path& folder);
Tokenizer tokenizer_from_gguf(const io::Gguf& gguf, const std::string& what);

}  // namespace attend::llm

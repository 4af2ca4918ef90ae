// Training data from files into prepared documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "attend/llm/chat_template.hpp"
#include "llm/train/dataset.hpp"
#include "llm/train/record_reader.hpp"
#include "llm/train/train_tokenizer.hpp"

namespace attend::llm {

// Learns a tokenizer from the records and writes its files into a folder: ChatML's markers are its special tokens.
void train_tokenizer(RecordReader& reader, const TokenizerTraining& training, const std::string& pre,
                     const std::filesystem::path& folder, const PrepareProgress& progress);
// Whether a GGUF file, a folder, or the folder of another file brings a tokenizer.
bool has_tokenizer(const std::filesystem::path& path);
// Copies the files of a tokenizer that is there: of a folder or a GGUF file.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder);

// A text as tokens with the end after it ([SEP] for a tokenizer of encoders); of a chat only the answers that are
// learned are to be predicted. What follows the last of them is left out.
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text);
std::vector<std::int32_t> encode_learnt_chat(const Tokenizer& tokenizer, const ChatTemplate& style,
                                             std::span<const Message> chat, std::span<const std::string> tools = {});

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path out;
  std::filesystem::path tokenizer;  // empty: one is trained
  TokenizerTraining training{};
  bool skip_broken = false, replace = false;
  std::string column{};  // the field of a row that is a text; "": the form is found by the names of the fields
  PrepareProgress progress{};
};
// `report`, if not null, is given what was read and skipped.
DataInfo prepare(const PrepareOptions& options, ReadReport* report = nullptr);

}  // namespace attend::llm

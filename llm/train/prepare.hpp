// Texts from files into prepared documents: plain text, folders, and JSONL as MiniMind has it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attend/llm/chat_template.hpp"
#include "llm/train/dataset.hpp"
#include "llm/train/train_tokenizer.hpp"

namespace attend::llm {

// One document as it stands in a file.
struct Record {
  DataKind kind = DataKind::text;
  std::string text;                     // of a text
  std::vector<Message> chat, rejected;  // of a chat; of a pair, chat is the better one
  double nats = 0;                      // what its maker says it holds; 0: nothing
  std::string place;                    // file and line, for messages
};

// Tells how many bytes of all files are read. May throw to stop.
using PrepareProgress = std::function<void(const char* stage, std::int64_t done, std::int64_t all)>;

// Reads files in order, a document at a time, never a whole file. A text file is one document, or several between lines
// that hold <|endoftext|> alone; JSONL (.jsonl, .json) has an object a line: {"text"}, {"conversations"}, or {"chosen",
// "rejected"}. A folder means its .txt, .md and .jsonl files, in the order of their names. All of them are UTF-8:
// a byte-order mark is dropped, and CRLF of a text file is read as LF.
class RecordReader {
 public:
  // FileError if a path is not there, or nothing in it can be read.
  RecordReader(const std::vector<std::filesystem::path>& inputs, bool skip_broken);

  std::int64_t bytes() const { return bytes_; }      // of all files
  std::int64_t skipped() const { return skipped_; }  // broken lines, in the last read()
  // FileError with file and line for one that is broken, unless they are to be skipped; and for files that mix kinds.
  void read(const std::function<void(const Record& record)>& take, const PrepareProgress& progress, const char* stage);

 private:
  void read_text(const io::MappedFile& file, const std::function<void(const Record&)>& take);
  void read_lines(const io::MappedFile& file, const std::function<void(const Record&)>& take);

  std::vector<std::filesystem::path> files_;
  bool skip_broken_;
  std::int64_t bytes_ = 0, before_ = 0, skipped_ = 0;
  std::function<void(std::int64_t here)> tell_;
};

// Learns a tokenizer from the records and writes its files into a folder: ChatML's markers are its special tokens.
void train_tokenizer(RecordReader& reader, const TokenizerTraining& training, const std::string& pre,
                     const std::filesystem::path& folder, const PrepareProgress& progress);
// Whether a GGUF file, a folder, or the folder of another file brings a tokenizer.
bool has_tokenizer(const std::filesystem::path& path);
// Copies the files of a tokenizer that is there: of a folder or a GGUF file.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder);

// A text as tokens with the end behind it ([SEP] for a tokenizer of encoders); of a chat only what the assistant says
// is to be predicted.
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text);
std::vector<std::int32_t> encode_learnt_chat(const Tokenizer& tokenizer, const ChatTemplate& style,
                                             std::span<const Message> chat);

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path out;
  std::filesystem::path tokenizer;  // empty: one is trained
  TokenizerTraining training{};
  bool skip_broken = false, replace = false;
  PrepareProgress progress{};
};
DataInfo prepare(const PrepareOptions& options);

}  // namespace attend::llm

// Documents as tokens on disk: written once by `prepare`, mapped into memory by training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "io/atomic_folder.hpp"
#include "io/mapped_file.hpp"
#include "llm/text/tokenizer.hpp"
#include "llm/train/packing.hpp"

namespace attend::llm {

// What the documents are: plain texts; chats whose answers are to be learnt, or such chats and texts; pairs of chats,
// the better one first.
enum class DataKind { text, chat, preference };
const char* name(DataKind kind);

struct DataInfo {
  DataKind kind = DataKind::text;
  std::int64_t documents = 0, tokens = 0, learnt = 0;  // learnt: tokens that are to be predicted
  std::int64_t bytes = 0;                              // of the texts
  std::int64_t skipped = 0;                            // lines that were broken
  std::int64_t vocabulary = 0;
  double nats = 0;        // information of all documents, where their maker told it; 0: not known
  std::string tokenizer;  // SHA-256 of its tokenizer.json or vocab.txt
};

// A folder: data.json (DataInfo), tokens.bin (int32: a token, or ~token for one that is not to be predicted),
// documents.bin (int64: where each document begins, and the end), and the tokenizer's files.
class Dataset : public Documents {
 public:
  // FileError says which of the files is missing, cut short or does not fit the others.
  explicit Dataset(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const DataInfo& info() const { return info_; }
  std::int64_t count() const override { return info_.documents; }
  DocumentTokens document(std::int64_t n) const override;
  std::int64_t tokens() const override { return info_.tokens; }

 private:
  std::filesystem::path folder_;
  DataInfo info_;
  io::MappedFile tokens_, starts_;
};

// Fills such a folder, a document at a time; it appears whole at commit().
class DatasetWriter {
 public:
  DatasetWriter(const std::filesystem::path& folder, bool replace);

  const std::filesystem::path& path() const { return folder_.path(); }  // for the tokenizer's files
  void add(std::span<const std::int32_t> document);
  // The counts that only the writer knows are filled in.
  DataInfo commit(DataInfo info);

 private:
  io::NewFolder folder_;
  std::ofstream tokens_, starts_;
  std::int64_t documents_ = 0, count_ = 0, learnt_ = 0;
};

}  // namespace attend::llm

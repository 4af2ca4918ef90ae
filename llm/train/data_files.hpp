// Which files of training data are read, and as what: by name, checked against their first bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attend::llm {

enum class FileFormat { text, json, csv };

// The extensions that are read, for help and errors.
inline constexpr const char* kFileFormats =
    ".txt, .md, .json, .jsonl, .ndjson, .csv, each also as .gz and .zst; Parquet, pandas and datasets through Python "
    "(attend.llm.prepare)";

// By its name without .gz or .zst; what is not JSON or CSV is text.
FileFormat file_format(const std::filesystem::path& path);

struct DataFiles {
  std::vector<std::filesystem::path> files;
  std::map<std::string, std::int64_t> unread;  // in folders, files of other kinds: extension, count
  std::int64_t bytes = 0;                      // of all files, as they are on disk
};
// Files, and of folders all files with those extensions, sorted by name. FileError if an input does not exist or holds
// nothing to read.
DataFiles find_data_files(const std::vector<std::filesystem::path>& inputs);

// FileError if a file that begins so is binary, HTML or a pointer of Git LFS; it says how to get at the text.
void check_begins_as_text(std::string_view begin, const std::string& name);

}  // namespace attend::llm

// Reads training data from files, a record at a time, and counts what was read and what was not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "io/text_stream.hpp"
#include "llm/train/data_files.hpp"
#include "llm/train/record.hpp"
#include "llm/train/row_files.hpp"

namespace attend::llm {

// Tells how many bytes of all files are read. May throw to stop.
using PrepareProgress = std::function<void(const char* stage, std::int64_t done, std::int64_t all)>;

// What became of the rows: every row is either of a form or skipped for a reason.
struct ReadReport {
  struct Skipped {
    std::string reason, first;  // the place of the first such row
    std::int64_t count = 0;
  };
  std::int64_t rows = 0, skipped = 0;
  std::vector<std::pair<std::string, std::int64_t>> forms;  // records that were used
  std::vector<Skipped> reasons;                             // the first of them
  std::map<std::string, std::int64_t> unread;               // files in folders, by extension

  // As lines for people.
  std::vector<std::string> lines() const;
};

// Reads files in order; neither a file nor a row's file is ever held whole. A text file is one document, or several
// between lines that hold only <|endoftext|>; JSON and CSV files have a record a row (record.hpp). All of them are
// UTF-8: a byte-order mark is dropped, and CRLF of a text file is read as LF.
class RecordReader {
 public:
  // FileError if a path does not exist, or a folder holds nothing to read. `column`: the field of a row that is a text.
  RecordReader(const std::vector<std::filesystem::path>& inputs, bool skip_broken, std::string column = "");

  const ReadReport& report() const { return report_; }  // of the last read()
  std::int64_t skipped() const { return report_.skipped; }
  // FileError with file and line for a row that cannot be read, unless these are to be skipped.
  void read(const std::function<void(const Record& record)>& take, const PrepareProgress& progress, const char* stage);
  // Moves a record that `take` was given from those that were read to those that were skipped.
  void skip(const Record& record, const std::string& why);

 private:
  using Take = std::function<void(const Record&)>;
  void read_text(io::TextStream& in, const Take& take);
  void take_row(const std::string& place, const ParseRow& parse, const Take& take);
  void count_form(const char* form, std::int64_t change);
  void count_skipped(const std::string& place, std::string why);

  DataFiles files_;
  bool skip_broken_;
  std::string column_;
  ReadReport report_;
};

}  // namespace attend::llm

// CSV, a byte at a time: quoted fields may hold commas, line ends and doubled quotes.
#include <algorithm>
#include <string_view>
#include <vector>

#include "llm/train/row_files.hpp"
#include "llm/train/row_limits.hpp"

namespace attend::llm {
namespace {

class CsvReader {
 public:
  CsvReader(io::TextStream& in, const OnRow& on_row) : in_(in), on_row_(on_row) {}

  void run() {
    for (std::string_view piece = in_.line(kPiece); !piece.empty(); piece = in_.line(kPiece)) {
      if (!started_) line_ = in_.line_number();
      try {
        in_.check(piece);
      } catch (const io::FileError& error) {
        if (problem_.empty()) problem_ = error.what();
      }
      for (const char c : piece) byte(c);
    }
    if (in_quotes_) problem_ = place() + ": a quote is never closed";
    if (started_) end_row();
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{64} << 10, kMaxFields = 4096;

  std::string place() const { return in_.name() + ":" + std::to_string(line_); }

  void byte(char c) {
    started_ = true;
    if (in_quotes_) {
      if (c == '"')
        in_quotes_ = false, after_quote_ = true;
      else
        put(c);
    } else if (c == '"' && after_quote_) {  // doubled inside a quoted field
      put(c);
      in_quotes_ = true, after_quote_ = false;
    } else if (c == '"' && fields_.back().empty()) {
      in_quotes_ = true, quoted_ = true;
    } else if (c == ',') {
      next_field();
    } else if (c == '\n') {
      end_row();
    } else if (after_quote_) {  // a '\r' belongs to the line end
      if (c != '\r' && problem_.empty()) problem_ = place() + ": there is text after a closing quote";
    } else {
      put(c);
    }
  }

  void next_field() {
    after_quote_ = false;
    if (fields_.size() < kMaxFields) {
      fields_.emplace_back();
    } else if (problem_.empty()) {
      problem_ = place() + ": has more than " + std::to_string(kMaxFields) + " fields";
    }
  }

  void put(char c) {
    if (++bytes_ <= kMaxRowBytes) {
      fields_.back() += c;
    } else if (problem_.empty()) {
      problem_ = std::string(too_long(place()).what()) + "; a quote may not be closed";
    }
  }

  void end_row() {
    if (!after_quote_ && fields_.back().ends_with('\r')) fields_.back().pop_back();
    const bool blank = fields_.size() == 1 && fields_.front().empty() && !quoted_;
    if (!blank && names_.empty())
      take_names();
    else if (!blank)
      on_row_(place(), [&] { return row(); });
    fields_.assign(1, "");
    problem_.clear();
    bytes_ = 0;
    started_ = in_quotes_ = after_quote_ = quoted_ = false;
  }

  void take_names() {
    if (!problem_.empty()) throw io::FileError(problem_);
    names_ = fields_;
    for (auto name = names_.begin(); name != names_.end(); ++name)
      if (std::find(names_.begin(), name, *name) != name)
        throw io::FileError(place() + ": two columns are named " + io::json_quoted(*name) +
                            ", expected the names of the columns in the first row");
  }

  io::Json row() {
    if (!problem_.empty()) throw io::FileError(problem_);
    if (fields_.size() != names_.size())
      throw io::FileError(place() + ": has " + std::to_string(fields_.size()) + " fields, expected " +
                          std::to_string(names_.size()) + " as the first row");
    io::Json::Object object;
    for (std::size_t n = 0; n < names_.size(); ++n)
      object.emplace_back(names_[n], io::Json(io::Json::Value(std::move(fields_[n]))));
    return io::Json(io::Json::Value(std::move(object)));
  }

  io::TextStream& in_;
  const OnRow& on_row_;
  std::vector<std::string> names_, fields_ = {""};
  std::string problem_;  // of this row
  std::size_t bytes_ = 0;
  std::int64_t line_ = 1;
  bool started_ = false, in_quotes_ = false, after_quote_ = false, quoted_ = false;
};

}  // namespace

void read_csv_rows(io::TextStream& in, const OnRow& on_row) {
  CsvReader(in, on_row).run();
}

}  // namespace attend::llm

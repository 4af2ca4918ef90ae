// Files that hold a row after the other: JSON, a value a line or in one array, and CSV.
#pragma once

#include <functional>
#include <string>

#include "io/json.hpp"
#include "io/text_stream.hpp"

namespace attend::llm {

// Parses a row; FileError says why it cannot be read.
using ParseRow = std::function<io::Json()>;
// Called for each row. `place` names file and line. If it does not throw where parsing does, reading goes on with the
// next row.
using OnRow = std::function<void(const std::string& place, const ParseRow& parse)>;

// JSON: an array if that is what the file begins with, else a value a line. Neither is ever held whole; a row is an
// error above 16 MiB.
void read_json_rows(io::TextStream& in, const OnRow& on_row);
// CSV as RFC 4180 has it, comma-separated: the first row names the fields, and a row is an object of strings.
void read_csv_rows(io::TextStream& in, const OnRow& on_row);

}  // namespace attend::llm

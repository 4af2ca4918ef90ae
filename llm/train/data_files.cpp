// Files of training data by extension, and by the signatures of what is often mistaken for text.
#include "llm/train/data_files.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <system_error>

#include "io/file_error.hpp"
#include "llm/model/files.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;

bool has_any(const fs::path& path, std::initializer_list<const char*> extensions) {
  return std::any_of(extensions.begin(), extensions.end(), [&](const char* one) { return has_extension(path, one); });
}

fs::path without_compression(const fs::path& path) {
  return has_any(path, {".gz", ".zst", ".zstd"}) ? path.stem() : path;
}

bool is_read(const fs::path& path) {
  return file_format(path) != FileFormat::text || has_any(without_compression(path), {".txt", ".md"});
}

struct Signature {
  std::string_view bytes;
  const char* what;  // what the file is, and what to do
};
constexpr std::array kSignatures = {
    Signature{"PAR1\x15", "is Parquet, which is read through Python: attend.llm.prepare"},
    Signature{"ARROW1", "is Arrow, which is read through Python: attend.llm.prepare takes datasets and tables"},
    Signature{"\xFF\xFF\xFF\xFF",
              "is binary, perhaps Arrow as datasets saves it: open it with "
              "datasets.load_from_disk and pass it to Python's attend.llm.prepare"},
    Signature{"PK\x03\x04", "is a zip archive or an office document; unpack it with unzip, or save it as text"},
    Signature{"BZh91AY&SY", "is compressed with bzip2, expected gzip or zstd; unpack it first: bunzip2"},
    Signature{"\xFD"
              "7zXZ",
              "is compressed with xz, expected gzip or zstd; unpack it first: xz -d"},
    Signature{"7z\xBC\xAF", "is a 7z archive; unpack it first"},
    Signature{"%PDF-", "is PDF, expected text; extract its text first: pdftotext"},
    Signature{"SQLite format 3", "is an SQLite database, expected text; export it as CSV or JSON"},
    Signature{"GGUF\x03", "is a GGUF model, expected text"},
    Signature{"\x7F"
              "ELF",
              "is a program, expected text"},
    Signature{"\x89PNG", "is a picture, expected text"},
    Signature{"\xFF\xD8\xFF", "is a picture, expected text"},
    Signature{"version https://git-lfs", "is a pointer of Git LFS in place of the file; fetch the file: git lfs pull"},
};

bool begins_with_any_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

}  // namespace

FileFormat file_format(const fs::path& path) {
  const fs::path inner = without_compression(path);
  if (has_any(inner, {".jsonl", ".json", ".ndjson"})) return FileFormat::json;
  return has_extension(inner, ".csv") ? FileFormat::csv : FileFormat::text;
}

DataFiles find_data_files(const std::vector<fs::path>& inputs) {
  DataFiles found;
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (!fs::exists(input, error)) throw io::FileError(input.string() + ": there is no such file or folder");
    if (!fs::is_directory(input, error)) {
      if (!fs::is_regular_file(input, error))
        throw io::FileError(input.string() + ": is not a regular file, expected a text file or a folder");
      found.files.push_back(input);
      continue;
    }
    std::vector<fs::path> inside;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(input)) {
      if (!entry.is_regular_file()) continue;
      if (is_read(entry.path()))
        inside.push_back(entry.path());
      else
        ++found.unread[entry.path().extension().string()];
    }
    if (inside.empty()) throw io::FileError(input.string() + ": holds no file that is read: " + kFileFormats);
    std::sort(inside.begin(), inside.end());
    found.files.insert(found.files.end(), inside.begin(), inside.end());
  }
  for (const fs::path& file : found.files) found.bytes += static_cast<std::int64_t>(fs::file_size(file));
  return found;
}

void check_begins_as_text(std::string_view begin, const std::string& name) {
  for (const Signature& known : kSignatures)
    if (begin.starts_with(known.bytes)) throw io::FileError(name + ": " + known.what);
  if (begin.size() > 262 && begin.substr(257, 5) == "ustar")
    throw io::FileError(name + ": is a tar archive; unpack it first: tar -xf");
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  if (begins_with_any_case(begin, "<!doctype html") || begins_with_any_case(begin, "<html"))
    throw io::FileError(name +
                        ": is HTML, expected text. A download may have returned an error page; otherwise extract the "
                        "text first. To train on HTML itself, put it into JSONL as {\"text\": ...}");
}

}  // namespace attend::llm

